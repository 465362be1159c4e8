// Ops about the order of values along the last axis: sort, argsort, top_k and in_top_k, search_sorted for what has a
// place in that order, and picks_by_row for those who go through indices in the order of what they name. The order, in
// sort.h, leaves no two elements alike, so the results are the same for any number of threads and on any device.
//
// A row is sorted by the digits of its keys, from the last to the first (a radix sort), and a few of a long row are
// picked through a heap of the best so far. Rows go to threads; where there are fewer rows than threads, a row is cut
// up, and its parts are merged.
#include "kernels/sort.h"

#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
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
void rank(const T* row, int64_t first, int64_t last, bool descending, Key<T>* to) {
  for (int64_t i = first; i < last; ++i) *to++ = order::ranked(row[i], i, descending).key;
}

template <class K>
K key_in(const Ranked<K>& element) {
  return element.key;
}
template <class K>
std::enable_if_t<std::is_unsigned_v<K>, K> key_in(K key) {
  return key;
}

// Sorts elements that are in the order of their places, with room for as many again; gives where they are then.
template <class Element>
Element* sort_elements(Element* elements, Element* room, int64_t count) {
  constexpr int64_t kFew = 96;  // the digits' counts alone cost more
  if (count <= kFew) {
    std::sort(elements, elements + count, Before());
    return elements;
  }
  constexpr int kDigits = sizeof(key_in(Element())), kValues = 256;
  uint32_t starts[kDigits][kValues] = {};
  for (int64_t i = 0; i < count; ++i)
    for (int digit = 0; digit < kDigits; ++digit) ++starts[digit][key_in(elements[i]) >> 8 * digit & 0xff];
  for (int digit = 0; digit < kDigits; ++digit) {
    const auto value = [digit](const Element& element) { return key_in(element) >> 8 * digit & 0xff; };
    uint32_t* const start = starts[digit];
    if (start[value(elements[0])] == count) continue;  // all are alike in this one
    uint32_t sum = 0;
    for (int v = 0; v < kValues; ++v) {
      const uint32_t own = start[v];
      start[v] = sum;
      sum += own;
    }
    for (int64_t i = 0; i < count; ++i) room[start[value(elements[i])]++] = elements[i];
    std::swap(elements, room);
  }
  return elements;
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

  explicit Shares(const Ordering& o) {
    const int64_t threads = cpu::threads();
    selects = o.kept <= o.length / 16;
    const int64_t least_part = std::max<int64_t>(1 << 15, selects ? 4 * o.kept : 1);
    parts = o.rows >= threads ? 1 : std::clamp<int64_t>(o.length / least_part, 1, threads / o.rows);
    const int64_t workers = std::clamp<int64_t>(o.rows * o.length / cpu::kGrain, 1, threads);
    slots = parts > 1 ? o.rows : std::min(workers, o.rows);
  }
  // Elements of a slot.
  int64_t room(const Ordering& o) const { return selects ? parts * o.kept : 2 * o.length; }
};

// Of a T, in elements with places or in keys alone.
template <class T, class Element>
struct OrderRows {
  Ordering o;
  Shares shares;

  void operator()(const LaunchCall& at) const {
    const T* const x = at.input<T>(0);
    Element* const scratch = static_cast<Element*>(at.scratch);
    if (shares.parts > 1) {
      for (int64_t row = 0; row < o.rows; ++row) cut_up(at, x, row, scratch + row * shares.room(o));
      return;
    }
    cpu::parallel_for(shares.slots, 1, [&](int64_t first, int64_t last) {
      for (int64_t slot = first; slot < last; ++slot) {
        Element* const own = scratch + slot * shares.room(o);
        for (int64_t row = o.rows * slot / shares.slots; row < o.rows * (slot + 1) / shares.slots; ++row)
          write(at, row, ordered(x + row * o.length, own), 0, o.kept);
      }
    });
  }

 private:
  static constexpr bool kHasPlaces = !std::is_same_v<Element, Key<T>>;

  const Element* ordered(const T* row, Element* own) const {
    if constexpr (kHasPlaces) {
      if (shares.selects) return select(row, 0, o.length, o.descending, o.kept, own), own;
    }
    rank(row, 0, o.length, o.descending, own);
    return sort_elements(own, own + o.length, o.length);
  }

