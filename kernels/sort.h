// The order of values, on every device: by size, a NaN above all else, and equal values, as 0 and -0 are, by their
// places in the row. No two elements of a row are alike in it, so whatever sorts them ends with the same bits.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow {
class Catalog;
void add_ranks(Catalog& catalog);  // the ops of ranks.cpp
}  // namespace moonflow

namespace moonflow::order {

// A number without a sign that is ordered as the value is.
template <class T>
using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <class T>
MOONFLOW_BOTH Key<T> key_of(T x) {
  using K = Key<T>;
  constexpr K kSign = K(1) << (8 * sizeof(T) - 1);
  if constexpr (std::is_floating_point_v<T>) {
    const K bits = x == 0 ? K(0) : __builtin_bit_cast(K, x);
    const K key = bits & kSign ? ~bits : bits | kSign;
    return x != x ? ~K(0) : key;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(x) ^ kSign;
  } else {
    return x;
  }
}

// The value of a key. What shares one with another is not told apart: -0 is 0, and every NaN is the same one.
template <class T>
T value_of(Key<T> key) {
  using K = Key<T>;
  constexpr K kSign = K(1) << (8 * sizeof(T) - 1);
  if constexpr (std::is_floating_point_v<T>)
    return __builtin_bit_cast(T, key & kSign ? key & ~kSign : ~key);
  else if constexpr (std::is_signed_v<T>)
    return static_cast<T>(key ^ kSign);
  else
    return static_cast<T>(key);
}

// An element of a row: the key of its value, turned around where the order falls, and its place.
template <class K>
struct Ranked {
  K key;
  uint32_t place;
};
constexpr int64_t kMostPlaces = std::numeric_limits<uint32_t>::max();  // the last one is kept for what is not there

template <class T>
MOONFLOW_BOTH Ranked<Key<T>> ranked(T x, int64_t place, bool descending) {
  const Key<T> key = key_of(x);
  return {descending ? static_cast<Key<T>>(~key) : key, static_cast<uint32_t>(place)};
}

template <class K>
MOONFLOW_BOTH bool before(const Ranked<K>& a, const Ranked<K>& b) {
  return a.key < b.key || (a.key == b.key && a.place < b.place);
}
// Keys alone may be such elements too, where nobody asks for places.
template <class K>
MOONFLOW_BOTH std::enable_if_t<std::is_unsigned_v<K>, bool> before(K a, K b) {
  return a < b;
}

// ---- merging two runs that are in order ------------------------------------------------------------------------

// Gives the elements of both runs in order, from the one numbered `first` on. So a merge can be had in pieces, by as
// many threads: where each begins is found by bisection (Odeh, Green, Mwassi, Shmueli, Birk, Merge Path, IPDPS
// workshops 2012).
template <class Element>
class Merge {
 public:
  MOONFLOW_BOTH Merge(const Element* a, int64_t a_count, const Element* b, int64_t b_count, int64_t first)
      : a_end_(a + a_count), b_end_(b + b_count) {
    int64_t low = first > b_count ? first - b_count : 0, high = first < a_count ? first : a_count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (before(a[middle], b[first - 1 - middle]))
        low = middle + 1;
      else
        high = middle;
    }
    a_ = a + low;
    b_ = b + (first - low);
  }
  // There must be one more.
  MOONFLOW_BOTH Element next() {
    const bool takes_a = b_ == b_end_ || (a_ != a_end_ && before(*a_, *b_));
    return takes_a ? *a_++ : *b_++;
  }

 private:
  const Element *a_, *b_, *const a_end_, *const b_end_;
};

// ---- what an op of the family asks for -------------------------------------------------------------------------

// Of each row the first `kept` elements in their order: their values, their places, or both.
struct Ordering {
  int64_t rows, length, kept;
  bool descending = false, gives_values = false, gives_places = true;

  // Of a value of any shape all places, as if it were one row.
  static Ordering of_all(const Shape& x) { return Ordering(x.count()); }
  // The values alone.
  static Ordering of_values(const KernelCall& call) {
    Ordering o(call);
    o.gives_values = true;
    o.gives_places = false;
    return o;
  }
  explicit Ordering(const KernelCall& call)
      : length(call.inputs[0].shape.back()),
        kept(call.outputs[0].shape.back()),
        descending(is_descending(call.attrs)),
        gives_values(call.outputs.size() > 1) {
    const Shape& x = call.inputs[0].shape;
    rows = x.count(0, x.rank() - 1);
  }
  int64_t* places(const LaunchCall& at) const {
    return gives_places ? at.output<int64_t>(gives_values ? 1 : 0) : nullptr;
  }
  template <class T>
  T* values(const LaunchCall& at) const {
    return gives_values ? at.output<T>(0) : nullptr;
  }

 private:
  explicit Ordering(int64_t length) : rows(1), length(length), kept(length) {}
  // top_k, which has no direction, begins with the largest.
  static bool is_descending(const Attrs& attrs) {
    const AttrValue* const direction = attrs.find("direction");
    return direction == nullptr || std::get<std::string>(*direction) == "DESCENDING";
  }
};

}  // namespace moonflow::order
