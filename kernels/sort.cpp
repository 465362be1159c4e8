// Ops about the order of values along the last axis: sort, argsort, top_k, order_statistics, and picks_by_row for
// those who go through indices in the order of what they name. The order, in sort.h, leaves no two elements alike, so
// the results are the same for any number of threads and on any device.
//
// A row is sorted as numbers without a sign, its keys or what has a key above and a place below (cpu/sort_keys.h), and
// a few of a long row are picked through a heap of the best so far. Rows go to threads; where there are fewer rows than
// threads, a row is cut up, and its parts are merged.
#include "kernels/sort.h"

#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sort_keys.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using order::Key;
using order::Ordering;
using order::Ranked;

// As an object, which the standard library's algorithms inline.
struct Before {
  template <class Element>
  bool operator()(const Element& a, const Element& b) const {
    return order::before(a, b);
  }
};

// ---- a row, or a part of one -----------------------------------------------------------------------------------

template <class T>
void rank(const T* row, int64_t first, int64_t last, bool descending, Ranked<Key<T>>* to) {
  for (int64_t i = first; i < last; ++i) *to++ = order::ranked(row[i], i, descending);
}

template <class T>
void write_keys(const T* row, int64_t count, bool descending, Key<T>* keys) {
  const Key<T> turned = descending ? ~Key<T>(0) : Key<T>(0);
  cpu::widest([=] {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) keys[i] = order::key_of(row[i]) ^ turned;
  });
}

// Numbers whose lower halves are places, and which are sorted by the upper ones.
uint32_t place_in(uint64_t number) { return static_cast<uint32_t>(number); }
template <class K>
uint32_t place_in(const Ranked<K>& element) {
  return element.place;
}

// Puts in order places that ascend, each in the lower half of a number, of keys of 64 bits: by the 32 highest bits of
// how far they are above the least, then those that are alike in these by the bits below.
template <class KeyAt>
uint64_t* order_places(const KeyAt& key_at, uint64_t* numbers, uint64_t* room, int64_t count) {
  uint64_t least = ~uint64_t(0), most = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t key = key_at(place_in(numbers[i]));
    least = std::min(least, key);
    most = std::max(most, key);
  }
  if (least == most) return numbers;
  const int below = std::max(0, 32 - __builtin_clzll(most - least));
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t place = place_in(numbers[i]);
    numbers[i] = (key_at(place) - least) >> below << 32 | place;
  }
  uint64_t* const sorted = cpu::sort_keys(numbers, room, count, 32);
  if (below == 0) return sorted;
  uint64_t* const other = sorted == numbers ? room : numbers;
  constexpr int64_t kFew = 16;
  for (int64_t i = 0, end = 0; i < count; i = end) {
    while (end < count && sorted[end] >> 32 == sorted[i] >> 32) ++end;
    if (end - i > kFew) {
      const uint64_t* const run = order_places(key_at, sorted + i, other + i, end - i);
      if (run != sorted + i) std::copy(run, run + (end - i), sorted + i);
      continue;
    }
    for (int64_t next = i + 1; next < end; ++next) {
      const uint64_t own = sorted[next], key = key_at(place_in(own));
      int64_t at = next;
      for (; at > i && key_at(place_in(sorted[at - 1])) > key; --at) sorted[at] = sorted[at - 1];
      sorted[at] = own;
    }
  }
  return sorted;
}

// The places [first, first + count) of a row in order, in the lower halves of numbers, with room for as many.
template <class T>
uint64_t* sort_places_of(const T* row, int64_t first, int64_t count, bool descending, uint64_t* numbers,
                         uint64_t* room) {
  using K = Key<T>;
  const K turned = descending ? ~K(0) : K(0);
  if constexpr (sizeof(K) == 8) {
    for (int64_t i = 0; i < count; ++i) numbers[i] = first + i;
    return order_places([=](uint32_t place) { return order::key_of(row[place]) ^ turned; }, numbers, room, count);
  } else {
    cpu::widest([=] {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i)
        numbers[i] =
            static_cast<uint64_t>(order::key_of(row[first + i]) ^ turned) << 32 | static_cast<uint64_t>(first + i);
    });
    return cpu::sort_keys(numbers, room, count, 32);
  }
}