  void write(const LaunchCall& at, int64_t row, const Element* elements, int64_t first, int64_t last) const {
    int64_t* const places = o.places(at);
    T* const values = o.values<T>(at);
    const int64_t start = row * o.kept;
    if constexpr (kHasPlaces) {
      const T* const from = at.input<T>(0) + row * o.length;
      for (int64_t i = first; places && i < last; ++i) places[start + i] = elements[i].place;
      for (int64_t i = first; values && i < last; ++i) values[start + i] = from[elements[i].place];
    } else {
      const Key<T> turned = o.descending ? ~Key<T>(0) : Key<T>(0);
      for (int64_t i = first; i < last; ++i) values[start + i] = order::value_of<T>(elements[i] ^ turned);
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
      const int64_t first = begin(part), count = begin(part + 1) - first;
      rank(values, first, first + count, o.descending, from + first);
      const Element* const sorted = sort_elements(from + first, to + first, count);
      if (sorted != from + first) std::copy(sorted, sorted + count, from + first);
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

Launch prepare_order(KernelCall& call, const Ordering& o) {
  if (o.rows == 0 || o.length == 0) return [](const LaunchCall&) {};
  return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using K = Key<T>;
    const Shares shares(o);
    const int64_t elements = checked_product(shares.slots, shares.room(o));
    call.scratch_bytes = checked_product(elements, sizeof(Ranked<K>));
    const OrderRows<T, Ranked<K>> with_places{o, shares};
    if (o.gives_places) return with_places;
    return [with_places, of_keys = OrderRows<T, K>{o, shares}](const LaunchCall& at) {
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

// ---- search_sorted ---------------------------------------------------------------------------------------------

// How many of `count` values in their order come before each of n others: by bisection, of a block of them at a time,
// so that the memory is asked for many at once. A NaN is above all numbers.
template <class T, class ComesBefore>
void search(const T* sorted, int64_t count, const T* values, int64_t n, int64_t* places, ComesBefore comes_before) {
  constexpr int64_t kBlock = 32;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t many = std::min(kBlock, n - start);
    const T* const x = values + start;
    int64_t* const at = places + start;
    std::fill_n(at, many, 0);
    for (int64_t rest = count; rest > 0; rest -= rest > 1 ? rest / 2 : 1) {
      const int64_t step = rest > 1 ? rest / 2 : 1;
      for (int64_t i = 0; i < many; ++i)
        at[i] += step & -static_cast<int64_t>(comes_before(sorted[at[i] + step - 1], x[i]));
    }
  }
}

Launch prepare_search(KernelCall& call) {
  const int64_t count = call.inputs[0].count(), values = call.inputs[1].count();
  const bool right = call.attrs.flag("right");
  return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const T *const sorted = at.input<T>(0), *const x = at.input<T>(1);
      int64_t* const places = at.output<int64_t>(0);
      cpu::parallel_for(values, cpu::kGrain / 16, [=](int64_t first, int64_t last) {
        const auto look = [=](auto comes_before) {
          cpu::widest([=] { search(sorted, count, x + first, last - first, places + first, comes_before); });
        };
        // By bits, as above, since of truths branches would be made that nobody foretells.
        if (right)
          look([](T own, T other) { return (own <= other) | (other != other); });
        else
          look([](T own, T other) { return (own < other) | ((other != other) & (own == own)); });
      });
    };
  });
}

void add_search_sorted(Catalog& catalog) {
  OpDef op;
  op.name = "search_sorted";
  op.doc =
      "How many of sorted values come before each of x, with `right` those equal to it too. A NaN is above "
      "all others.\n"
      "For arrays. No gradient.\n"
      "shapes: sorted (n), x of any shape -> out of the shape of x\n"
      "dtypes: sorted and x of one dtype, any -> int64";
  op.inputs = {{"sorted"}, {"x"}};
  op.attrs = {{"right", false, "whether what equals x comes before it"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require(call.shape(0).rank() == 1 && call.dtype(0) == call.dtype(1), ErrorCode::ShapeMismatch, "sorted is ",
            call.type(0), ", x is ", call.type(1), "; wanted (n), and one dtype");
    return {{DType::Int64, call.shape(1)}};
  };
  op.cpu = {prepare_search};
  op.on_host = true;  // where arrays are
  op.examples = {{{f32({1}), f32({2, 3})}},
                 {{{DType::Float64, {1}}, {DType::Float64, {40}}}, {{"right", true}}},
                 {{{DType::Int64, {1}}, {DType::Int64, {5}}}},
                 {{{DType::UInt8, {1}}, {DType::UInt8, {}}}, {{"right", true}}},
                 {{i32({0}), i32({5})}}};
  catalog.add(op);
}

// ---- in_top_k --------------------------------------------------------------------------------------------------

// How many of a row come before the one at `target` when the largest comes first.
template <class T>
int64_t count_before(const T* row, int64_t length, int64_t target) {
  int64_t count = 0;
  const Key<T> own = order::key_of(row[target]);
  cpu::widest([&] {
    int64_t ahead = 0;
    for (int64_t i = 0; i < target; ++i) ahead += order::key_of(row[i]) >= own;
    for (int64_t i = target + 1; i < length; ++i) ahead += order::key_of(row[i]) > own;
    count = ahead;
  });
  return count;
}

Launch prepare_in_top_k(KernelCall& call) {
  const int64_t rows = call.inputs[1].shape[0], classes = call.inputs[1].shape[1], k = call.attrs.integer("k");
  call.scratch_bytes = checked_product(rows, sizeof(int64_t));
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=, target_dtype = call.inputs[0].dtype](const LaunchCall& at) {
      int64_t* const targets = static_cast<int64_t*>(at.scratch);
      visit(target_dtype, [&](auto target_zero) {
        const auto* given = at.input<decltype(target_zero)>(0);
        for (int64_t row = 0; row < rows; ++row) {
          targets[row] = static_cast<int64_t>(given[row]);
          if (targets[row] < 0 || targets[row] >= classes) fail_label(row, targets[row], classes);
        }
      });
      const T* const x = at.input<T>(1);
      int8_t* const out = at.output<int8_t>(0);
      cpu::parallel_for(rows, cpu::kGrain / std::max<int64_t>(classes, 1) + 1, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
          out[row] = count_before(x + row * classes, classes, targets[row]) < k;
      });
    };
  });
}

