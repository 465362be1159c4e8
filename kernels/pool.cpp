// Max and average pooling over two spatial axes: what the ops mean, their gradients as graph code, and the fusion with
// the gradient of relu. The ways to compute them are in cpu/.
#include "kernels/cpu/pool.h"

#include <algorithm>
#include <limits>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- attributes and types --------------------------------------------------------------------------------------

std::vector<AttrDef> pool_attrs() {
  return {
      {"ksize", Ints{}, "size of the window: one number, or one each for height and width", true},
      {"strides", Ints{}, "steps of the window, in the same form; the size of the window when left out"},
      padding_attr(),
      data_format_attr({}),
      {"ceil_mode", false,
       "also take a last window that sticks out of the padded image (with VALID or a list of pads)"},
      pads_attr(),
  };
}

std::vector<TensorType> infer_pool(const OpCall& call) {
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  const Pool pool = pool_of(call.attrs, call.shape(0));
  return {{call.dtype(0), pool.out.shape(pool.format)}};
}

void require_dy(const OpCall& call, const Pool& pool) {
  const TensorType wanted{call.dtype(0), pool.out.shape(pool.format)};
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  require(call.type(0) == wanted, ErrorCode::ShapeMismatch, "dy is ", call.type(0), ", wanted ", wanted);
}

std::vector<TensorType> infer_max_pool_grad(const OpCall& call) {
  require_dy(call, pool_of(call.attrs, call.shape(1)));
  require(call.dtype(1) == call.dtype(0), ErrorCode::DtypeMismatch, "dy is ", call.dtype(0), ", x is ", call.dtype(1));
  return {call.type(1)};
}

std::vector<TensorType> infer_avg_pool_grad(const OpCall& call) {
  const Shape shape(call.attrs.ints("shape"));
  require_dy(call, pool_of(call.attrs, shape));
  return {{call.dtype(0), shape}};
}

// ---- gradients -------------------------------------------------------------------------------------------------

std::vector<ValueId> grad_max_pool(GradCall& call) {
  return {call.op("max_pool2d_grad", {call.grads[0], call.inputs[0]}, call.attrs)};
}

// Linear in dy, so for the gradient g of dx each dy gets the g of its window's first maximum. In row-major order that
// is the first of a row in the first row that has it, so columns and rows are gone through one after the other: windows
// of one place are joined to twice as long ones, which may overlap, and the last join takes only the windows that there
// are. In a tie the earlier half has it.
std::vector<ValueId> grad_max_pool_grad(GradCall& call) {
  const Pool pool = pool_of(call.attrs, call.type(call.inputs[1]).shape);
  const int first = pool.format.spatial_axis(0), axis_count = pool.format.rank();
  Ints paddings(2 * axis_count, 0);
  for (int i = 0; i < 2; ++i) {
    const Window& window = pool.windows[i];
    const int64_t reach = (window.out - 1) * window.stride + window.size - window.before;
    paddings[2 * (first + i)] = window.before;
    paddings[2 * (first + i) + 1] = std::max<int64_t>(0, reach - window.in);
  }
  const auto padded = [&](Term value, double border) {
    return value.op("pad", {{"paddings", paddings}, {"constant_value", border}});
  };
  Term x = padded({call, call.inputs[1]}, -std::numeric_limits<double>::infinity());
  Term g = padded({call, call.grads[0]}, 0);
  for (const int i : {1, 0}) {
    const Window& window = pool.windows[i];
    const int axis = first + i;
    int64_t length = 1;
    do {
      const int64_t further = std::min(length, window.size - length);  // 0 in a window of one place
      const bool is_last = length + further == window.size;
      const auto beginning_at = [&](int64_t place, Term value) {
        Ints start(axis_count, 0), stop = value.shape().dims(), step(axis_count, 1);
        start[axis] = place;
        step[axis] = is_last ? window.stride : 1;
        stop[axis] = is_last ? place + (window.out - 1) * window.stride + 1 : place + stop[axis] - further;
        return value.op("strided_slice", {{"start", start}, {"stop", stop}, {"step", step}});
      };
      const Term x_before = beginning_at(0, x), g_before = beginning_at(0, g), x_after = beginning_at(further, x);
      g = x_after.op("greater", x_before).op("where", beginning_at(further, g), g_before);
      x = x_after.op("maximum", x_before);
      length += further;
    } while (length < window.size);
  }
  if (call.attrs.flag("relu")) g = g.op("relu_grad", x);
  return {g.id(), kNone};
}

