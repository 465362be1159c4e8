// Cutting and joining: slice, slice_v2 (with steps), pad, concat, stack. All dtypes. A slice and a pad are each
// other's gradient, so are a concat and its slices.
#include <algorithm>
#include <set>
#include <tuple>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/box.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/slice.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using cpu::BoxCopy;
using cpu::copy_kernel;

// Fills `count` elements of the dtype with one value.
void fill(DType dtype, void* to, int64_t count, double value) {
  visit_stored(dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = static_cast<T*>(to);
    cpu::parallel_for(count, cpu::kGrain,
                      [&](int64_t first, int64_t last) { std::fill(out + first, out + last, static_cast<T>(value)); });
  });
}

// ---- slice ------------------------------------------------------------------------------------------------------

void add_slice_op(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "slice";
  op.doc =
      "A box cut out of x.\n"
      "  out[i, j] = x[begin[0] + i, begin[1] + j]\n"
      "shapes: x (4, 5) with begin = {1, 0}, size = {2, -1} -> out (2, 5); axes not named are kept whole\n"
      "dtypes: any -> the same\n"
      "errors: begin and size differ in length; a box that leaves x";
  op.inputs = {{"x"}};
  op.attrs = {{"begin", Ints{}, "first index along each leading axis; negative counts from the end", true},
              {"size", Ints{}, "how many along each of them; -1 is all that is left", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    return {{call.dtype(0), Cut(call.shape(0), call.attrs.ints("begin"), call.attrs.ints("size")).size}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Shape x = g.type(g.inputs[0]).shape;
    const Cut cut(x, g.attrs.ints("begin"), g.attrs.ints("size"));
    Ints paddings;
    for (int axis = 0; axis < x.rank(); ++axis) {
      paddings.push_back(cut.begin[axis]);
      paddings.push_back(x[axis] - cut.begin[axis] - cut.size[axis]);
    }
    return {g.op("pad", {g.grads[0]}, {{"paddings", paddings}})};
  };
  op.cpu = copy_kernel(slice_box);
  op.narrow.in_kernels = true;
  op.cpu.layouts = [](LayoutCall& call) {
    const Shape& x = call.input_types[0].shape;
    const Cut cut(x, call.attrs.ints("begin"), call.attrs.ints("size"));
    bool cuts_planes = false;
    for (int axis = 2; axis < x.rank(); ++axis) cuts_planes = cuts_planes || cut.size[axis] != x[axis];
    if (x.rank() < 2 || cuts_planes)
      call.inputs[0] = {};
    else
      cpu::keep_blocks(call, {cut.begin[1]});
  };
  op.examples = {{{f32({4, 5})}, {{"begin", Ints{1, -3}}, {"size", Ints{2, 2}}}},
                 {{i32({3, 2})}, {{"begin", Ints{1}}, {"size", Ints{-1}}}}};
  catalog.add(op);
}

// ---- slice with steps -------------------------------------------------------------------------------------------

void add_strided_slice(Catalog& catalog) {
  const std::vector<AttrDef> attrs = {
      {"start", Ints{}, "first index along each leading axis; negative counts from the end; -2^63 is 'not given'",
       true},
      {"stop", Ints{}, "index before which each axis stops; negative counts from the end; -2^63 is 'not given'", true},
      {"step", Ints{}, "distance between two indices; negative runs backwards; empty is all ones"}};
  const Attrs example{{"start", Ints{3, 0}}, {"stop", Ints{0, 5}}, {"step", Ints{-2, 3}}};

  OpDef op;
  op.name = "strided_slice";
  op.lua = "slice_v2";
  op.doc =
      "Every step-th element of the leading axes, by Python's rules for start:stop:step.\n"
      "  out[i, j] = x[start[0] + i * step[0], start[1] + j * step[1]]\n"
      "In Lua also in the original's form, { start, stop, step } for each axis and nil for what is not given:\n"
      "  flow.slice_v2(x, { { 0, 10, 2 }, { nil, -1 } })\n"
      "shapes: x (4, 6) with start = {3, 0}, stop = {0, 5}, step = {-2, 3} -> out (2, 2); axes not named are whole\n"
      "dtypes: any -> the same\n"
      "defaults: step = {}, all ones; a number that is not given (-2^63) is the end the step begins or stops at\n"
      "errors: start, stop and step differ in length; a step of 0. An index beyond the axis is cut to it";
  op.inputs = {{"x"}};
  op.attrs = attrs;
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    Shape shape;
    for (const Stride& stride : strides_along(call.shape(0), call.attrs)) shape.push_back(stride.count);
    return {{call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    Attrs with_shape = g.attrs;
    with_shape.set("shape", g.type(g.inputs[0]).shape.dims());
    return {g.op("strided_slice_grad", {g.grads[0]}, with_shape)};
  };
  op.cpu = copy_kernel(strided_slice_box);
  op.narrow.in_kernels = true;
  op.examples = {{{f32({4, 6})}, example}, {{i32({5})}, {{"start", Ints{kLeftOut}}, {"stop", Ints{-1}}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "strided_slice_grad";
  grad.doc =
      "Gradient of strided_slice: dy at the places it was cut from, zero elsewhere.\n"
      "shapes: dy as the slice -> dx `shape`";
  grad.inputs = {{"dy"}};
  grad.outputs = {"dx"};
  grad.attrs = attrs;
  grad.attrs.push_back({"shape", Ints{}, "shape of the sliced value", true});
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const Shape whole = checked_shape(call.attrs);
    Shape part;
    for (const Stride& stride : strides_along(whole, call.attrs)) part.push_back(stride.count);
    require(part == call.shape(0), ErrorCode::ShapeMismatch, "dy is ", call.shape(0), ", the slice of ", whole, " is ",
            part);
    return {{call.dtype(0), whole}};
  };
  grad.grad = [](GradCall& g) -> std::vector<ValueId> {
    Attrs attrs;
    for (const char* name : {"start", "stop", "step"}) attrs.set(name, g.attrs.ints(name));
    return {g.op("strided_slice", {g.grads[0]}, attrs)};
  };
  grad.cpu = {[](KernelCall& call) -> Launch {
    const TensorType whole = call.outputs[0];
    const BoxCopy copy(size_of(whole.dtype), strided_slice_grad_box(call));
    return [copy, whole, count = whole.count()](const LaunchCall& launch) {
      fill(whole.dtype, launch.outputs[0], count, 0);
      copy.run(launch.outputs[0], launch.inputs[0]);
    };
  }};
  Attrs with_shape = example;
  with_shape.set("shape", Ints{4, 6});
  grad.examples = {{{f32({2, 2})}, with_shape}};
  catalog.add(grad);
}

// ---- pad --------------------------------------------------------------------------------------------------------

// Gradients of slices are pads, and those of one value are added up. Where the slices were all of it, side by side, as
// the gates of a cell or the steps of a sequence are, each place has one addend that is not padding: the sum is the
// slices' gradients, joined. Otherwise n slices would cost n times the whole. (A -0 stays one.) Equal gradients are
// computed once, so a pad, or a sum of some, may be part of several sums; it stays until the last of them is joined.
class JoinedSlices {
 public:
  explicit JoinedSlices(Rewriter& graph) : graph_(graph) {}

  // The outermost of the sums looks for the pads.
  bool fuse(NodeId sum) { return !is_added(sum) && collect(sum) && join(); }

 private:
  struct Part {
    int64_t begin, size;
    ValueId slice;
    bool operator<(const Part& other) const { return std::tie(begin, size) < std::tie(other.begin, other.size); }
  };

  bool is_added(NodeId id) const {
    const NodeId reader = graph_.sole_reader(graph_.node(id).outputs[0]);
    return reader != kNone && graph_.node(reader).op->name == "add";
  }

  // All sums below this one, and what they add; false where an addend is something else than a pad along the axis.
  bool collect(NodeId outermost) {
    const TensorType whole = graph_.type(graph_.node(outermost).outputs[0]);
    struct Sum {
      NodeId id;
      bool own;  // nobody else needs it
    };
    std::vector<Sum> sums{{outermost, true}};
    std::set<NodeId> seen;
    own_ = {outermost};
    for (size_t next = 0; next < sums.size(); ++next) {
      const Sum sum = sums[next];
      for (const ValueId addend : graph_.node(sum.id).inputs) {
        const NodeId added = graph_.made_by(addend, "add"), pad = graph_.made_by(addend, "pad");
        if (graph_.type(addend) != whole || graph_.tapped(addend)) return false;
        if (added == kNone && !(pad != kNone && add_part(graph_.node(pad)))) return false;
        const bool own = sum.own && graph_.sole_reader(addend) == sum.id;
        if (added != kNone && !seen.insert(added).second) return false;  // whose parts would be there twice
        if (added != kNone) sums.push_back({added, own});
        if (own) own_.push_back(graph_.maker(addend));
      }
    }
    return true;
  }

  bool add_part(const Node& pad) {
    if (pad.attrs.number("constant_value") != 0) return false;
    const Ints& paddings = pad.attrs.ints("paddings");
    for (size_t i = 0; i < paddings.size(); ++i) {
      if (paddings[i] == 0) continue;
      if (axis_ == kNone) axis_ = static_cast<int>(i / 2);
      if (axis_ != static_cast<int>(i / 2)) return false;
    }
    if (axis_ == kNone) return false;
    parts_.push_back({paddings[2 * axis_], graph_.type(pad.inputs[0]).shape[axis_], pad.inputs[0]});
    return true;
  }

  bool join() {
    std::sort(parts_.begin(), parts_.end());
    std::vector<ValueId> slices;
    int64_t end = 0;
    for (const Part& part : parts_) {
      if (part.begin != end) return false;
      end += part.size;
      slices.push_back(part.slice);
    }
    const std::vector<ValueId> outputs = graph_.node(own_[0]).outputs;
    if (end != graph_.type(outputs[0]).shape[axis_]) return false;
    graph_.fuse(own_, "concat", std::move(slices), {{"axis", int64_t{axis_}}}, outputs);
    return true;
  }

  Rewriter& graph_;
  std::vector<NodeId> own_;  // what the fused op replaces, the outermost sum first
  std::vector<Part> parts_;
  int axis_ = kNone;
};

void add_pad(Catalog& catalog) {
  OpDef op;
  op.name = "pad";  // flow.pad is that, and has other borders too
  op.doc =
      "x with a border of one value.\n"
      "shapes: x (3, 4) with paddings = {0, 1, 2, 2} -> out (4, 8): pairs (before, after), one for each axis\n"
      "dtypes: any -> the same\n"
      "defaults: constant_value = 0\n"
      "errors: not two numbers for each axis; a number below 0; a value the dtype does not have";
  op.inputs = {{"x"}};
  op.attrs = {{"paddings", Ints{}, "pairs (before, after), one for each axis", true},
              {"constant_value", 0.0, "the value of the border"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const Ints& paddings = call.attrs.ints("paddings");
    Shape shape = call.shape(0);
    if (static_cast<int>(paddings.size()) != 2 * shape.rank()) {
      fail(ErrorCode::ShapeMismatch, "paddings ", str(paddings), " has ", paddings.size(), " numbers, x ", shape,
           " needs a pair for each of its ", shape.rank(), " axes");
    }
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const int64_t before = paddings[2 * axis], after = paddings[2 * axis + 1];
      require(before >= 0 && after >= 0, ErrorCode::InvalidArgument, "axis ", axis, ": padding (", before, ", ", after,
              ") is below 0; slice cuts");
      shape[axis] = checked_sum(checked_sum(shape[axis], before), after);
    }
    require_value_of(call.dtype(0), call.attrs, "constant_value");
    return {{call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Ints& paddings = g.attrs.ints("paddings");
    Ints begin;
    for (size_t i = 0; i < paddings.size(); i += 2) begin.push_back(paddings[i]);
    return {g.op("slice", {g.grads[0]}, {{"begin", begin}, {"size", g.type(g.inputs[0]).shape.dims()}})};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    const BoxCopy copy(size_of(call.inputs[0].dtype), pad_box(call));
    const double value = call.attrs.number("constant_value");
    return [copy, value, dtype = call.inputs[0].dtype, count = call.outputs[0].count()](const LaunchCall& launch) {
      fill(dtype, launch.outputs[0], count, value);
      copy.run(launch.outputs[0], launch.inputs[0]);
    };
  }};
  op.narrow.in_kernels = true;
  op.examples = {{{f32({2, 3})}, {{"paddings", Ints{0, 1, 2, 0}}, {"constant_value", 0.5}}},
                 {{i32({3})}, {{"paddings", Ints{1, 1}}, {"constant_value", -1.0}}}};
  catalog.add(op);
}

// ---- concat and stack -------------------------------------------------------------------------------------------

Kernel join_kernel(std::vector<Box> (*boxes)(const KernelCall&)) {
  return {[boxes](KernelCall& call) -> Launch {
    std::vector<BoxCopy> copies;
    for (const Box& box : boxes(call)) copies.emplace_back(size_of(call.outputs[0].dtype), box);
    return [copies](const LaunchCall& launch) {
      for (size_t i = 0; i < copies.size(); ++i) copies[i].run(launch.outputs[0], launch.inputs[i]);
    };
  }};
}

void require_alike(const OpCall& call, int axis) {
  for (int i = 1; i < call.count(); ++i) {
    require(call.dtype(i) == call.dtype(0), ErrorCode::DtypeMismatch, "inputs[0] is ", call.type(0), ", inputs[", i,
            "] is ", call.type(i), "; cast one of them");
    Shape first = call.shape(0), other = call.shape(i);
    if (axis >= 0 && first.rank() == other.rank()) first[axis] = other[axis] = 0;
    require(first == other, ErrorCode::ShapeMismatch, "inputs[0] is ", call.shape(0), ", inputs[", i, "] is ",
            call.shape(i), axis >= 0 ? text("; they may differ along axis ", axis, " only") : "; they must be alike");
  }
}

void add_concat(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "concat";
  op.doc =
      "Concatenates the inputs, one after another along an axis.\n"
      "shapes: (2, 3) and (4, 3) with axis = 0 -> out (6, 3)\n"
      "dtypes: any, all the same -> the same\n"
      "defaults: axis = 0\n"
      "errors: no input; inputs that differ in dtype or along another axis";
  op.inputs = {{"inputs", InputDef::Many}};
  op.attrs = {{"axis", int64_t{0}, "the axis they are joined along; negative counts from the last"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require(call.count() > 0, ErrorCode::InvalidArgument, "needs at least one input");
    const int axis = wrap_axis(call.attrs.integer("axis"), call.shape(0).rank());
    require_alike(call, axis);
    Shape shape = call.shape(0);
    for (int i = 1; i < call.count(); ++i) shape[axis] = checked_sum(shape[axis], call.shape(i)[axis]);
    return {{call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) {
    const int axis = wrap_axis(g.attrs.integer("axis"), g.type(g.inputs[0]).shape.rank());
    std::vector<ValueId> gradients;
    int64_t start = 0;
    for (const ValueId input : g.inputs) {
      const Shape shape = g.type(input).shape;
      Ints begin(shape.rank(), 0);
      begin[axis] = start;
      start += shape[axis];
      gradients.push_back(g.op("slice", {g.grads[0]}, {{"begin", begin}, {"size", shape.dims()}}));
    }
    return gradients;
  };
  op.cpu = join_kernel(concat_boxes);
  op.narrow.in_kernels = true;
  op.cpu.layouts = [](LayoutCall& call) {
    if (wrap_axis(call.attrs.integer("axis"), call.input_types[0].shape.rank()) == 1)
      cpu::keep_blocks(call);
    else
      std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
  };
  op.examples = {{{f32({2, 3}), f32({1, 3}), f32({2, 3})}},
                 {{f32({2, 3}), f32({2, 1})}, {{"axis", int64_t{-1}}}},
                 {{i32({2}), i32({3})}}};
  catalog.add(op);
}

void add_stack(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "stack";
  op.doc =
      "The inputs side by side along a new axis.\n"
      "shapes: three of (4, 5) with axis = 0 -> out (3, 4, 5); axis = -1 -> out (4, 5, 3)\n"
      "dtypes: any, all the same -> the same\n"
      "defaults: axis = 0\n"
      "errors: no input; inputs that differ in shape or dtype";
  op.inputs = {{"inputs", InputDef::Many}};
  op.attrs = {{"axis", int64_t{0}, "where the new axis stands in the result"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require(call.count() > 0, ErrorCode::InvalidArgument, "needs at least one input");
    const int axis = wrap_axis(call.attrs.integer("axis"), call.shape(0).rank() + 1);
    require_alike(call, -1);
    Shape shape = call.shape(0);
    shape.insert(axis, call.count());
    return {{call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) {
    const Shape shape = g.type(g.inputs[0]).shape;
    const int axis = wrap_axis(g.attrs.integer("axis"), shape.rank() + 1);
    Ints begin(shape.rank() + 1, 0), size = shape.dims();
    size.insert(size.begin() + axis, 1);
    std::vector<ValueId> gradients;
    for (size_t i = 0; i < g.inputs.size(); ++i) {
      begin[axis] = static_cast<int64_t>(i);
      const ValueId cut = g.op("slice", {g.grads[0]}, {{"begin", begin}, {"size", size}});
      gradients.push_back(g.op("reshape", {cut}, {{"shape", shape.dims()}}));
    }
    return gradients;
  };
  op.cpu = join_kernel(stack_boxes);
  op.narrow.in_kernels = true;
  op.examples = {
      {{f32({2, 3}), f32({2, 3})}}, {{f32({2, 3}), f32({2, 3})}, {{"axis", int64_t{-1}}}}, {{i32({}), i32({})}}};
  catalog.add(op);
}

}  // namespace

bool join_slices(Rewriter& graph, NodeId sum) { return JoinedSlices(graph).fuse(sum); }

void add_slice(Catalog& catalog) {
  add_slice_op(catalog);
  add_strided_slice(catalog);
  add_pad(catalog);
  add_concat(catalog);
  add_stack(catalog);
}

}  // namespace moonflow
