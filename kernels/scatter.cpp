// Ops whose indices name single places, by coordinates or along an axis: what is read there (gather_nd, dim_gather),
// and what is put there (scatter_nd, tensor_scatter_nd_add, tensor_scatter_nd_update, unsorted_segment_sum and
// unsorted_segment_max). An index out of bounds is an error that names its position, found before anything is written.
// What several picks name is summed, or replaced, in the order of the picks, on any device and by any number of
// threads.
#include "kernels/scatter.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/boxes.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/elementwise.h"
#include "kernels/scatter_assign.h"
#include "kernels/types.h"

namespace moonflow {
namespace cpu {
namespace {

void lower(std::atomic<int64_t>& to, int64_t value) {
  int64_t known = to;
  while (value < known && !to.compare_exchange_weak(known, value)) {
  }
}

// Indices are looked through before anything is made of them, which takes little time by itself.
template <class Index>
void check_rows(const PickedRows& p, const Shape& indices, const Index* index_at) {
  constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> bad{kNothing};  // the first one
  // As unsigned numbers, of which those below 0 are large ones.
  using Place = std::conditional_t<(sizeof(Index) < 4), uint32_t, std::make_unsigned_t<Index>>;
  const auto is_bad = [=](int64_t i, int64_t bound) {
    constexpr int64_t kMost = std::numeric_limits<Index>::max();
    return Place{std::make_unsigned_t<Index>(index_at[i])} > static_cast<Place>(std::min(bound - 1, kMost));
  };
  const int64_t length = p.length;
  parallel_for(p.tuples(), kGrain, [&](int64_t first, int64_t last) {
    Place any_bad = 0;
    const auto look_through = [&, is_bad](int64_t axis, auto stride) {
      widest([&any_bad, is_bad, first, last, axis, stride, bound = p.bounds[axis]] {
        Place any = bound == 0;
        for (int64_t i = first; i < last; ++i) any |= is_bad(i * stride + axis, bound);
        any_bad |= any;
      });
    };
    if (length == 1)
      look_through(0, std::integral_constant<int64_t, 1>());
    else
      for (int64_t axis = 0; axis < length; ++axis) look_through(axis, length);
    for (int64_t i = first * length; any_bad != 0 && i < last * length; ++i) {
      const int64_t bound = p.bounds[i % length];
      if (bound == 0 || is_bad(i, bound)) return lower(bad, i);
    }
  });
  if (bad != kNothing) fail_index(p, indices, bad, static_cast<int64_t>(index_at[bad]));
}

// Calls take(pick, row) for picks [first, last) of all blocks, whose rows are counted on by `apart` from block to
// block.
template <class Index, class Take>
void each_row(const PickedRows& p, int64_t apart, const Index* index_at, int64_t first, int64_t last,
              const Take& take) {
  const int64_t picks = p.picks, span = p.within, length = p.length;
  int64_t block = first / picks * apart, pick = first % picks;
  for (int64_t end; first < last; first = end, block += apart, pick = 0) {
    end = std::min(first + picks - pick, last);
    const Index* at = index_at + (p.shared ? pick : first) * length;
    if (length == 1 && span == 1) {  // whose step is 1
      for (int64_t i = first; i < end; ++i, ++at) take(i, block + static_cast<int64_t>(*at));
      continue;
    }
    for (int64_t i = first, within = pick % span; i < end; ++i, at += length) {
      int64_t row = block + within;
      for (int64_t axis = 0; axis < length; ++axis) row += static_cast<int64_t>(at[axis]) * p.steps[axis];
      take(i, row);
      if (++within == span) within = 0;
    }
  }
}

// Calls f with a value of the integers' dtype.
template <class F>
void visit_indices(DType dtype, const F& f) {
  visit(dtype, [&](auto zero) {
    if constexpr (std::is_integral_v<decltype(zero)>) f(zero);
  });
}

}  // namespace

void find_rows(const PickedRows& p, const TensorType& indices, const void* given, int64_t* rows) {
  visit_indices(indices.dtype, [&](auto zero) {
    const auto* const index_at = static_cast<const decltype(zero)*>(given);
    check_rows(p, indices.shape, index_at);
    parallel_for(p.tuples(), kGrain, [&](int64_t first, int64_t last) {
      each_row(p, 0, index_at, first, last, [=](int64_t i, int64_t row) { rows[i] = row; });
    });
  });
}

namespace {

// The rows that picks name, as a launch finds them in the indices: written to the step's scratch.
class NamedRows {
 public:
  NamedRows(KernelCall& call, const PickedRows& places, int input)
      : places_(places), indices_(call.inputs[input]), input_(input) {
    call.scratch_bytes = checked_product(places.tuples(), sizeof(int64_t));
  }