// ---- kernels ---------------------------------------------------------------------------------------------------

Launch prepare(PoolKind kind, KernelCall& call) {
  const bool forward = kind == PoolKind::Max || kind == PoolKind::Average;
  const Pool pool = pool_of(call.attrs, forward ? call.inputs[0].shape : call.outputs[0].shape);
  const bool relu = kind == PoolKind::MaxGrad && call.attrs.flag("relu");
  if (kind == PoolKind::MaxGrad && call.inputs[0].dtype == DType::Float32) {
    const auto form = cpu::channel_form(call.inputs[1], call.input_layouts[1], pool.format.channel_axis());
    if (form && cpu::pools_by_two(pool, *form)) return cpu::max_grad_by_two(pool, *form, relu);
  }
  return cpu::pool_loops(pool, kind, relu, call);
}

// The kernel of an op; `image` is the input whose layout it follows. A gradient asks for its other input in that form
// too.
Kernel kernel(PoolKind kind, int image) {
  return {[kind](KernelCall& call) { return prepare(kind, call); },
          [image](LayoutCall& call) { cpu::lie_alike(call, image); }};
}

// ---- fusion ----------------------------------------------------------------------------------------------------

// relu_grad(max_pool2d_grad(dy, x), x): what reaches a maximum passes relu where that maximum is positive, so the
// pooling gradient does both in one pass over x. True when relu came before pooling, as it mostly does.
bool fuse_relu_grad(Rewriter& graph, NodeId id) {
  const Node& pool = graph.node(id);
  const NodeId relu_id = pool.attrs.flag("relu") ? kNone : graph.sole_reader(pool.outputs[0]);
  if (relu_id == kNone || graph.node(relu_id).op->name != "relu_grad") return false;
  const Node& relu = graph.node(relu_id);
  if (relu.inputs[0] != pool.outputs[0] || relu.inputs[1] != pool.inputs[1]) return false;
  graph.fuse({id, relu_id}, "max_pool2d_grad", pool.inputs, with(pool.attrs, "relu", true), relu.outputs);
  return true;
}

// ---- the ops ---------------------------------------------------------------------------------------------------

std::string pool_doc(const char* what, const char* formula) {
  return std::string(what) + " of each window of the image, channel by channel.\n  " + formula +
         "\n"
         "  Places outside of x do not count. VALID: out = floor((in - ksize) / stride) + 1 (ceil with ceil_mode);\n"
         "  SAME: out = ceil(in / stride), missing = max(0, (out - 1) * stride + ksize - in); SAME and SAME_LOWER put "
         "the "
         "odd one at the top and left, SAME_UPPER at the bottom and right.\n"
         "shapes: x (batch, channels, height, width) -> (batch, channels, out height, out width); channels last with "
         "data_format \"NHWC\"\n"
         "dtypes: float32 or float64\n"
         "errors: a window larger than the padded image, or one that would see only padding";
}

std::vector<Example> pool_examples() {
  const std::string same = "SAME", lower = "SAME_LOWER", upper = "SAME_UPPER", nhwc = "NHWC";
  return {
      {{f32({2, 3, 4, 6})}, {{"ksize", Ints{2}}}},
      {{f32({1, 2, 5, 7})}, {{"ksize", Ints{2}}, {"strides", Ints{2}}, {"padding", same}}},
      {{f32({1, 2, 5, 6})}, {{"ksize", Ints{3, 2}}, {"strides", Ints{2, 1}}, {"padding", lower}}},
      {{f32({1, 2, 5, 6})}, {{"ksize", Ints{2, 4}}, {"strides", Ints{1, 3}}, {"padding", upper}}},
      {{f32({1, 2, 5, 5})}, {{"ksize", Ints{3}}, {"strides", Ints{2}}, {"pads", Ints{0, 0, 0, 0, 2, 1, 0, 1}}}},
      {{f32({1, 2, 6, 6})}, {{"ksize", Ints{3}}, {"strides", Ints{2}}, {"ceil_mode", true}}},
      {{f32({1, 2, 7, 7})}, {{"ksize", Ints{2}}, {"strides", Ints{3}}}},
      {{f32({2, 5, 5, 3})}, {{"ksize", Ints{3}}, {"strides", Ints{2}}, {"padding", same}, {"data_format", nhwc}}},
      {{f32({1, 4, 5, 20})}, {{"ksize", Ints{2}}, {"strides", Ints{2}}, {"data_format", nhwc}}},
  };
}

