// Convolution over one or two spatial axes: what the ops mean, their gradients as graph code, and the fusions with
// bias_add and an activation. The ways to compute them are in cpu/.
#include "kernels/cpu/conv.h"

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/row_major.h"
#include "kernels/types.h"

namespace moonflow {

namespace {

// That of a bias: the same, or float32 beside what is narrow.
DType bias_dtype(DType dtype, DType given) { return is_narrow(dtype) && given == DType::Float32 ? given : dtype; }

// One op of the family: what it computes over how many axes.
struct ConvOp {
  ConvKind kind;
  int spatial_axes;

  bool is_forward() const { return moonflow::is_forward(kind); }
  Conv sizes(const Attrs& attrs, const Shape& first, const Shape& second) const {
    return conv_of_inputs(kind, attrs, first, second, spatial_axes);
  }

  std::vector<TensorType> infer(const OpCall& call) const {
    const DType dtype = call.dtype(0);
    require(is_floating(dtype), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", dtype);
    require(call.dtype(1) == dtype, ErrorCode::DtypeMismatch, "the inputs differ in dtype: ", dtype, " and ",
            call.dtype(1));
    const Conv conv = sizes(call.attrs, call.shape(0), call.shape(1));
    if (is_forward()) {
      if (kind == ConvKind::ForwardBias) {
        const TensorType bias{bias_dtype(dtype, call.dtype(2)), {conv.filters()}};
        require(call.type(2) == bias, ErrorCode::ShapeMismatch, "bias is ", call.type(2), ", wanted ", bias);
        activation_of(call.attrs);  // checks it
      }
      return {{dtype, conv.out.shape(conv.format)}};
    }
    const TensorType grad{is_filter_grad(kind) ? mixed_result(call) : dtype, Shape(call.attrs.ints("shape"))};
    if (kind == ConvKind::FilterBiasGrad) return {grad, {grad.dtype, {conv.filters()}}};
    return {grad};
  }

  Launch prepare(KernelCall& call) const {
    const Conv conv = sizes(call.attrs, call.inputs[0].shape, call.inputs[1].shape);
    if (call.inputs[0].dtype == DType::Float32) {
      const ConvWay way = conv_way(call.attrs);
      if (Launch launch = cpu::own_conv(conv, kind, way, activation_of(call.attrs), call)) return launch;
      if (Launch launch = cpu::conv_primitive(conv, kind, activation_of(call.attrs), call)) return launch;
    }
    // Products have a kernel for all sizes. The layout question found the same and chose row-major.
    return cpu::conv_packed(conv, kind, call.inputs[0].dtype, activation_of(call.attrs), call);
  }

  void layouts(LayoutCall& call) const {
    if (call.input_types[0].dtype == DType::Float32) {
      const Conv conv = sizes(call.attrs, call.input_types[0].shape, call.input_types[1].shape);
      if (cpu::own_conv_layouts(conv, kind, conv_way(call.attrs), call)) return;
      if (cpu::conv_layouts(conv, kind, activation_of(call.attrs), call)) return;
    }
    lie_in_rows(call);
  }

  // Of the sums as the formula has them. Winograd's algorithm takes fewer, so it may be above the peak.
  double flops(const KernelCall& call) const {
    return conv_flops(sizes(call.attrs, call.inputs[0].shape, call.inputs[1].shape));
  }

  OpDef def(std::string name, std::vector<InputDef> inputs) const {
    OpDef op;
    op.name = std::move(name);
    op.inputs = std::move(inputs);
    op.attrs = conv_attrs(spatial_axes);
    op.infer = [self = *this](const OpCall& call) { return self.infer(call); };
    op.cpu.prepare = [self = *this](KernelCall& call) { return self.prepare(call); };
    op.flops = [self = *this](const KernelCall& call) { return self.flops(call); };
    op.narrow.role = NarrowUse::Computes;
    op.narrow.pays = never_on_cpu;
    if (spatial_axes == 2) {
      op.narrow.rounds = [self = *this](const OpCall& call, DType narrow) {
        return narrow == DType::BFloat16 && call.dtype(0) == DType::Float32 &&
               cpu::tiles_fit(self.sizes(call.attrs, call.shape(0), call.shape(1)));
      };
    }
    if (is_filter_grad(kind)) op.attrs.push_back(mixed_result_attr());
    op.cpu.layouts = [self = *this](LayoutCall& call) { self.layouts(call); };
    return op;
  }
};

// ---- gradients -------------------------------------------------------------------------------------------------

// A convolution is linear in the image and in the filter, so the gradients of its gradients are again the three ops.
struct ConvGrads {
  std::string conv;  // "conv2d"