// The first `kept` of the elements [first, last), which are at least as many, in order.
template <class T>
void select(const T* row, int64_t first, int64_t last, bool descending, int64_t kept, Ranked<Key<T>>* best) {
  using K = Key<T>;
  rank(row, first, first + kept, descending, best);
  std::make_heap(best, best + kept, Before());  // the last of the best on top
  constexpr int64_t kBlock = 256;
  K keys[kBlock];
  const K turned = descending ? ~K(0) : K(0);
  for (int64_t begin = first + kept; begin < last; begin += kBlock) {
    const int64_t count = std::min(kBlock, last - begin);
    const T* const from = row + begin;
    // Most blocks of a long row have nothing to give. Among equals the earlier ones are kept.
    K least = ~K(0);
    cpu::widest([&] {
      K smallest = ~K(0);
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        keys[i] = order::key_of(from[i]) ^ turned;
        smallest = std::min(smallest, keys[i]);
      }
      least = smallest;
    });
    if (least >= best[0].key) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (keys[i] >= best[0].key) continue;
      std::pop_heap(best, best + kept, Before());
      best[kept - 1] = {keys[i], static_cast<uint32_t>(begin + i)};
      std::push_heap(best, best + kept, Before());
    }
  }
  std::sort_heap(best, best + kept, Before());
}

// ---- rows ------------------------------------------------------------------------------------------------------

// How the rows are shared out among threads. Scratch is in slots: one for each worker, or, where rows are cut up, for
// each row.
struct Shares {
  int64_t parts;  // of a row
  int64_t slots;
  bool selects;  // a heap for each part in place of sorting all

  explicit Shares(const Ordering& o, bool picks = false) {
    const int64_t threads = cpu::threads();
    selects = !picks && o.kept <= o.length / 16;
    const int64_t least_part = std::max<int64_t>(1 << 15, selects ? 4 * o.kept : 1);
    parts = picks || o.rows >= threads ? 1 : std::clamp<int64_t>(o.length / least_part, 1, threads / o.rows);
    const int64_t workers = std::clamp<int64_t>(o.rows * o.length / cpu::kGrain, 1, threads);
    slots = parts > 1 ? o.rows : std::min(workers, o.rows);
  }
  // Of a slot. Where a row is sorted as one, its elements are numbers of 64 bits at most.
  template <class K>
  int64_t bytes(const Ordering& o) const {
    const int64_t element = selects || parts > 1 ? sizeof(Ranked<K>) : sizeof(uint64_t);
    return checked_product(selects ? parts * o.kept : 2 * o.length, element);
  }
};

// Of a T, with places or of values that their keys tell.
template <class T, bool kHasPlaces>
struct OrderRows {
  Ordering o;
  Shares shares;
  Ints picked;  // the places in the order that are kept, which ascend; empty: the first ones

  void operator()(const LaunchCall& at) const {
    const T* const x = at.input<T>(0);
    char* const scratch = static_cast<char*>(at.scratch);
    const int64_t bytes = shares.bytes<K>(o);
    if (shares.parts > 1) {
      for (int64_t row = 0; row < o.rows; ++row) cut_up(at, x, row, reinterpret_cast<Element*>(scratch + row * bytes));
      return;
    }
    cpu::parallel_for(shares.slots, 1, [&](int64_t first, int64_t last) {
      for (int64_t slot = first; slot < last; ++slot)
        for (int64_t row = o.rows * slot / shares.slots; row < o.rows * (slot + 1) / shares.slots; ++row)
          order_row(at, x + row * o.length, row, scratch + slot * bytes);
    });
  }

 private:
  using K = Key<T>;
  using Element = std::conditional_t<kHasPlaces, Ranked<K>, K>;  // of parts that are merged