void add_in_top_k(Catalog& catalog) {
  OpDef op;
  op.name = "in_top_k";
  op.lua = "math.in_top_k";
  op.doc =
      "Whether the target of each row is among the k largest predictions. No gradient.\n"
      "  out[i] = 1 where targets[i] is in top_k(predictions[i], k), else 0\n"
      "So of predictions that are equal the first ones count as larger, as they do for argmax.\n"
      "shapes: targets (rows), predictions (rows, classes) -> out (rows)\n"
      "dtypes: targets of an integer dtype; predictions float32, float64 -> int8\n"
      "errors: k below 1; targets and predictions differ in rows; a target outside [0, classes) names its row";
  op.inputs = {{"targets"}, {"predictions"}};
  op.attrs = {{"k", int64_t{1}, "how many of the largest", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_labels(call, 0, "targets", 1, "predictions");
    require_floating(call, 1, "predictions");
    require(call.shape(1).rank() == 2 && call.shape(0) == Shape{call.shape(1)[0]}, ErrorCode::ShapeMismatch,
            "targets are ", call.shape(0), ", predictions are ", call.shape(1), "; wanted (rows) and (rows, classes)");
    require(call.attrs.integer("k") >= 1, ErrorCode::OutOfRange, "k is ", call.attrs.integer("k"),
            ", it must be at least 1");
    return {{DType::Int8, call.shape(0)}};
  };
  op.cpu = {prepare_in_top_k};
  op.examples = {{{i32({6}), f32({6, 4})}, {{"k", int64_t{2}}}},
                 {{{DType::Int64, {3}}, f32({3, 40})}, {{"k", int64_t{9}}}}};
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
  add_top_k(catalog);
  add_search_sorted(catalog);
  add_in_top_k(catalog);
  add_picks_by_row(catalog);
}

}  // namespace moonflow
