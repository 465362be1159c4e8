// Sorting on CUDA. A block sorts a tile of a row in shared memory: each thread sorts a few elements in registers, then
// runs are merged, twice as long in each round, by all threads alike, each of which finds by bisection where its share
// of the result begins. A longer row is cut into tiles. Of what is not asked for nothing leaves a tile, so a few of
// many are found by tiles of what tiles have left; else the tiles' runs are merged in memory in the same manner. The
// order has no equals, so the result is the CPU's to the bit.
#include "kernels/sort.h"

#include "kernels/bad_index.h"
#include "kernels/cuda/axes.h"
#include "kernels/cuda/indices.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

using order::before;
using order::Key;
using order::Ordering;
using order::Ranked;

// Where sorted elements go at last.
template <class T>
struct Results {
  const T* x;
  int64_t* places;  // nullptr where they are not asked for
  T* values;        // the same
  int64_t length, kept;

  MOONFLOW_DEVICE void write(int64_t row, int64_t i, uint32_t place) const {
    if (places) places[row * kept + i] = place;
    if (values) values[row * kept + i] = x[row * length + place];
  }
};

// Sorts rows tile by tile and keeps the first `kept` of each.
template <class T, int kThreadsOfBlock, int kElements>
struct SortTiles {
  // An odd number of elements for each thread spreads them over the banks of shared memory.
  static_assert(kElements % 2 == 1);
  static constexpr int kThreads = kThreadsOfBlock, kTile = kThreads * kElements;
  using Element = Ranked<Key<T>>;
  static constexpr int64_t kShared = kTile * sizeof(Element);

  Results<T> results;
  const Element* from;  // nullptr: the values themselves
  Element* to;          // nullptr: the results
  int64_t length, to_length, tiles, kept;
  bool descending;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    Element* const tile = block.template shared<Element>();
    const int64_t row = block.index() / tiles, first = block.index() % tiles * kTile;
    const int count = static_cast<int>(length - first < kTile ? length - first : kTile);
    for (int i = block.thread(); i < kTile; i += kThreads) tile[i] = read(row, first + i, i < count);
    block.sync();

    const int own = block.thread() * kElements;
    Element elements[kElements];
    MOONFLOW_UNROLL
    for (int i = 0; i < kElements; ++i) elements[i] = tile[own + i];
    // Neighbours are put in order, those that begin at even and at odd places in turn.
    MOONFLOW_UNROLL
    for (int round = 0; round < kElements; ++round) {
      MOONFLOW_UNROLL
      for (int i = round % 2; i + 1 < kElements; i += 2) {
        const Element a = elements[i], b = elements[i + 1];
        const bool swaps = before(b, a);
        elements[i] = swaps ? b : a;
        elements[i + 1] = swaps ? a : b;
      }
    }
    write(elements, tile + own);
    block.sync();
    for (int width = kElements; width < count; width *= 2) {
      const int pair = own / (2 * width) * (2 * width), share = own - pair;
      order::Merge<order::Ranked<Key<T>>> merged(tile + pair, width, tile + pair + width, width, share);
      MOONFLOW_UNROLL
      for (int i = 0; i < kElements; ++i) elements[i] = merged.next();
      block.sync();  // before what others read is overwritten
      write(elements, tile + own);
      block.sync();
    }

    const int leaving = static_cast<int>(count < kept ? count : kept);
    for (int i = block.thread(); i < leaving; i += kThreads) {
      if (to)
        to[row * to_length + first / kTile * kept + i] = tile[i];
      else
        results.write(row, i, tile[i].place);
    }
  }

 private:
  MOONFLOW_DEVICE Element read(int64_t row, int64_t i, bool exists) const {
    if (!exists) return {~Key<T>(0), ~uint32_t(0)};  // behind all others
    return from ? from[row * length + i] : order::ranked(results.x[row * length + i], i, descending);
  }
  static MOONFLOW_DEVICE void write(const Element* elements, Element* to) {
    MOONFLOW_UNROLL
    for (int i = 0; i < kElements; ++i) to[i] = elements[i];
  }
};