  void order_row(const LaunchCall& at, const T* x, int64_t row, void* room) const {
    if constexpr (kHasPlaces) {
      if (shares.selects) {
        auto* const best = static_cast<Ranked<K>*>(room);
        select(x, 0, o.length, o.descending, o.kept, best);
        return write(at, row, best, 0, o.kept);
      }
      auto* const numbers = static_cast<uint64_t*>(room);
      write(at, row, sort_places_of(x, 0, o.length, o.descending, numbers, numbers + o.length), 0, o.kept);
    } else {
      K* const keys = static_cast<K*>(room);
      const bool picks = !picked.empty();
      write_keys(x, o.length, o.descending, keys);
      const K* const sorted = picks ? cpu::pick_keys(keys, keys + o.length, o.length, picked.data(), o.kept)
                                    : cpu::sort_keys(keys, keys + o.length, o.length);
      write(at, row, sorted, 0, o.kept);
    }
  }

  template <class Sorted>
  void write(const LaunchCall& at, int64_t row, const Sorted* sorted, int64_t first, int64_t last) const {
    int64_t* const places = o.places(at);
    T* const values = o.values<T>(at);
    const int64_t start = row * o.kept;
    const int64_t* const from = picked.empty() ? nullptr : picked.data();
    if constexpr (kHasPlaces) {
      const T* const x = at.input<T>(0) + row * o.length;
      for (int64_t i = first; places && i < last; ++i) places[start + i] = place_in(sorted[from ? from[i] : i]);
      for (int64_t i = first; values && i < last; ++i) values[start + i] = x[place_in(sorted[from ? from[i] : i])];
    } else {
      const K turned = o.descending ? ~K(0) : K(0);
      const auto value = [=](K key) { return order::value_of<T>(key ^ turned); };
      for (int64_t i = first; from && i < last; ++i) values[start + i] = value(sorted[from[i]]);
      if (from) return;
      cpu::widest([=] {
#pragma GCC ivdep
        for (int64_t i = first; i < last; ++i) values[start + i] = value(sorted[i]);
      });
    }
  }

  // Puts a part of a row in order, with room for as many.
  void order_part(const T* x, int64_t first, int64_t count, Element* part, Element* room) const {
    if constexpr (kHasPlaces) {
      auto* const numbers = reinterpret_cast<uint64_t*>(room);
      auto* const more = sizeof(K) == 8 ? numbers + count : reinterpret_cast<uint64_t*>(part);
      const uint64_t* const sorted = sort_places_of(x, first, count, o.descending, numbers, more);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t place = place_in(sorted[i]);
        part[i] = order::ranked(x[place], place, o.descending);
      }
    } else {
      write_keys(x + first, count, o.descending, part);
      const K* const sorted = cpu::sort_keys(part, room, count);
      if (sorted != part) std::copy(sorted, sorted + count, part);
    }
  }

  // One row on several threads.
  void cut_up(const LaunchCall& at, const T* x, int64_t row, Element* room) const {
    const int64_t parts = shares.parts;
    const auto begin = [&](int64_t part) { return o.length * std::min(part, parts) / parts; };
    const auto each_part = [&](const auto& work) {
      cpu::parallel_for(parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) work(part);
      });
    };
    const T* const values = x + row * o.length;
    if constexpr (kHasPlaces) {
      if (shares.selects) {
        each_part([&](int64_t part) {
          select(values, begin(part), begin(part + 1), o.descending, o.kept, room + part * o.kept);
        });
        std::sort(room, room + parts * o.kept, Before());
        return write(at, row, room, 0, o.kept);
      }
    }
    Element *from = room, *to = room + o.length;
    each_part([&](int64_t part) {
      const int64_t first = begin(part);
      order_part(values, first, begin(part + 1) - first, from + first, to + first);
    });
    // Each thread writes as much of each round, wherever the runs begin and end.
    for (int64_t width = 1; width < parts; width *= 2) {
      each_part([&](int64_t part) {
        for (int64_t run = 0; run < parts; run += 2 * width) {
          const int64_t a = begin(run), b = begin(run + width), end = begin(run + 2 * width);
          const int64_t first = std::clamp(begin(part), a, end), last = std::clamp(begin(part + 1), a, end);
          if (first == last) continue;
          order::Merge<Element> merged(from + a, b - a, from + b, end - b, first - a);
          std::generate(to + first, to + last, [&] { return merged.next(); });
        }
      });
      std::swap(from, to);
    }
    each_part([&](int64_t part) {
      const int64_t first = o.kept * part / parts, last = o.kept * (part + 1) / parts;
      write(at, row, from, first, last);
    });
  }
};