  void find(const LaunchCall& at) const {
    find_rows(places_, indices_, at.inputs[input_], static_cast<int64_t*>(at.scratch));
  }
  // By pick.
  const int64_t* of_block(const LaunchCall& at, int64_t block) const {
    return static_cast<const int64_t*>(at.scratch) + (places_.shared ? 0 : block * places_.picks);
  }

 private:
  PickedRows places_;
  TensorType indices_;
  int input_;
};

// Moves rows of `units` values of T.
template <class T>
Launch take_units(const PickedRows& p, const TensorType& indices, int input, int64_t units) {
  return [=](const LaunchCall& at) {
    const T* const value = at.input<T>(0);
    T* const out = at.output<T>(0);
    visit_indices(indices.dtype, [&](auto zero) {
      const auto* const index_at = static_cast<const decltype(zero)*>(at.inputs[input]);
      check_rows(p, indices.shape, index_at);
      if (units == 0) return;
      parallel_for(p.blocks * p.picks, kGrain / units + 1, [&](int64_t first, int64_t last) {
        const auto take = [&](const auto& move) { each_row(p, p.rows, index_at, first, last, move); };
        if (units == 1)
          take([=](int64_t i, int64_t row) { out[i] = value[row]; });
        else
          take([=](int64_t i, int64_t row) { std::memcpy(out + i * units, value + row * units, units * sizeof(T)); });
      });
    });
  };
}

template <class T, Into into>
class ScatterRows {
 public:
  ScatterRows(KernelCall& call, const PickedRows& places, int initial, int indices, int updates)
      : p_(places),
        named_(call, places, indices),
        initial_(initial),
        updates_(updates),
        empty_(call.outputs[0].count() == 0) {}

  // Threads share out the columns, or else the rows, and each goes through all picks of a block in order: no two write
  // the same place, and every sum has one order.
  void operator()(const LaunchCall& at) const {
    named_.find(at);
    if (empty_) return;  // of however many rows
    if (p_.inner >= 16 * threads()) {
      const int64_t work_of_column = p_.rows + p_.picks;
      parallel_for(p_.blocks * p_.inner, kGrain / (work_of_column + 1) + 1, [&](int64_t first, int64_t last) {
        for_each_block(first, last, p_.inner, [&](int64_t block, int64_t column, int64_t end) {
          scatter(at, block, {0, p_.rows}, {column, end});
        });
      });
    } else {
      const int64_t work_of_row = p_.inner + p_.inner * p_.picks / std::max<int64_t>(p_.rows, 1);
      parallel_for(p_.blocks * p_.rows, kGrain / (work_of_row + 1) + 1, [&](int64_t first, int64_t last) {
        for_each_block(first, last, p_.rows, [&](int64_t block, int64_t row, int64_t end) {
          scatter(at, block, {row, end}, {0, p_.inner});
        });
      });
    }
  }

 private:
  struct Span {
    int64_t first, last;
  };

  // Cuts [first, last) at the ends of blocks of `size`.
  template <class Work>
  static void for_each_block(int64_t first, int64_t last, int64_t size, const Work& work) {
    while (first < last) {
      const int64_t block = first / size, begin = first % size, end = std::min(size, begin + last - first);
      work(block, begin, end);
      first += end - begin;
    }
  }