// Merges neighbouring runs of each row, of which the last may be short or alone, and keeps the first `kept` of both.
template <class K>
struct MergeRuns {
  static constexpr int kThreads = 256, kElements = 8;
  const Ranked<K>* from;
  Ranked<K>* to;
  int64_t count, length, to_length, width, kept;  // count: of threads that have work
  LongDivisor pairs, shares;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t i = block.index() * kThreads + block.thread();
    if (i >= count) return;
    int64_t share, pair;
    const int64_t row = pairs.quotient(shares.quotient(i, share), pair);
    const Ranked<K>* const a = from + row * length + pair * 2 * width;
    const int64_t both = least(length - pair * 2 * width, 2 * width), a_count = least(both, width);
    const int64_t first = share * kElements, last = least(first + kElements, least(both, kept));
    if (first >= last) return;
    order::Merge<order::Ranked<K>> merged(a, a_count, a + a_count, both - a_count, first);
    Ranked<K>* const own = to + row * to_length + pair * kept;
    for (int64_t n = first; n < last; ++n) own[n] = merged.next();
  }

 private:
  static MOONFLOW_DEVICE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
};

template <class T>
struct WriteResults {
  Results<T> results;
  const Ranked<Key<T>>* elements;
  LongDivisor kept;
  MOONFLOW_DEVICE void operator()(int64_t e) const {
    int64_t i;
    const int64_t row = kept.quotient(e, i);
    results.write(row, i, elements[e].place);
  }
};

// A warp for each row counts what comes before its target.
template <class T>
struct InTopK {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  Indices targets;
  const T* x;
  int8_t* out;
  int64_t rows, k;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t row = block.index() * kWarps + block.thread() / kWarp, classes = targets.bound;
    if (row >= rows) return;  // the whole warp
    const int lane = block.thread() % kWarp;
    const int64_t target = targets.at(row);
    if (target < 0 || target >= classes) {
      if (lane == 0) targets.checked(block, row);
      return;
    }
    const T* const own_row = x + row * classes;
    const Key<T> own = order::key_of(own_row[target]);
    int64_t ahead = 0;
    for (int64_t i = lane; i < classes; i += kWarp) {
      const Key<T> other = order::key_of(own_row[i]);
      ahead += other > own || (other == own && i < target);
    }
    ahead = over_warp(block, ahead, Sum());
    if (lane == 0) out[row] = ahead < k;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// What is left of a row of which each `width` elements keep at most `kept`.
int64_t length_left(int64_t length, int64_t width, int64_t kept) {
  const int64_t whole = (length - 1) / width;
  return whole * std::min(width, kept) + std::min(length - whole * width, kept);
}

template <class T>
class OrderRows {
 public:
  using Element = Ranked<Key<T>>;
  using Small = SortTiles<T, 64, 5>;
  using Large = SortTiles<T, 256, 11>;

  explicit OrderRows(const Ordering& o) : o_(o) {}

  int64_t scratch_bytes() const {
    if (o_.length <= Large::kTile) return 0;
    const int64_t left = checked_product(o_.rows, length_left(o_.length, Large::kTile, o_.kept));
    return checked_product(left, 2 * sizeof(Element));
  }