// Whether a value is told by its key.
template <class T>
bool all_told_by_keys(const T* x, int64_t count) {
  if constexpr (std::is_floating_point_v<T>) {
    using K = Key<T>;
    constexpr K kSign = K(1) << (8 * sizeof(T) - 1);
    K some = 0;
    cpu::widest([&] {
      K found = 0;
      for (int64_t i = 0; i < count; ++i) found |= x[i] != x[i] || __builtin_bit_cast(K, x[i]) == kSign;
      some = found;
    });
    return some == 0;
  }
  return true;
}

Launch prepare_order(KernelCall& call, const Ordering& o, const Ints& picked = {}) {
  if (o.rows == 0 || o.length == 0 || o.kept == 0) return [](const LaunchCall&) {};
  return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const Shares shares(o, !picked.empty());
    call.scratch_bytes = checked_product(shares.slots, shares.bytes<Key<T>>(o));
    const OrderRows<T, true> with_places{o, shares, picked};
    if (o.gives_places) return with_places;
    return [with_places, of_keys = OrderRows<T, false>{o, shares, picked}](const LaunchCall& at) {
      const Ordering& given = of_keys.o;
      if (all_told_by_keys(at.input<T>(0), given.rows * given.length))
        of_keys(at);
      else
        with_places(at);
    };
  });
}

// ---- sort, argsort, top_k --------------------------------------------------------------------------------------

void check_rows(const OpCall& call) {
  const Shape& x = call.shape(0);
  require(x.rank() > 0, ErrorCode::ShapeMismatch, "x is a scalar; it needs an axis along which values are ordered");
  require(x.back() < order::kMostPlaces, ErrorCode::OutOfRange, "the last axis of x ", x, " has more than ",
          order::kMostPlaces - 1, " values");
  if (const AttrValue* const direction = call.attrs.find("direction")) {
    const std::string& given = std::get<std::string>(*direction);
    require(given == "ASCENDING" || given == "DESCENDING", ErrorCode::InvalidArgument, "direction is \"", given,
            "\", wanted \"ASCENDING\" or \"DESCENDING\"");
  }
}

const char* const kOrder =
    "A NaN is above every other value. The order is total: equal values, 0 and -0 among them, keep the order of their "
    "places.\n";

AttrDef direction_attr() {
  return {"direction", std::string("ASCENDING"), "\"ASCENDING\", the smallest first, or \"DESCENDING\""};
}

const Attrs kFalling{{"direction", std::string("DESCENDING")}};

void add_sort_op(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "sort";
  op.doc = text(
      "The values along the last axis in their order.\n"
      "  out[..., i] = x[..., argsort(x)[..., i]]\n",
      kOrder,
      "shapes: x of rank 1 or more -> out of the same shape\n"
      "dtypes: all -> the same\n"
      "defaults: direction = \"ASCENDING\"\n"
      "errors: another direction; a scalar");
  op.inputs = {{"x"}};
  op.outputs = {"out", "indices"};
  op.attrs = {direction_attr()};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    check_rows(call);
    return {call.type(0), {DType::Int64, call.shape(0)}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const TensorType x = g.type(g.inputs[0]);
    if (!is_floating(x.dtype)) return {kNone};
    return {g.op("dim_gather_grad", {g.grads[0], g.outputs[1]}, {{"dim", int64_t{-1}}, {"size", x.shape.back()}})};
  };
  op.cpu = {[](KernelCall& call) { return prepare_order(call, Ordering(call)); }};
  op.examples = {{{f32({2, 7})}},          {{f32({5})}, kFalling},           {{f32({2, 2, 9})}, kFalling},
                 {{i32({3, 140})}},        {{{DType::Int8, {9}}}, kFalling}, {{{DType::UInt8, {2, 5}}}},
                 {{{DType::Int64, {130}}}}};
  catalog.add(op);
}