  void scatter(const LaunchCall& at, int64_t block, Span rows, Span columns) const {
    const int64_t inner = p_.inner, width = columns.last - columns.first;
    T* const out = at.output<T>(0) + block * p_.rows * inner + columns.first;
    const T* const initial = initial_ < 0 ? nullptr : at.input<T>(initial_) + block * p_.rows * inner + columns.first;
    if (initial != out) {
      for (int64_t row = rows.first; row < rows.last; ++row) {
        if (initial)
          std::copy_n(initial + row * inner, width, out + row * inner);
        else
          std::fill_n(out + row * inner, width, unpicked<into, T>());
      }
    }
    const T* from = at.input<T>(updates_) + block * p_.picks * inner + columns.first;
    const int64_t* const named = named_.of_block(at, block);
    for (int64_t pick = 0; pick < p_.picks; ++pick, from += inner) {
      if (named[pick] < rows.first || named[pick] >= rows.last) continue;
      T* const to = out + named[pick] * inner;
      for (int64_t c = 0; c < width; ++c) to[c] = taken_in<into>(to[c], from[c]);
    }
  }

  PickedRows p_;
  NamedRows named_;
  int initial_, updates_;
  bool empty_;
};

}  // namespace

Launch take_rows(KernelCall& call, const PickedRows& places, int input) {
  const TensorType& indices = call.inputs[input];
  const int64_t row_bytes = places.inner * size_of(call.inputs[0].dtype);
  if (row_bytes % 8 == 0) return take_units<uint64_t>(places, indices, input, row_bytes / 8);
  if (row_bytes % 4 == 0) return take_units<uint32_t>(places, indices, input, row_bytes / 4);
  if (row_bytes % 2 == 0) return take_units<uint16_t>(places, indices, input, row_bytes / 2);
  return take_units<uint8_t>(places, indices, input, row_bytes);
}

Launch scatter_rows(KernelCall& call, const PickedRows& places, Into into, int initial, int indices, int updates) {
  return visit(call.inputs[updates].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    if (into == Into::Sum) return ScatterRows<T, Into::Sum>(call, places, initial, indices, updates);
    if (into == Into::Max) return ScatterRows<T, Into::Max>(call, places, initial, indices, updates);
    return ScatterRows<T, Into::Replaced>(call, places, initial, indices, updates);
  });
}

}  // namespace cpu