  std::vector<ValueId> of_forward(GradCall& call) const {
    const ValueId x = call.inputs[0], filter = call.inputs[1], dy = call.grads[0];
    return {input_grad(call, call.attrs, dy, filter, call.type(x).shape),
            filter_grad(call, call.attrs, dy, x, call.type(filter).shape)};
  }

  // dx = InputGrad(dy, filter), so for the gradient g of dx: conv(g, filter) and FilterGrad(dy, g).
  std::vector<ValueId> of_input_grad(GradCall& call) const {
    const ValueId dy = call.inputs[0], filter = call.inputs[1], g = call.grads[0];
    const Attrs attrs = without(call.attrs, "shape");
    return {call.op(conv, {g, filter}, attrs), filter_grad(call, attrs, dy, g, call.type(filter).shape)};
  }

  // dfilter = FilterGrad(dy, x), so for the gradient g of dfilter: conv(x, g) and InputGrad(dy, g).
  std::vector<ValueId> of_filter_grad(GradCall& call) const {
    const ValueId dy = call.inputs[0], x = call.inputs[1], g = call.grads[0];
    const Attrs attrs = without(without(call.attrs, "shape"), "mixed");
    return {call.op(conv, {x, g}, attrs), input_grad(call, attrs, dy, g, call.type(x).shape)};
  }