void add_sort_values(Catalog& catalog) {
  OpDef op;
  op.name = "sort_values";
  op.doc =
      text("What sort gives first, without the places: in less time and memory. For arrays. No gradient.\n", kOrder,
           "shapes: x of rank 1 or more -> out of the same shape\n"
           "dtypes: all -> the same");
  op.inputs = {{"x"}};
  op.attrs = {direction_attr()};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    check_rows(call);
    return {call.type(0)};
  };
  op.cpu = {[](KernelCall& call) { return prepare_order(call, Ordering::of_values(call)); }};
  op.examples = {{{f32({2, 7})}},
                 {{{DType::Float64, {2, 130}}}, kFalling},
                 {{i32({3, 140})}},
                 {{{DType::Int8, {9}}}, kFalling},
                 {{{DType::UInt8, {2, 500}}}},
                 {{{DType::Int64, {130}}}}};
  catalog.add(op);
}

void add_order_statistics(Catalog& catalog) {
  OpDef op;
  op.name = "order_statistics";
  op.doc = text(
      "The values along the last axis that stand at these places in their order: in less time than all of them. For "
      "arrays. No gradient.\n"
      "  out[..., i] = sort(x)[..., places[i]]\n",
      kOrder,
      "shapes: x of rank 1 or more -> out of the same shape, the last axis as long as the places\n"
      "dtypes: all -> the same\n"
      "errors: places that are none of the last axis or do not ascend; a scalar");
  op.inputs = {{"x"}};
  op.attrs = {{"places", Ints{}, "counted from 0, each above the one before it", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    check_rows(call);
    Shape shape = call.shape(0);
    int64_t last = -1;
    for (const int64_t place : call.attrs.ints("places")) {
      require(place > last && place < shape.back(), ErrorCode::OutOfRange, "place ", place,
              " does not ascend within [0, ", shape.back(), "), the last axis of x ", shape);
      last = place;
    }
    shape[shape.rank() - 1] = static_cast<int64_t>(call.attrs.ints("places").size());
    return {{call.dtype(0), shape}};
  };
  op.cpu = {[](KernelCall& call) {
    Ordering o = Ordering::of_values(call);
    o.descending = false;
    return prepare_order(call, o, call.attrs.ints("places"));
  }};
  op.on_host = true;  // where arrays are
  op.examples = {{{f32({2, 7})}, {{"places", Ints{0, 3}}}},
                 {{{DType::Float64, {2, 130}}}, {{"places", Ints{64, 65, 129}}}},
                 {{i32({3, 1400})}, {{"places", Ints{700}}}},
                 {{{DType::UInt8, {9}}}, {{"places", Ints{8}}}}};
  catalog.add(op);
}

void add_argsort(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "argsort";
  op.doc = text("The places of the values along the last axis in their order, counted from 0. No gradient.\n", kOrder,
                "shapes: x of rank 1 or more -> out of the same shape\n"
                "dtypes: all -> int64\n"
                "defaults: direction = \"ASCENDING\"\n"
                "errors: another direction; a scalar");
  op.inputs = {{"x"}};
  op.attrs = {direction_attr()};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    check_rows(call);
    return {{DType::Int64, call.shape(0)}};
  };
  op.cpu = {[](KernelCall& call) { return prepare_order(call, Ordering(call)); }};
  op.examples = {{{f32({3, 6})}}, {{f32({4})}, kFalling}, {{i32({2, 200})}, kFalling}, {{{DType::UInt8, {7}}}}};
  catalog.add(op);
}

