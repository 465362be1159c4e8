// Networks with batch normalisation and residual sums that only predict. The normalisation by given statistics is a
// scale and a shift per channel, so it goes into the filter and the bias of the convolution before it: fold_batch_norm
// gives these, and as it reads variables alone, a plan computes it once and keeps it. What is added behind a
// convolution, the shortcut of a residual block, is read where the result is written.
#include <algorithm>
#include <cmath>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"
#include "kernels/row_major.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- folding -----------------------------------------------------------------------------------------------------

Launch prepare_fold(KernelCall& call) {
  const int64_t filters = call.inputs[0].shape[0], each = call.inputs[0].shape.count(1, call.inputs[0].shape.rank());
  const double epsilon = call.attrs.number("epsilon");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *filter = launch.input<T>(0), *gamma = launch.input<T>(1), *beta = launch.input<T>(2);
      const T *mean = launch.input<T>(3), *variance = launch.input<T>(4);
      T *folded = launch.output<T>(0), *bias = launch.output<T>(1);
      cpu::parallel_for(filters, cpu::kGrain / each + 1, [&](int64_t first, int64_t last) {
        for (int64_t f = first; f < last; ++f) {
          const T scale = static_cast<T>(gamma[f] / std::sqrt(double{variance[f]} + epsilon));
          bias[f] = beta[f] - mean[f] * scale;
          for (int64_t i = f * each; i < (f + 1) * each; ++i) folded[i] = filter[i] * scale;
        }
      });
    };
  });
}

OpDef fold_batch_norm() {
  OpDef op;
  op.name = "fold_batch_norm";
  op.doc =
      "Filter and bias of a convolution that gives what batch_norm_infer gives behind the same without bias. Made by "
      "fusion.\n"
      "  folded[f] = filter[f] * s[f], bias[f] = beta[f] - mean[f] * s[f], s = gamma / sqrt(variance + epsilon)";
  op.inputs = {{"filter"}, {"gamma"}, {"beta"}, {"mean"}, {"variance"}};
  op.outputs = {"folded", "bias"};
  op.attrs = {{"epsilon", 1e-3, "added to the variance"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "filter");
    require(call.shape(0).rank() > 0, ErrorCode::ShapeMismatch, "filter is a single number");
    const TensorType filters{call.dtype(0), {call.shape(0)[0]}};
    const char* names[] = {"filter", "gamma", "beta", "mean", "variance"};
    for (int i = 1; i < 5; ++i) require_type(call, i, names[i], filters);
    return {call.type(0), filters};
  };
  op.cpu = {prepare_fold};
  // The range keeps the drawn variances positive.
  const TensorType c = f32({3});
  op.examples = {{{f32({3, 2, 1, 4}), c, c, c, c}, {}, 0.25, 1}};
  return op;
}

// ---- the sum with what else is added -----------------------------------------------------------------------------

Conv sizes(const Attrs& attrs, const std::vector<TensorType>& inputs) {
  return conv_of(attrs, inputs[0].shape, inputs[1].shape, 2);
}

void sum_layouts(LayoutCall& call) {
  if (call.input_types[0].dtype == DType::Float32) {
    const Conv conv = sizes(call.attrs, call.input_types);
    if (cpu::own_conv_layouts(conv, ConvKind::ForwardAdd, conv_way(call.attrs), call)) return;
  }
  lie_in_rows(call);
}

Launch prepare_sum(KernelCall& call) {
  const Conv conv = sizes(call.attrs, call.inputs);
  const Activation activation = activation_of(call.attrs);
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::Float32) {
    const ConvWay way = conv_way(call.attrs);
    if (Launch launch = cpu::own_conv(conv, ConvKind::ForwardAdd, way, activation, call)) return launch;
  }
  const Launch inner = cpu::conv_packed(conv, ConvKind::ForwardBias, dtype, Activation::None, call);
  // The output may be the addend's memory, so the convolution goes to scratch, behind its own.
  const int64_t count = call.outputs[0].count(), sums_at = aligned(call.scratch_bytes);
  call.scratch_bytes = checked_sum(sums_at, call.outputs[0].bytes());
  return visit_floating(dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      void* outputs[] = {static_cast<char*>(launch.scratch) + sums_at};
      inner(LaunchCall{launch.stream, launch.inputs, outputs, launch.scratch});
      const T *sums = static_cast<T*>(outputs[0]), *addend = launch.input<T>(3);
      T* out = launch.output<T>(0);
      cpu::parallel_for(count, cpu::kGrain, [=](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) out[i] = activated(activation, sums[i] + addend[i]);
      });
    };
  });
}