  ValueId input_grad(GradCall& call, const Attrs& attrs, ValueId dy, ValueId filter, const Shape& shape) const {
    return call.op(conv + "_input_grad", {dy, filter}, with(attrs, "shape", shape.dims()));
  }
  ValueId filter_grad(GradCall& call, const Attrs& attrs, ValueId dy, ValueId x, const Shape& shape) const {
    return call.op(conv + "_filter_grad", {dy, x}, with(attrs, "shape", shape.dims()));
  }
};

// ---- fusions ---------------------------------------------------------------------------------------------------

int spatial_axes_of(const Rewriter& graph, const Node& conv) { return graph.type(conv.inputs[0]).shape.rank() - 2; }

// True when bias_add or bias_grad means the same axis as the channels of a convolution.
bool same_channels(const Node& bias, const Node& conv, int spatial_axes) {
  const ImageFormat format = image_format(conv.attrs.string("data_format"), spatial_axes);
  return channel_axis(bias.attrs.string("data_format"), format.rank()) == format.channel_axis();
}

}  // namespace

NodeId activation_behind(const Rewriter& graph, ValueId value) {
  const NodeId reader = graph.sole_reader(value);
  if (reader == kNone) return kNone;
  const std::string& name = graph.node(reader).op->name;
  return name == "relu" || name == "relu6" ? reader : kNone;
}

namespace {

// A convolution, bias_add and perhaps an activation, when nobody else reads what is between them.
bool fuse_bias(Rewriter& graph, NodeId id) {
  const Node& conv = graph.node(id);
  const int spatial_axes = spatial_axes_of(graph, conv);
  const NodeId bias_id = graph.sole_reader(conv.outputs[0]);
  if (bias_id == kNone || graph.node(bias_id).op->name != "bias_add") return false;
  const Node& bias_add = graph.node(bias_id);
  if (bias_add.inputs[0] != conv.outputs[0] || !same_channels(bias_add, conv, spatial_axes)) return false;
  const std::string fused = text("conv", spatial_axes, "d_bias");
  const std::vector<ValueId> inputs{conv.inputs[0], conv.inputs[1], bias_add.inputs[1]};

  const NodeId active_id = activation_behind(graph, bias_add.outputs[0]);
  if (active_id != kNone) {
    const Node& active = graph.node(active_id);
    graph.fuse({id, bias_id, active_id}, fused, inputs, with(conv.attrs, "activation", active.op->name),
               active.outputs);
  } else {
    graph.fuse({id, bias_id}, fused, inputs, with(conv.attrs, "activation", std::string("none")), bias_add.outputs);
  }
  return true;
}

// The gradients of filter and bias read the same dy, and oneDNN has both in one pass. What the filter goes over may be
// made of the bias' gradient, where gradients are what a net computes with.
bool fuse_bias_grad(Rewriter& graph, NodeId id) {
  const Node& filter_grad = graph.node(id);
  const ValueId dy = filter_grad.inputs[0];
  const int spatial_axes = spatial_axes_of(graph, filter_grad);
  for (const NodeId reader : graph.readers(dy)) {
    const Node& bias_grad = graph.node(reader);
    if (bias_grad.op->name != "bias_grad" || !same_channels(bias_grad, filter_grad, spatial_axes)) continue;
    if (graph.type(bias_grad.outputs[0]).dtype != graph.type(filter_grad.outputs[0]).dtype) continue;
    if (follows_from(graph, filter_grad.inputs[1], reader)) continue;
    graph.fuse({id, reader}, text("conv", spatial_axes, "d_filter_bias_grad"), filter_grad.inputs, filter_grad.attrs,
               {filter_grad.outputs[0], bias_grad.outputs[0]});
    return true;
  }
  return false;
}

// ---- the ops ---------------------------------------------------------------------------------------------------

constexpr DType kFloat32 = DType::Float32;

std::string conv_doc(int spatial_axes) {
  const std::string shapes =
      spatial_axes == 2
          ? "shapes: x (batch, channels, height, width), filter (filters, channels / groups, kernel height, kernel "
            "width) -> (batch, filters, out height, out width);\n"
            "  with data_format \"NHWC\" x (batch, height, width, channels), filter (filters, kernel height, kernel "
            "width, channels / groups)\n"
          : "shapes: x (batch, channels, width), filter (filters, channels / groups, kernel width) -> (batch, filters, "
            "out width);\n"
            "  with data_format \"NWC\" x (batch, width, channels), filter (filters, kernel width, channels / "
            "groups)\n";
  return "Convolution as networks mean it: the filter is not flipped (cross-correlation).\n"
         "  out[n, f, y, x] = sum over c, i, j of x[n, c, y*stride - before + i*dilation, ...] * filter[f, c, i, j]\n"
         "  Places outside of x count as zero. VALID: out = floor((in - reach) / stride) + 1, reach = (kernel - 1) * "
         "dilation + 1;\n"
         "  SAME: out = ceil(in / stride), missing = max(0, (out - 1) * stride + reach - in); SAME and SAME_LOWER put "
         "the "
         "odd one at the top and left, SAME_UPPER at the bottom and right.\n" +
         shapes +
         "dtypes: float32, float64, bfloat16 or float16, both inputs alike; sums of the last two are float32\n"
         "errors: a rank, a channel count or groups that do not fit; a window larger than the padded image" +
         (spatial_axes == 2
              ? "\nprecision: measured by the largest result, float32 is within 1e-6 of float64 by direct "
                "sums, and within 2e-5 by Winograd's algorithm (Lavin and Gray, "
                "arXiv:1509.09308),\n"
                "  where a NaN, an infinity or a number near the greatest one reaches all results of its tile;\n"
                "  forbid that here with \"direct\", or in a whole job with function_config { winograd = "
                "false }"
              : "");
}

std::vector<Example> conv2d_examples() {
  const auto f = [](Shape shape) { return TensorType{kFloat32, shape}; };
  const std::string same = "SAME", lower = "SAME_LOWER", upper = "SAME_UPPER", nhwc = "NHWC";
  const std::string winograd = "winograd";
  return {
      {{f({1, 1, 4, 4}), f({1, 1, 3, 3})}},
      {{f({2, 3, 5, 6}), f({4, 3, 3, 2})}, {{"padding", same}}},
      {{f({1, 2, 5, 5}), f({3, 2, 2, 4})}, {{"padding", lower}, {"strides", Ints{2}}}},
      {{f({1, 2, 5, 5}), f({3, 2, 2, 4})}, {{"padding", upper}, {"strides", Ints{2, 1}}}},
      {{f({1, 2, 4, 5}), f({2, 2, 3, 3})}, {{"pads", Ints{0, 0, 0, 0, 2, 0, 1, 3}}}},
      {{f({1, 2, 7, 7}), f({2, 2, 3, 2})}, {{"dilations", Ints{2, 3}}}},
      {{f({1, 4, 4, 4}), f({6, 2, 3, 3})}, {{"groups", int64_t{2}}, {"padding", same}}},
      {{f({1, 3, 4, 4}), f({3, 1, 2, 2})}, {{"groups", int64_t{3}}}},
      {{f({1, 5, 4, 3}), f({2, 3, 2, 3})}, {{"data_format", nhwc}, {"padding", same}}},
      {{f({2, 5, 5, 4}), f({2, 3, 3, 2})}, {{"data_format", nhwc}, {"groups", int64_t{2}}, {"dilations", Ints{2}}}},
      {{f({1, 3, 6, 5}), f({2, 3, 5, 5})}, {{"padding", same}, {"algorithm", winograd}}, -0.25, 0.25},
      {{f({1, 5, 6, 16}), f({16, 3, 3, 16})}, {{"data_format", nhwc}, {"algorithm", winograd}}},
      {{f({2, 8, 5, 4}), f({9, 8, 1, 1})}, {{"strides", Ints{2}}}},
      {{f({2, 6, 17, 4}), f({3, 1, 1, 4})}, {{"data_format", nhwc}, {"strides", Ints{2, 1}}}},
  };
}

std::vector<Example> conv1d_examples() {
  const auto f = [](Shape shape) { return TensorType{kFloat32, shape}; };
  return {
      {{f({2, 3, 7}), f({4, 3, 3})}, {{"padding", std::string("SAME")}}},
      {{f({1, 4, 8}), f({2, 2, 2})}, {{"groups", int64_t{2}}, {"strides", Ints{3}}}},
      {{f({1, 8, 2}), f({3, 3, 2})}, {{"data_format", std::string("NWC")}, {"dilations", Ints{2}}}},
      {{f({1, 2, 5}), f({2, 2, 4})}, {{"pads", Ints{0, 0, 0, 0, 2, 1}}}},
  };
}

std::vector<Example> examples_of(int spatial_axes) { return spatial_axes == 2 ? conv2d_examples() : conv1d_examples(); }

// The examples of a gradient op: of a forward example, dy and the other input, with the shape of what is wanted.
std::vector<Example> grad_examples(const std::vector<Example>& forward, ConvKind kind, int spatial_axes) {
  std::vector<Example> result;
  const ConvOp op{ConvKind::Forward, spatial_axes};
  for (const Example& example : forward) {
    Attrs attrs;
    for (const AttrDef& attr : conv_attrs(spatial_axes)) attrs.set(attr.name, attr.fallback);
    for (const auto& [name, value] : example.attrs) attrs.set(name, value);
    const TensorType &x = example.inputs[0], &filter = example.inputs[1];
    const TensorType dy{kFloat32, op.infer({{&x, &filter}, attrs})[0].shape};
    const bool for_input = kind == ConvKind::InputGrad;
    result.push_back({{dy, for_input ? filter : x},
                      with(example.attrs, "shape", (for_input ? x : filter).shape.dims()),
                      example.low,
                      example.high});
  }
  return result;
}

// And in mixed precision, with either dtype of the result.
std::vector<Example> with_mixed(std::vector<Example> examples) {
  const size_t count = examples.size();
  for (size_t i = 0; i < count; ++i) {
    Example mixed = examples[i];
    for (TensorType& input : mixed.inputs) input.dtype = DType::BFloat16;
    mixed.attrs.set("mixed", std::string(name(i % 2 == 0 ? DType::Float32 : DType::BFloat16)));
    examples.push_back(std::move(mixed));
  }
  return examples;
}

void add_conv(Catalog& catalog, int spatial_axes) {
  const std::string name = text("conv", spatial_axes, "d");
  const ConvGrads grads{name};
  const std::vector<Example> examples = examples_of(spatial_axes);

  OpDef forward = ConvOp{ConvKind::Forward, spatial_axes}.def(name, {{"x"}, {"filter"}});
  forward.lua = "nn." + name;
  forward.doc = conv_doc(spatial_axes);
  forward.grad = [grads](GradCall& call) { return grads.of_forward(call); };
  forward.rewrites = {{name + " + bias_add (+ relu or relu6)", {name + "_bias"}, fuse_bias}};
  if (spatial_axes == 2)
    forward.rewrites.push_back(
        {"conv2d + batch_norm_infer (+ relu or relu6)", {"fold_batch_norm", "cast", "conv2d_bias"}, fuse_conv_norm});
  forward.examples = examples;
  catalog.add(std::move(forward));

  OpDef input_grad = ConvOp{ConvKind::InputGrad, spatial_axes}.def(name + "_input_grad", {{"dy"}, {"filter"}});
  input_grad.doc = "Gradient of " + name + " with respect to x: each dy spread back over the window it came from.";
  input_grad.outputs = {"dx"};
  input_grad.attrs.push_back(shape_attr("x"));
  input_grad.grad = [grads](GradCall& call) { return grads.of_input_grad(call); };
  input_grad.examples = grad_examples(examples, ConvKind::InputGrad, spatial_axes);
  catalog.add(std::move(input_grad));

  OpDef filter_grad = ConvOp{ConvKind::FilterGrad, spatial_axes}.def(name + "_filter_grad", {{"dy"}, {"x"}});
  filter_grad.doc = "Gradient of " + name + " with respect to the filter: dy times what the window saw, summed over " +
                    "batch and places.\nThe last bits of float32 depend on the number of threads, each of which sums "
                    "a part of the batch.";
  filter_grad.outputs = {"dfilter"};
  filter_grad.attrs.push_back(shape_attr("the filter"));
  filter_grad.grad = [grads](GradCall& call) { return grads.of_filter_grad(call); };
  filter_grad.rewrites = {{name + "_filter_grad + bias_grad", {name + "_filter_bias_grad"}, fuse_bias_grad}};
  filter_grad.examples = with_mixed(grad_examples(examples, ConvKind::FilterGrad, spatial_axes));
  catalog.add(std::move(filter_grad));
}

std::vector<Example> with_bias(std::vector<Example> examples, const std::string& activation) {
  for (Example& example : examples) {
    example.inputs.push_back({kFloat32, {example.inputs[1].shape[0]}});
    example.attrs.set("activation", activation);
  }
  return examples;
}

// What fusion makes of a convolution with a bias.
void add_conv_bias(Catalog& catalog, int spatial_axes) {
  const std::string name = text("conv", spatial_axes, "d");
  const std::vector<Example> examples = examples_of(spatial_axes);

  OpDef fused = ConvOp{ConvKind::ForwardBias, spatial_axes}.def(name + "_bias", {{"x"}, {"filter"}, {"bias"}});
  fused.doc =
      name + ", bias_add over the filters and perhaps an activation in one pass. Made by fusion, after gradients.";
  fused.attrs.push_back(activation_attr());
  fused.examples = with_bias(examples, "none");
  for (Example& example : with_bias(examples, "relu")) {
    fused.examples.push_back(example);
    example.inputs[0].dtype = example.inputs[1].dtype = DType::BFloat16;
    fused.examples.push_back(std::move(example));
  }
  if (spatial_axes == 2)
    fused.rewrites = {{"conv2d_bias + max_pool2d and their gradients",
                       {"conv2d_relu_pool", "conv2d_relu_pool_filter_grad", "conv2d_relu_pool_input_grad"},
                       fuse_conv_pool},
                      {"conv2d_bias + max_pool2d and their gradients, on a card",
                       {"conv2d_relu_pool", "conv2d_relu_pool_filter_grad", "relu_max_pool2d", "relu_max_pool2d_grad",
                        "conv2d_filter_grad", "conv2d_bias"},
                       fuse_conv_pool_on_card},
                      {"conv2d_bias + add (+ relu or relu6)", {"conv2d_bias_add"}, fuse_conv_add}};
  catalog.add(std::move(fused));

  OpDef grads = ConvOp{ConvKind::FilterBiasGrad, spatial_axes}.def(name + "_filter_bias_grad", {{"dy"}, {"x"}});
  grads.doc = "Gradients of " + name + "_bias with respect to filter and bias in one pass. Made by fusion.";
  grads.outputs = {"dfilter", "dbias"};
  grads.attrs.push_back(shape_attr("the filter"));
  grads.examples = with_mixed(grad_examples(examples, ConvKind::FilterGrad, spatial_axes));
  catalog.add(std::move(grads));
}

}  // namespace

void add_conv(Catalog& catalog) {
  for (const int spatial_axes : {1, 2}) {
    add_conv(catalog, spatial_axes);
    add_conv_bias(catalog, spatial_axes);
  }
  add_conv_pool(catalog);
  add_conv_norm(catalog);
}

}  // namespace moonflow