namespace {

const char* const kIndexError = "an index out of bounds names its position, nothing is written";

// ---- coordinates -----------------------------------------------------------------------------------------------

// The shape of the rows of `value` that the input `i`, indices, names.
Shape rows_named(const OpCall& call, const Shape& value, int i) {
  require_indices(call, i, "indices");
  const Shape& indices = call.shape(i);
  require(indices.rank() > 0, ErrorCode::ShapeMismatch, "indices are a scalar; their last axis holds coordinates");
  require(indices.back() >= 1 && indices.back() <= value.rank(), ErrorCode::ShapeMismatch, "indices ", indices,
          " hold ", indices.back(), " coordinates each, wanted 1 to ", value.rank(), " for the axes of ", value);
  Shape rows(indices.begin(), indices.end() - 1);
  for (int axis = static_cast<int>(indices.back()); axis < value.rank(); ++axis) rows.push_back(value[axis]);
  return rows;
}

void require_updates(const OpCall& call, const Shape& value, int indices, int updates) {
  const Shape wanted = rows_named(call, value, indices);
  require(call.shape(updates) == wanted, ErrorCode::ShapeMismatch, "updates are ", call.shape(updates), ", indices ",
          call.shape(indices), " name rows of ", value, " that are ", wanted, " together");
}

void add_gather_nd(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "gather_nd";
  op.doc = text(
      "Rows of params picked by coordinates.\n"
      "  out[i..., b...] = params[indices[i..., 0], ..., indices[i..., m - 1], b...]\n"
      "shapes: params (4, 5, 3), indices (7, 2) -> out (7, 3)\n"
      "  the last axis of indices has one coordinate for each of the leading axes of params\n"
      "dtypes: params any -> the same; indices of an integer dtype\n"
      "errors: more coordinates than axes; ",
      kIndexError);
  op.inputs = {{"params"}, {"indices"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    return {{call.dtype(0), rows_named(call, call.shape(0), 1)}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const TensorType params = g.type(g.inputs[0]);
    if (!is_floating(params.dtype)) return {kNone, kNone};
    return {g.op("scatter_nd", {g.inputs[1], g.grads[0]}, {{"shape", params.shape.dims()}}), kNone};
  };
  op.cpu = {[](KernelCall& call) {
    return cpu::take_rows(call, PickedRows::of_tuples(call.inputs[0].shape, call.inputs[1].shape), 1);
  }};
  op.narrow.in_kernels = true;
  op.examples = {{{f32({4, 5, 3}), i32({2, 3, 2})}},
                 {{f32({4, 6}), i32({5, 1})}},
                 {{f32({4, 4}), {DType::Int64, {2}}}},
                 {{{DType::Int8, {4, 3}}, {DType::UInt8, {3, 1}}}}};
  catalog.add(op);
}

void add_scatter_nd(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "scatter_nd";
  op.doc = text(
      "Zeros to which rows are added at coordinates.\n"
      "  out[indices[i..., 0], ..., indices[i..., m - 1], b...] += updates[i..., b...], in the order of i\n"
      "shapes: indices (7, 2), updates (7, 3), shape = {4, 5, 3} -> out (4, 5, 3)\n"
      "dtypes: indices of an integer dtype; updates any -> the same; integers wrap around\n"
      "errors: updates that are not rows of `shape`, one for each tuple of coordinates;\n        ",
      kIndexError);
  op.inputs = {{"indices"}, {"updates"}};
  op.attrs = {{"shape", Ints{}, "sizes of the result", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const Shape shape = checked_shape(call.attrs);
    require_updates(call, shape, 0, 1);
    return {{call.dtype(1), shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    if (!is_floating(g.type(g.inputs[1]).dtype)) return {kNone, kNone};
    return {kNone, g.op("gather_nd", {g.grads[0], g.inputs[0]})};
  };
  op.cpu = {[](KernelCall& call) {
    const PickedRows places = PickedRows::of_tuples(call.outputs[0].shape, call.inputs[0].shape);
    return cpu::scatter_rows(call, places, Into::Sum, -1, 0, 1);
  }};
  op.examples = {{{i32({3, 2}), f32({3, 2})}, {{"shape", Ints{4, 5, 2}}}},
                 {{i32({9, 1}), f32({9, 40})}, {{"shape", Ints{4, 40}}}},
                 {{{DType::Int64, {6, 1}}, i32({6})}, {{"shape", Ints{4}}}},
                 {{i32({2, 3, 1}), {DType::Int8, {2, 3}}}, {{"shape", Ints{4}}}}};
  catalog.add(op);
}

// The gradient of updates that were put somewhere: of several with one place only the last one's arrived.
ValueId grad_of_last_updates(GradCall& g) {
  const ValueId indices = g.inputs[1];
  const Shape params = g.type(g.inputs[0]).shape, tuples = g.type(indices).shape;
  const Shape picks(tuples.begin(), tuples.end() - 1);
  const ValueId count =
      g.op("range", {}, {{"start", 0.0}, {"stop", static_cast<double>(picks.count())}, {"dtype", DType::Int64}});
  const ValueId numbers = g.op("reshape", {count}, {{"shape", picks.dims()}});
  const Ints rows(params.begin(), params.begin() + tuples.back());
  const ValueId nobody = g.op("constant", {}, {{"value", 0.0}, {"dtype", DType::Int64}, {"shape", rows}});
  const ValueId last = g.op("tensor_scatter_nd_update", {nobody, indices, numbers});
  const ValueId is_last = g.op("equal", {g.op("gather_nd", {last, indices}), numbers});
  Ints beside_rows = picks.dims();
  beside_rows.resize(g.type(g.inputs[2]).shape.rank(), 1);
  const ValueId zero = g.op("constant", {}, {{"value", 0.0}, {"dtype", g.type(g.grads[0]).dtype}});
  return g.op("where",
              {g.op("reshape", {is_last}, {{"shape", beside_rows}}), g.op("gather_nd", {g.grads[0], indices}), zero});
}

void add_tensor_scatter_nd(Catalog& catalog, Into into) {
  const bool sums = into == Into::Sum;
  OpDef op;
  op.name = op.lua = sums ? "tensor_scatter_nd_add" : "tensor_scatter_nd_update";
  op.doc = text(sums ? "params with rows added at coordinates.\n"
                     : "params with other rows at coordinates; of several for one place the last one stays.\n",
                "  out = params, then out[indices[i..., 0], ..., indices[i..., m - 1], b...] ", sums ? "+=" : "=",
                " updates[i..., b...], in the order of i\n"
                "shapes: params (4, 5, 3), indices (7, 2), updates (7, 3) -> out (4, 5, 3)\n"
                "dtypes: params and updates of one dtype, any -> the same",
                sums ? "; integers wrap around" : "",
                "; indices of an integer dtype\n"
                "errors: two dtypes; updates that are not rows of params, one for each tuple of coordinates;\n        ",
                kIndexError);
  op.inputs = {{"params"}, {"indices"}, {"updates"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_updates(call, call.shape(0), 1, 2);
    require(call.dtype(0) == call.dtype(2), ErrorCode::DtypeMismatch, "params are ", call.type(0), ", updates are ",
            call.type(2), "; cast one of them");
    return {call.type(0)};
  };
  op.grad = [sums](GradCall& g) -> std::vector<ValueId> {
    if (!is_floating(g.type(g.inputs[0]).dtype)) return {kNone, kNone, kNone};
    const ValueId dy = g.grads[0], indices = g.inputs[1];
    if (sums) return {dy, kNone, g.op("gather_nd", {dy, indices})};
    const ValueId zeros = g.op("zeros_like", {g.inputs[2]});
    return {g.op("tensor_scatter_nd_update", {dy, indices, zeros}), kNone, grad_of_last_updates(g)};
  };
  op.cpu = {[into](KernelCall& call) {
    const PickedRows places = PickedRows::of_tuples(call.inputs[0].shape, call.inputs[1].shape);
    return cpu::scatter_rows(call, places, into, 0, 1, 2);
  }};
  op.inplace = {{0, 0}};
  op.examples = {{{f32({4, 4, 2}), i32({5, 2}), f32({5, 2})}},
                 {{f32({4, 40}), i32({6, 1}), f32({6, 40})}},
                 {{i32({4}), {DType::Int64, {2, 3, 1}}, i32({2, 3})}},
                 {{f32({4}), i32({1}), f32({})}}};
  catalog.add(op);
}

// ---- along an axis ---------------------------------------------------------------------------------------------

// What reaches each slice of `data` of a gradient by segments.
ValueId of_segments(GradCall& g, ValueId by_segment) {
  const int64_t axis = wrap_axis(g.attrs.integer("axis"), g.type(g.inputs[0]).shape.rank());
  return g.op("gather", {by_segment, g.inputs[1]}, {{"axis", axis}});
}

// Shared equally where several elements of a segment are the largest one.
ValueId grad_of_largest(GradCall& g) {
  const ValueId data = g.inputs[0];
  const ValueId chosen =
      g.op("cast", {g.op("equal", {data, of_segments(g, g.outputs[0])})}, {{"dtype", g.type(data).dtype}});
  const ValueId winners = g.op("unsorted_segment_sum", {chosen, g.inputs[1]}, g.attrs);
  return g.op("multiply", {chosen, of_segments(g, g.op("divide", {g.grads[0], winners}))});
}

void add_unsorted_segment(Catalog& catalog, Into into) {
  const bool sums = into == Into::Sum;
  OpDef op;
  op.name = sums ? "unsorted_segment_sum" : "unsorted_segment_max";
  op.lua = "math." + op.name;
  op.doc = text(
      sums ? "Sums of the slices of data that belong to one segment.\n"
             "  out[a..., s, b...] = sum of data[a..., i..., b...] over all i with segment_ids[i...] == s,\n"
             "  in the order of i; 0 where there are none\n"
           : "The largest elements of the slices of data that belong to one segment. A NaN wins; equal ones share the "
             "gradient.\n"
             "  out[a..., s, b...] = max of data[a..., i..., b...] over all i with segment_ids[i...] == s;\n"
             "  where there are none, -infinity, or an integer's least\n",
      "shapes: data (10, 4), segment_ids (10), num_segments = 3, axis = 0 -> out (3, 4)\n"
      "  segment_ids have the axes of data from `axis` on\n"
      "dtypes: data any -> the same",
      sums ? ", integers wrap around" : "",
      "; segment_ids of an integer dtype\n"
      "defaults: axis = 0\n"
      "errors: num_segments below 0; segment_ids that are not axes of data;\n        ",
      kIndexError);
  op.inputs = {{"data"}, {"segment_ids"}};
  op.attrs = {{"num_segments", int64_t{0}, "how many segments there are", true},
              {"axis", int64_t{0}, "the first axis of data that segment_ids go along; negative counts from the last"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 1, "segment_ids");
    const Shape &data = call.shape(0), &ids = call.shape(1);
    const int axis = wrap_axis(call.attrs.integer("axis"), data.rank());
    const int64_t segments = call.attrs.integer("num_segments");
    require(segments >= 0, ErrorCode::InvalidArgument, "num_segments must be at least 0, got ", segments);
    require(axis + ids.rank() <= data.rank() && std::equal(ids.begin(), ids.end(), data.begin() + axis),
            ErrorCode::ShapeMismatch, "segment_ids are ", ids, ", they must be axes of data ", data, " from axis ",
            axis, " on");
    Shape shape(data.begin(), data.begin() + axis);
    shape.push_back(segments);
    for (int a = axis + ids.rank(); a < data.rank(); ++a) shape.push_back(data[a]);
    return {{call.dtype(0), shape}};
  };
  op.grad = [sums](GradCall& g) -> std::vector<ValueId> {
    if (!is_floating(g.type(g.inputs[0]).dtype)) return {kNone, kNone};
    return {sums ? of_segments(g, g.grads[0]) : grad_of_largest(g), kNone};
  };
  op.cpu = {[into](KernelCall& call) {
    const int axis = wrap_axis(call.attrs.integer("axis"), call.inputs[0].shape.rank());
    const PickedRows places = PickedRows::on_axis(call.outputs[0].shape, call.inputs[1].shape, axis);
    return cpu::scatter_rows(call, places, into, -1, 1, 0);
  }};
  op.examples = {{{f32({7, 3}), i32({7})}, {{"num_segments", int64_t{5}}}},
                 {{f32({2, 3, 2, 3}), i32({3, 2})}, {{"num_segments", int64_t{4}}, {"axis", int64_t{1}}}},
                 {{i32({9}), {DType::UInt8, {9}}}, {{"num_segments", int64_t{4}}}},
                 {{{DType::Int8, {3, 5}}, i32({5})}, {{"num_segments", int64_t{4}}, {"axis", int64_t{-1}}}}};
  if (!sums) {  // with slices in each segment: of an infinity no difference can be taken
    op.examples[0] = {{f32({7, 3}), i32({7})}, {{"num_segments", int64_t{1}}}, -1, 1, 1};
    op.examples[1] = {{f32({2, 4, 4, 3}), i32({4, 4})}, {{"num_segments", int64_t{2}}, {"axis", int64_t{1}}}, -1, 1, 2};
  }
  catalog.add(op);
}

void add_dim_gather(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "dim_gather";
  op.doc = text(
      "Elements of x, each from its own place but for the axis `dim`, along which an index says where.\n"
      "  out[i, j, k] = x[i, index[i, j, k], k] for dim = 1\n"
      "In Lua also in the original's order: flow.dim_gather(x, dim, index).\n"
      "shapes: x (3, 10, 4), index (3, 5, 4) -> out (3, 5, 4); the other axes agree\n"
      "dtypes: x any -> the same; index of an integer dtype\n"
      "errors: shapes that differ along another axis; ",
      kIndexError);
  op.inputs = {{"x"}, {"index"}};
  op.attrs = {{"dim", int64_t{0}, "the axis that is picked from; negative counts from the last", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 1, "index");
    const Shape& x = call.shape(0);
    Shape index = call.shape(1);
    const int axis = wrap_axis(call.attrs.integer("dim"), x.rank());
    if (index.rank() == x.rank()) index[axis] = x[axis];
    require(index == x, ErrorCode::ShapeMismatch, "x is ", x, ", index is ", call.shape(1),
            "; they may differ along axis ", axis, " only");
    return {{call.dtype(0), call.shape(1)}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const TensorType x = g.type(g.inputs[0]);
    if (!is_floating(x.dtype)) return {kNone, kNone};
    const int axis = wrap_axis(g.attrs.integer("dim"), x.shape.rank());
    return {g.op("dim_gather_grad", {g.grads[0], g.inputs[1]}, {{"dim", int64_t{axis}}, {"size", x.shape[axis]}}),
            kNone};
  };
  op.cpu = {[](KernelCall& call) {
    const int axis = wrap_axis(call.attrs.integer("dim"), call.inputs[0].shape.rank());
    return cpu::take_rows(call, PickedRows::along(call.inputs[0].shape, call.inputs[1].shape, axis), 1);
  }};
  op.narrow.in_kernels = true;
  op.examples = {{{f32({3, 5}), i32({3, 2})}, {{"dim", int64_t{-1}}}},
                 {{f32({2, 4, 3}), {DType::Int64, {2, 7, 3}}}, {{"dim", int64_t{1}}}},
                 {{{DType::UInt8, {4}}, {DType::UInt8, {6}}}, {{"dim", int64_t{0}}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "dim_gather_grad";
  grad.doc = text(
      "Gradient of dim_gather: every element of dy added to the place it was picked from.\n"
      "  dx[i, r, k] = sum of dy[i, j, k] over all j with index[i, j, k] == r, in the order of j, for dim = 1\n"
      "shapes: dy and index of one shape -> dx with `size` along dim\n"
      "errors: ",
      kIndexError);
  grad.inputs = {{"dy"}, {"index"}};
  grad.outputs = {"dx"};
  grad.attrs = {{"dim", int64_t{0}, "the axis that was picked from", true},
                {"size", int64_t{0}, "of x along that axis", true}};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 1, "index");
    require(call.shape(0) == call.shape(1), ErrorCode::ShapeMismatch, "dy is ", call.shape(0), ", index is ",
            call.shape(1));
    Shape shape = call.shape(0);
    const int64_t size = call.attrs.integer("size");
    require(size >= 0, ErrorCode::InvalidArgument, "size must be at least 0, got ", size);
    shape[wrap_axis(call.attrs.integer("dim"), shape.rank())] = size;
    return {{call.dtype(0), shape}};
  };
  grad.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {g.op("dim_gather", {g.grads[0], g.inputs[1]}, {{"dim", g.attrs.integer("dim")}}), kNone};
  };
  grad.cpu = {[](KernelCall& call) {
    const int axis = wrap_axis(call.attrs.integer("dim"), call.inputs[0].shape.rank());
    const PickedRows places = PickedRows::along(call.outputs[0].shape, call.inputs[1].shape, axis);
    return cpu::scatter_rows(call, places, Into::Sum, -1, 1, 0);
  }};
  grad.examples = {{{f32({3, 6}), i32({3, 6})}, {{"dim", int64_t{-1}}, {"size", int64_t{4}}}},
                   {{f32({2, 7, 3}), i32({2, 7, 3})}, {{"dim", int64_t{1}}, {"size", int64_t{5}}}}};
  catalog.add(grad);
}

}  // namespace

void add_scatter(Catalog& catalog) {
  add_gather_nd(catalog);
  add_scatter_nd(catalog);
  add_tensor_scatter_nd(catalog, Into::Sum);
  add_tensor_scatter_nd(catalog, Into::Replaced);
  add_unsorted_segment(catalog, Into::Sum);
  add_unsorted_segment(catalog, Into::Max);
  add_dim_gather(catalog);
  add_scatter_assign(catalog);
}

}  // namespace moonflow