TensorType pooled(const Example& example) {
  Attrs attrs;
  for (const AttrDef& attr : pool_attrs()) attrs.set(attr.name, attr.fallback);
  for (const auto& [name, value] : example.attrs) attrs.set(name, value);
  return infer_pool({{&example.inputs[0]}, attrs})[0];
}

}  // namespace

void add_pool(Catalog& catalog) {
  OpDef max_pool;
  max_pool.name = "max_pool2d";
  max_pool.lua = "nn.max_pool2d";
  max_pool.doc =
      pool_doc("The largest element", "out[n, c, y, x] = max over i, j of x[n, c, y*stride - before + i, ...]") +
      "\nA NaN counts only in a window that holds nothing else."
      "\nThe gradient goes to the first of equal maxima, in row-major order.";
  max_pool.inputs = {{"x"}};
  max_pool.attrs = pool_attrs();
  max_pool.infer = infer_pool;
  max_pool.grad = grad_max_pool;
  max_pool.narrow = follows_off_cpu();
  max_pool.cpu = kernel(PoolKind::Max, 0);
  max_pool.examples = pool_examples();
  catalog.add(std::move(max_pool));

  OpDef avg_pool;
  avg_pool.name = "avg_pool2d";
  avg_pool.lua = "nn.avg_pool2d";
  avg_pool.doc = pool_doc("The average", "out[n, c, y, x] = mean over i, j of x[n, c, y*stride - before + i, ...]");
  avg_pool.inputs = {{"x"}};
  avg_pool.attrs = pool_attrs();
  avg_pool.infer = infer_pool;
  avg_pool.grad = linear_gradient("avg_pool2d_grad");
  avg_pool.narrow = follows_off_cpu();
  avg_pool.cpu = kernel(PoolKind::Average, 0);
  avg_pool.examples = pool_examples();
  catalog.add(std::move(avg_pool));

  OpDef max_grad;
  max_grad.name = "max_pool2d_grad";
  max_grad.doc =
      "Gradient of max_pool2d: each dy goes to the first maximum of its window in x, in row-major order.\n"
      "With relu (set by fusion) only where that maximum is positive.";
  max_grad.inputs = {{"dy"}, {"x"}};
  max_grad.outputs = {"dx"};
  max_grad.attrs = pool_attrs();
  max_grad.attrs.push_back({"relu", false, "x is the result of relu, whose gradient is taken too"});
  max_grad.infer = infer_max_pool_grad;
  max_grad.grad = grad_max_pool_grad;
  max_grad.narrow = follows_off_cpu();
  max_grad.cpu = kernel(PoolKind::MaxGrad, 1);
  max_grad.inplace = {{0, 1}};
  max_grad.rewrites = {{"max_pool2d_grad + relu_grad", {"max_pool2d_grad"}, fuse_relu_grad}};
  for (const Example& example : pool_examples()) {
    max_grad.examples.push_back({{pooled(example), example.inputs[0]}, example.attrs});
  }
  catalog.add(std::move(max_grad));

  OpDef avg_grad;
  avg_grad.name = "avg_pool2d_grad";
  avg_grad.doc = "Gradient of avg_pool2d: each dy is shared out evenly over the elements its window saw.";
  avg_grad.inputs = {{"dy"}};
  avg_grad.outputs = {"dx"};
  avg_grad.attrs = pool_attrs();
  avg_grad.attrs.push_back({"shape", Ints{}, "shape of x", true});
  avg_grad.infer = infer_avg_pool_grad;
  avg_grad.grad = gradient_of_linear("avg_pool2d");
  avg_grad.narrow = follows_off_cpu();
  avg_grad.cpu = kernel(PoolKind::AverageGrad, 0);
  for (const Example& example : pool_examples()) {
    avg_grad.examples.push_back({{pooled(example)}, with(example.attrs, "shape", example.inputs[0].shape.dims())});
  }
  catalog.add(std::move(avg_grad));
}

}  // namespace moonflow