void add_top_k(Catalog& catalog) {
  OpDef op;
  op.name = "top_k";
  op.lua = "math.top_k";
  op.doc = text(
      "The places of the k largest values along the last axis, the largest first, counted from 0.\n"
      "No gradient; dim_gather gives the values, with theirs.\n",
      kOrder,
      "shapes: x (3, 10) with k = 5 -> out (3, 5)\n"
      "dtypes: all -> int64\n"
      "defaults: k = 1, sorted = true\n"
      "errors: k outside [1, x.shape[-1]]; a scalar");
  op.inputs = {{"x"}};
  op.attrs = {{"k", int64_t{1}, "how many"},
              {"sorted", true, "false permits any order, as in the original; they are in order all the same"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    check_rows(call);
    Shape shape = call.shape(0);
    const int64_t k = call.attrs.integer("k");
    require(k >= 1 && k <= shape.back(), ErrorCode::OutOfRange, "k is ", k, ", the last axis of x ", shape, " has ",
            shape.back(), " values; k must be in [1, ", shape.back(), "]");
    shape[shape.rank() - 1] = k;
    return {{DType::Int64, shape}};
  };
  op.cpu = {[](KernelCall& call) { return prepare_order(call, Ordering(call)); }};
  op.examples = {{{f32({3, 6})}, {{"k", int64_t{2}}}},
                 {{f32({2, 2, 90})}, {{"k", int64_t{5}}}},
                 {{i32({40})}, {{"k", int64_t{40}}, {"sorted", false}}},
                 {{{DType::Int8, {2, 100}}}, {}}};
  catalog.add(op);
}

// ---- picks_by_row ----------------------------------------------------------------------------------------------

Launch prepare_picks(KernelCall& call) {
  const Shape indices = call.inputs[0].shape;
  const int64_t rows = call.attrs.integer("rows");
  const Launch order = prepare_order(call, Ordering::of_all(indices));
  return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
    return [=](const LaunchCall& at) {
      const auto* const given = at.input<decltype(zero)>(0);
      for (int64_t i = 0, count = indices.count(); i < count; ++i) {
        const int64_t index = static_cast<int64_t>(given[i]);
        if (index < 0 || index >= rows) fail_index(indices, i, index, rows);
      }
      order(at);
    };
  });
}

void add_picks_by_row(Catalog& catalog) {
  OpDef op;
  op.name = "picks_by_row";
  op.doc =
      "The places of indices, counted from 0 through all of them, in the order of the rows they name; those of one\n"
      "row keep their order. So what is to happen to a row is found side by side. Made by fusion and by LazyAdam.\n"
      "shapes: indices of any shape, n of them -> order (n)\n"
      "dtypes: indices of an integer dtype -> int64\n"
      "errors: an index outside [0, rows) names its position";
  op.inputs = {{"indices"}};
  op.outputs = {"order"};
  op.attrs = {{"rows", int64_t{0}, "of what is indexed", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 0, "indices");
    require(call.shape(0).count() < order::kMostPlaces, ErrorCode::OutOfRange, "indices ", call.shape(0),
            " are more than ", order::kMostPlaces - 1);
    return {{DType::Int64, {call.shape(0).count()}}};
  };
  op.cpu = {prepare_picks};
  op.examples = {{{i32({2, 3})}, {{"rows", int64_t{4}}}},
                 {{{DType::Int64, {300}}}, {{"rows", int64_t{100}}}, 0, 1, 100},
                 {{{DType::UInt8, {}}}, {{"rows", int64_t{4}}}}};
  catalog.add(op);
}

}  // namespace

void add_sort(Catalog& catalog) {
  add_sort_op(catalog);
  add_sort_values(catalog);
  add_argsort(catalog);
  add_order_statistics(catalog);
  add_top_k(catalog);
  add_picks_by_row(catalog);
  add_ranks(catalog);
}

}  // namespace moonflow