  void operator()(const LaunchCall& at) const {
    const Results<T> results{at.input<T>(0), o_.places(at), o_.values<T>(at), o_.length, o_.kept};
    if (o_.length <= Small::kTile) return sort<Small>(at, results, nullptr, nullptr, o_.length);
    if (o_.length <= Large::kTile) return sort<Large>(at, results, nullptr, nullptr, o_.length);
    constexpr int64_t kTile = Large::kTile;
    int64_t length = length_left(o_.length, kTile, o_.kept), width = std::min(kTile, o_.kept);
    Element *from = static_cast<Element*>(at.scratch), *to = from + o_.rows * length;
    sort<Large>(at, results, nullptr, from, o_.length);
    // As long as tiles leave less than half of what they take.
    if (2 * width <= kTile) {
      while (length > kTile) {
        sort<Large>(at, results, from, to, length);
        length = length_left(length, kTile, o_.kept);
        std::swap(from, to);
      }
      return sort<Large>(at, results, from, nullptr, length);
    }
    while (length > width) {
      const int64_t kept = std::min(2 * width, o_.kept), left = length_left(length, 2 * width, kept);
      merge(at, from, to, length, left, width, kept);
      std::swap(from, to);
      length = left;
      width = kept;
    }
    for_each(at.stream, o_.rows * o_.kept, WriteResults<T>{results, from, LongDivisor(o_.kept)});
  }

 private:
  template <class Sort>
  void sort(const LaunchCall& at, const Results<T>& results, const Element* from, Element* to, int64_t length) const {
    const int64_t tiles = (length + Sort::kTile - 1) / Sort::kTile, kept = std::min<int64_t>(Sort::kTile, o_.kept);
    launch(at.stream, o_.rows * tiles,
           Sort{results, from, to, length, length_left(length, Sort::kTile, kept), tiles, kept, o_.descending},
           Sort::kShared);
  }
  void merge(const LaunchCall& at, const Element* from, Element* to, int64_t length, int64_t left, int64_t width,
             int64_t kept) const {
    using Merge = MergeRuns<Key<T>>;
    const int64_t pairs = (length - 1) / (2 * width) + 1, shares = (kept - 1) / Merge::kElements + 1;
    const int64_t count = o_.rows * pairs * shares;
    launch(at.stream, (count - 1) / Merge::kThreads + 1,
           Merge{from, to, count, length, left, width, kept, LongDivisor(pairs), LongDivisor(shares)});
  }

  Ordering o_;
};

Launch prepare_order(KernelCall& call, const Ordering& o) {
  if (o.rows == 0 || o.length == 0) return [](const LaunchCall&) {};
  return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
    const OrderRows<decltype(zero)> rows(o);
    call.scratch_bytes = rows.scratch_bytes();
    return rows;
  });
}

Launch prepare_in_top_k(KernelCall& call) {
  const int64_t rows = call.inputs[1].shape[0], classes = call.inputs[1].shape[1], k = call.attrs.integer("k");
  call.explain = [classes](int64_t row, int64_t target) { fail_label(row, target, classes); };
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using K = InTopK<decltype(zero)>;
    return [=, dtype = call.inputs[0].dtype](const LaunchCall& at) {
      if (rows == 0) return;
      launch(at.stream, (rows - 1) / K::kWarps + 1,
             K{Indices(at, 0, dtype, classes), at.input<decltype(zero)>(1), at.output<int8_t>(0), rows, k});
    };
  });
}

// A bad index is noted, and what comes after finds the note before it follows the index.
Launch prepare_picks(KernelCall& call) {
  const TensorType indices = call.inputs[0];
  const int64_t rows = call.attrs.integer("rows");
  call.explain = [shape = indices.shape, rows](int64_t place, int64_t index) { fail_index(shape, place, index, rows); };
  const Launch order = prepare_order(call, Ordering::of_all(indices.shape));
  return [=](const LaunchCall& at) {
    for_each(at.stream, indices.count(), CheckIndices{Indices(at, 0, indices.dtype, rows)});
    order(at);
  };
}

}  // namespace

void add_sort(Kernels& kernels) {
  for (const char* op : {"sort", "argsort", "top_k"})
    kernels[op] = {{[](KernelCall& call) { return prepare_order(call, Ordering(call)); }}};
  kernels["sort_values"] = {{[](KernelCall& call) { return prepare_order(call, Ordering::of_values(call)); }}};
  kernels["picks_by_row"] = {{prepare_picks}};
  kernels["in_top_k"] = {{prepare_in_top_k}};
}

}  // namespace moonflow::cuda