OpDef conv2d_bias_add() {
  OpDef op;
  op.name = "conv2d_bias_add";
  op.doc =
      "conv2d, bias_add over the filters, the sum with addend and perhaps an activation in one pass. Made by fusion.\n"
      "shapes: addend as the output";
  op.inputs = {{"x"}, {"filter"}, {"bias"}, {"addend"}};
  op.attrs = conv_attrs(2);
  op.attrs.push_back(activation_attr());
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    const Conv conv = conv_of(call.attrs, call.shape(0), call.shape(1), 2);
    const TensorType out{call.dtype(0), conv.out.shape(conv.format)};
    require_type(call, 1, "filter", {call.dtype(0), call.shape(1)});
    const bool float32 = is_narrow(call.dtype(0)) && call.dtype(2) == DType::Float32;
    require_type(call, 2, "bias", {float32 ? DType::Float32 : call.dtype(0), {conv.filters()}});
    require_type(call, 3, "addend", out);
    return {out};
  };
  op.cpu = {prepare_sum, sum_layouts};
  op.flops = [](const KernelCall& call) { return conv_flops(sizes(call.attrs, call.inputs)); };
  op.inplace = {{0, 3}};
  const std::string winograd = "winograd", same = "SAME", nhwc = "NHWC";
  const Attrs attrs{{"padding", same}, {"activation", std::string("relu")}};
  op.examples = {
      {{f32({2, 3, 5, 6}), f32({4, 3, 3, 3}), f32({4}), f32({2, 4, 5, 6})}, attrs},
      {{f32({1, 3, 6, 5}), f32({2, 3, 3, 3}), f32({2}), f32({1, 2, 6, 5})}, with(attrs, "algorithm", winograd)},
      {{f32({1, 3, 6, 5}), f32({2, 3, 3, 3}), f32({2}), f32({1, 2, 4, 3})}, {{"algorithm", winograd}}},
      {{f32({1, 5, 6, 16}), f32({16, 3, 3, 16}), f32({16}), f32({1, 5, 6, 16})}, with(attrs, "data_format", nhwc)},
      {{bf16({1, 3, 6, 5}), bf16({9, 3, 3, 3}), f32({9}), bf16({1, 9, 6, 5})}, attrs}};
  return op;
}

}  // namespace

// ---- fusions -----------------------------------------------------------------------------------------------------

// conv2d and batch_norm_infer over its filters, perhaps with an activation: a convolution with another filter, and a
// bias.
bool fuse_conv_norm(Rewriter& graph, NodeId id) {
  const Node& conv = graph.node(id);
  const NodeId norm_id = graph.sole_reader(conv.outputs[0]);
  if (norm_id == kNone || graph.node(norm_id).op->name != "batch_norm_infer") return false;
  const Node& norm = graph.node(norm_id);
  const ImageFormat format = image_format(conv.attrs.string("data_format"), 2);
  if (norm.inputs[0] != conv.outputs[0]) return false;
  if (wrap_axis(norm.attrs.integer("axis"), format.rank()) != format.channel_axis()) return false;

  const ValueId x = conv.inputs[0], filter = conv.inputs[1], y = norm.outputs[0], gamma = norm.inputs[1];
  // In mixed precision the filter is rounded before it comes here. It is folded before it is.
  const bool is_rounded = graph.type(filter).dtype != graph.type(gamma).dtype && graph.sole_reader(filter) == id;
  const NodeId rounds = is_rounded ? graph.made_by(filter, "cast") : kNone;
  const ValueId exact = rounds == kNone ? filter : graph.node(rounds).inputs[0];
  if (graph.type(exact).dtype != graph.type(gamma).dtype) return false;
  const ValueId folded = graph.add_value(graph.type(exact)), bias = graph.add_value(graph.type(gamma));
  const ValueId rounded = rounds == kNone ? folded : graph.add_value(graph.type(filter));
  const NodeId active_id = activation_behind(graph, y);
  const ValueId out = active_id == kNone ? y : graph.node(active_id).outputs[0];
  std::vector<NodeId> nodes{id};
  if (active_id != kNone) nodes.push_back(active_id);
  Attrs attrs = conv.attrs;
  attrs.set("activation", active_id == kNone ? std::string("none") : graph.node(active_id).op->name);
  graph.fuse({norm_id}, "fold_batch_norm", {exact, gamma, norm.inputs[2], norm.inputs[3], norm.inputs[4]},
             {{"epsilon", norm.attrs.number("epsilon")}}, {folded, bias});
  if (rounds != kNone) graph.fuse({rounds}, "cast", {folded}, {{"dtype", graph.type(filter).dtype}}, {rounded});
  graph.fuse(nodes, "conv2d_bias", {x, rounded, bias}, std::move(attrs), {out});
  return true;
}

// conv2d_bias, a sum with a value of its type, and perhaps an activation, where the kernel can add.
bool fuse_conv_add(Rewriter& graph, NodeId id) {
  const Node& conv = graph.node(id);
  const ValueId out = conv.outputs[0];
  const NodeId add_id = graph.sole_reader(out);
  if (activation_of(conv.attrs) != Activation::None) return false;
  if (add_id == kNone || graph.node(add_id).op->name != "add") return false;
  const Node& add = graph.node(add_id);
  const ValueId addend = add.inputs[add.inputs[0] == out ? 1 : 0];
  if (addend == out || graph.type(addend) != graph.type(out) || graph.type(out).dtype != DType::Float32) return false;
  const Conv sizes = conv_of(conv.attrs, graph.type(conv.inputs[0]).shape, graph.type(conv.inputs[1]).shape, 2);
  if (!cpu::has_own_conv(sizes, ConvKind::ForwardAdd, conv_way(conv.attrs))) return false;

  std::vector<NodeId> nodes{id, add_id};
  ValueId last = add.outputs[0];
  Attrs attrs = conv.attrs;
  const NodeId active_id = activation_behind(graph, last);
  if (active_id != kNone) {
    nodes.push_back(active_id);
    last = graph.node(active_id).outputs[0];
    attrs.set("activation", graph.node(active_id).op->name);
  }
  graph.fuse(nodes, "conv2d_bias_add", {conv.inputs[0], conv.inputs[1], conv.inputs[2], addend}, std::move(attrs),
             {last});
  return true;
}

void add_conv_norm(Catalog& catalog) {
  catalog.add(fold_batch_norm());
  catalog.add(conv2d_bias_add());
}

}  // namespace moonflow
