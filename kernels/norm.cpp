// Batch normalisation, in training and by given statistics, with its gradients, and its fusions with a relu and a sum
// behind it. The loops are in cpu/norm.cpp.
#include <algorithm>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/norm.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

double checked_epsilon(const Attrs& attrs) {
  const double epsilon = attrs.number("epsilon");
  require(epsilon >= 0, ErrorCode::InvalidArgument, "epsilon must be at least 0, got ", epsilon);
  return epsilon;
}

// The type of what has one value for each channel, after checks of x. Those of narrow images are float32.
TensorType per_channel_type(const OpCall& call, int x) {
  require_floating(call, x, "x");
  const int axis = wrap_axis(call.attrs.integer("axis"), call.shape(x).rank());
  return {is_narrow(call.dtype(x)) ? DType::Float32 : call.dtype(x), {call.shape(x)[axis]}};
}

Launch prepare_moving_statistics_update(KernelCall& call) {
  const int64_t channels = call.inputs[0].count();
  const double momentum = call.attrs.number("momentum"), epsilon = checked_epsilon(call.attrs);
  const double n = static_cast<double>(call.attrs.integer("count"));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      if (const float* finite = launch.input<float>(4); finite && *finite == 0) return;
      T *moving_mean = static_cast<T*>(launch.inputs[0]), *moving_variance = static_cast<T*>(launch.inputs[1]);
      const T *mean = launch.input<T>(2), *inv_std = launch.input<T>(3);
      for (int64_t c = 0; c < channels; ++c) {
        const double biased = std::max(1 / (double{inv_std[c]} * inv_std[c]) - epsilon, 0.0);
        const double unbiased = biased * n / std::max(n - 1, 1.0);
        moving_mean[c] = static_cast<T>(moving_mean[c] * momentum + mean[c] * (1 - momentum));
        moving_variance[c] = static_cast<T>(moving_variance[c] * momentum + unbiased * (1 - momentum));
      }
    };
  });
}

AttrDef axis_attr() { return {"axis", int64_t{1}, "the axis of the channels; negative counts from the last"}; }
AttrDef epsilon_attr(double value) { return {"epsilon", value, "added to the variance"}; }

// ---- fusions ---------------------------------------------------------------------------------------------------

// batch_norm_train and relu or relu6, or the sum with a value of its type and relu, when nobody else reads what is
// between them.
bool fuse_relu(Rewriter& graph, NodeId id) {
  const Node& norm = graph.node(id);
  std::vector<NodeId> nodes{id};
  std::vector<ValueId> inputs = norm.inputs;
  NodeId next = graph.sole_reader(norm.outputs[0]);
  if (next != kNone && graph.node(next).op->name == "add") {
    const Node& add = graph.node(next);
    const ValueId other = add.inputs[add.inputs[0] == norm.outputs[0] ? 1 : 0];
    if (other == norm.outputs[0] || graph.type(other) != graph.type(norm.outputs[0])) return false;
    if (follows_from(graph, other, id)) return false;  // by its statistics, as a gradient through it does
    inputs.push_back(other);
    nodes.push_back(next);
    next = graph.sole_reader(add.outputs[0]);
  }
  // After a relu its output is what its gradient reads, so the only reader of its input is the relu itself.
  const bool added = inputs.size() > 3;
  const std::string name = next == kNone ? "" : graph.node(next).op->name;
  if (name != "relu" && (name != "relu6" || added)) return false;
  nodes.push_back(next);
  graph.fuse(nodes, added ? "batch_norm_add_relu" : "batch_norm_" + name, inputs, norm.attrs,
             {graph.node(next).outputs[0], norm.outputs[1], norm.outputs[2]});
  return true;
}

// The gradients of these fusions. relu_grad(dy, y) is the dy of batch_norm_train_grad, or relu6_grad(dy, y) is.
bool fuse_relu_grad(Rewriter& graph, NodeId id) {
  const Node& norm_grad = graph.node(id);
  if (norm_grad.inputs[5] != kNone || norm_grad.inputs[6] != kNone) return false;
  const ValueId x = norm_grad.inputs[0], gamma = norm_grad.inputs[1], mean = norm_grad.inputs[2];
  const bool six = graph.made_by(norm_grad.inputs[4], "relu6_grad") != kNone;
  const NodeId relu_id = graph.made_by(norm_grad.inputs[4], six ? "relu6_grad" : "relu_grad");
  if (relu_id == kNone) return false;
  const Node& relu_grad = graph.node(relu_id);
  const ValueId dy = relu_grad.inputs[0], y = relu_grad.inputs[1], dsum = relu_grad.outputs[0];
  const auto inputs_of = [&](const Node& norm) {
    return std::vector<ValueId>{x, gamma, norm.inputs[2], mean, norm_grad.inputs[3], dy};
  };
  std::vector<ValueId> outputs = norm_grad.outputs;

  const std::string fused = six ? "batch_norm_relu6" : "batch_norm_relu";
  const NodeId norm_id = graph.made_by(y, fused);
  if (norm_id != kNone && graph.node(norm_id).outputs[1] == mean && graph.sole_reader(dsum) == id) {
    graph.fuse({id, relu_id}, fused + "_grad", inputs_of(graph.node(norm_id)), norm_grad.attrs, outputs);
    return true;
  }
  // The sum's gradient goes to what was added as well, so it is an output. Of two normalisations that were added, only
  // that with the relu in its pass has it.
  const NodeId sum_id = graph.made_by(y, "batch_norm_add_relu");
  if (sum_id == kNone || graph.node(sum_id).outputs[1] != mean) return false;
  std::vector<NodeId> nodes{id, relu_id};
  std::vector<ValueId> inputs = inputs_of(graph.node(sum_id));
  inputs.push_back(y);
  outputs.push_back(dsum);
  // The next block and the way around it both give a gradient, whose sum nobody else reads.
  const NodeId add_id = graph.made_by(dy, "add");
  if (add_id != kNone && graph.sole_reader(dy) == relu_id) {
    const ValueId first = graph.node(add_id).inputs[0], second = graph.node(add_id).inputs[1];
    if (graph.type(first) == graph.type(dy) && graph.type(second) == graph.type(dy)) {
      nodes.push_back(add_id);
      inputs[5] = first;
      inputs.push_back(second);
    }
  }
  graph.fuse(nodes, "batch_norm_add_relu_grad", inputs, norm_grad.attrs, outputs);
  return true;
}

// ---- gradients of the gradients --------------------------------------------------------------------------------

// The axes that a channel goes over, and one value for each channel beside x.
struct ChannelsOf {
  ChannelsOf(GradCall& call, const Term& x) : beside(x.shape()) {
    const int channels = wrap_axis(call.attrs.integer("axis"), beside.rank());
    each = {beside[channels]};
    for (int axis = 0; axis < beside.rank(); ++axis) {
      if (axis == channels) continue;
      axes.push_back(axis);
      count *= static_cast<double>(beside[axis]);
      beside[axis] = 1;
    }
  }
  Ints axes;
  Shape beside, each;
  double count = 1;
};

// In the dtype of the channels, which is wider than that of a narrow x.
Term widened(const Term& x, const Term& channels) {
  return x.dtype() == channels.dtype() ? x : x.op("cast", {{"dtype", channels.dtype()}});
}

std::vector<Term> batch_norm_train_grad_formula(GradCall& call, const Terms& in) {
  const Term x = widened(*in[0], *in[1]), dy = widened(*in[4], *in[1]);
  const ChannelsOf channels(call, x);
  const auto beside = [&](int i) { return in[i]->reshaped(channels.beside); };
  const Term inv_std = beside(3), h = (x - beside(2)) * inv_std;
  const Term sum_dy = sum(dy, channels.axes), sum_dy_h = sum(dy * h, channels.axes);
  const double share = 1 / channels.count;
  Term dx = beside(1) * inv_std * (dy - share * sum_dy - share * h * sum_dy_h);
  if (in[5]) dx = dx + share * beside(5);
  if (in[6]) dx = dx - share * beside(6) * inv_std.op("square") * h;
  return {widened(dx, *in[0]), sum_dy_h.reshaped(channels.each), sum_dy.reshaped(channels.each)};
}

std::vector<Term> batch_norm_infer_grad_formula(GradCall& call, const Terms& in) {
  const Term gamma = *in[2], dy = widened(*in[0], gamma), x = widened(*in[1], gamma);
  const ChannelsOf channels(call, x);
  const Term s = (checked_epsilon(call.attrs) + *in[4]).op("rsqrt"), gamma_s = gamma * s;
  const Term h = (x - in[3]->reshaped(channels.beside)) * s.reshaped(channels.beside);
  const Term dgamma = sum(dy * h, channels.axes).reshaped(channels.each);
  const Term dbeta = sum(dy, channels.axes).reshaped(channels.each);
  return {widened(dy * gamma_s.reshaped(channels.beside), *in[1]), dgamma, dbeta, -gamma_s * dbeta,
          -0.5 * gamma_s * s * dgamma};
}

// ---- the ops ---------------------------------------------------------------------------------------------------

void add_batch_norm_train(Catalog& catalog) {
  OpDef op;
  op.name = "batch_norm_train";
  op.doc =
      "Batch normalisation by the statistics of the batch. moving_statistics_update moves the running ones.\n"
      "  mean, var = of x over all axes but `axis`, var divided by the number of values;  inv_std = 1 / sqrt(var + "
      "epsilon)\n"
      "  y = (x - mean) * inv_std * gamma + beta\n"
      "shapes: x (any, rank at least 1), gamma and beta (channels) -> y as x, mean and inv_std (channels)\n"
      "dtypes: float32 or float64, all the same; an x in bfloat16 or float16 gives such a y, all else is then float32\n"
      "defaults: axis = 1, epsilon = 0.001\n"
      "errors: gamma or beta without one value for each channel; no value to take statistics of\n"
      "source: Ioffe, Szegedy, Batch Normalization, ICML 2015";
  op.inputs = {{"x"}, {"gamma"}, {"beta"}};
  op.outputs = {"y", "mean", "inv_std"};
  op.attrs = {axis_attr(), epsilon_attr(1e-3)};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    require_type(call, 1, "gamma", channels);
    require_type(call, 2, "beta", channels);
    require(call.shape(0).count() > 0 || channels.shape[0] == 0, ErrorCode::ShapeMismatch, "x is ", call.shape(0),
            "; there is nothing to take statistics of");
    checked_epsilon(call.attrs);
    return {call.type(0), channels, channels};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    // Only the statistics may have been used; then y counts with a gradient of zero.
    const ValueId dy = g.grads[0] != kNone ? g.grads[0] : g.op("zeros_like", {g.outputs[0]});
    const std::vector<ValueId> grads = g.ops(
        "batch_norm_train_grad", {g.inputs[0], g.inputs[1], g.outputs[1], g.outputs[2], dy, g.grads[1], g.grads[2]},
        {{"axis", g.attrs.integer("axis")}});
    return {grads[0], grads[1], grads[2]};
  };
  op.cpu = {[](KernelCall& call) { return cpu::batch_norm_train(call, checked_epsilon(call.attrs), Tail::None); },
            cpu::batch_norm_layouts};
  op.narrow = follows_off_cpu({1, 2});
  op.rewrites = {{"batch_norm_train (+ add) + relu, or + relu6",
                  {"batch_norm_relu", "batch_norm_relu6", "batch_norm_add_relu"},
                  fuse_relu}};
  op.inplace = {{0, 0}};
  op.examples = {{{f32({3, 2, 4}), f32({2}), f32({2})}},
                 {{f32({5, 3}), f32({3}), f32({3})}, {{"axis", int64_t{-1}}}},
                 {{bf16({3, 2, 4}), f32({2}), f32({2})}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "batch_norm_train_grad";
  grad.doc =
      "Gradient of batch_norm_train. With h = (x - mean) * inv_std and n values in a channel:\n"
      "  dx = gamma * inv_std * (dy - sum(dy) / n - h * sum(dy * h) / n) + dmean / n - dinv_std * inv_std^2 * h / n\n"
      "  dgamma = sum(dy * h);  dbeta = sum(dy)\n"
      "shapes: x, dy alike, the other inputs (channels) -> dx as x, dgamma and dbeta (channels)";
  grad.inputs = {
      {"x"}, {"gamma"}, {"mean"}, {"inv_std"}, {"dy"}, {"dmean", InputDef::Optional}, {"dinv_std", InputDef::Optional}};
  grad.outputs = {"dx", "dgamma", "dbeta"};
  grad.attrs = {axis_attr()};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    const char* names[] = {"x", "gamma", "mean", "inv_std", "dy", "dmean", "dinv_std"};
    for (int i = 1; i < 7; ++i) {
      if (call.has(i)) require_type(call, i, names[i], i == 4 ? call.type(0) : channels);
    }
    return {call.type(0), channels, channels};
  };
  grad.grad = gradient_of(batch_norm_train_grad_formula);
  grad.cpu = {[](KernelCall& call) { return cpu::batch_norm_train_grad(call, Tail::None); }, cpu::batch_norm_layouts};
  grad.rewrites = {
      {"batch_norm_train_grad + relu_grad or relu6_grad",
       {"batch_norm_relu_grad", "batch_norm_relu6_grad", "batch_norm_add_relu_grad"},
       fuse_relu_grad}};
  grad.narrow = follows_off_cpu({1, 2, 3, 5, 6});
  grad.inplace = {{0, 0}, {0, 4}};
  const TensorType c = f32({2}), x = f32({3, 2, 4}), narrow = bf16({3, 2, 4});
  grad.examples = {{{x, c, c, c, x}}, {{x, c, c, c, x, c, c}}, {{narrow, c, c, c, narrow, c, c}}};
  catalog.add(grad);
}

// What the fusions make of batch_norm_train and its gradient.
void add_batch_norm_relu(Catalog& catalog, Tail tail) {
  const bool added = tail == Tail::AddRelu;
  const OpDef &plain = catalog.at("batch_norm_train"), &plain_grad = catalog.at("batch_norm_train_grad");
  const TensorType c = f32({2}), x = f32({3, 2, 4}), narrow = bf16({3, 2, 4});

  OpDef op;
  const std::string relu = tail == Tail::Relu6 ? "relu6" : "relu";
  op.name = (added ? "batch_norm_add_" : "batch_norm_") + relu;
  op.doc = added ? "batch_norm_train, the sum with addend, and relu in one pass. Made by fusion, after gradients.\n"
                   "shapes: addend as x"
                 : text("batch_norm_train and ", relu, " in one pass. Made by fusion, after gradients.");
  op.inputs = plain.inputs;
  if (added) op.inputs.push_back({"addend"});
  op.outputs = plain.outputs;
  op.attrs = plain.attrs;
  op.infer = [added, infer = plain.infer](const OpCall& call) {
    if (added) require_type(call, 3, "addend", call.type(0));
    return infer(call);
  };
  op.cpu = {[tail](KernelCall& call) { return cpu::batch_norm_train(call, checked_epsilon(call.attrs), tail); },
            cpu::batch_norm_layouts};
  op.inplace = {{0, 0}};
  if (added) op.inplace.push_back({0, 3});
  const double far = tail == Tail::Relu6 ? 8 : 1;  // beyond where a relu6 ends
  op.examples = {{{x, c, c}, {}, -far, far}, {{narrow, c, c}, {}, -far, far}};
  for (Example& example : op.examples)
    if (added) example.inputs.push_back(example.inputs[0]);
  catalog.add(op);

  OpDef grad;
  grad.name = op.name + "_grad";
  grad.doc = added ? "Gradient of batch_norm_add_relu; daddend is that of the sum before the relu. What arrives is the "
                     "sum of dy and, where it is there, more_dy. Made by fusion.\n"
                     "shapes: x, dy, y, more_dy alike, the other inputs (channels) -> dx and daddend as x, the others "
                     "(channels)"
                   : text("Gradient of ", op.name, ". Made by fusion.\n"
                          "shapes: x, dy alike, the other inputs (channels) -> dx as x, dgamma and dbeta (channels)");
  grad.inputs = {{"x"}, {"gamma"}, {"beta"}, {"mean"}, {"inv_std"}, {"dy"}};
  if (added) grad.inputs.insert(grad.inputs.end(), {{"y"}, {"more_dy", InputDef::Optional}});
  grad.outputs = plain_grad.outputs;
  if (added) grad.outputs.push_back("daddend");
  grad.attrs = plain_grad.attrs;
  grad.infer = [added](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    const char* names[] = {"x", "gamma", "beta", "mean", "inv_std", "dy", "y", "more_dy"};
    for (int i = 1; i < call.count(); ++i)
      if (call.has(i)) require_type(call, i, names[i], i < 5 ? channels : call.type(0));
    std::vector<TensorType> types{call.type(0), channels, channels};
    if (added) types.push_back(call.type(0));
    return types;
  };
  grad.cpu = {[tail](KernelCall& call) { return cpu::batch_norm_train_grad(call, tail); }, cpu::batch_norm_layouts};
  grad.inplace = {{0, 0}};
  grad.inplace.push_back(added ? Sharing{3, 5} : Sharing{0, 5});
  grad.examples = {{{x, c, c, c, c, x}, {}, -far, far}, {{narrow, c, c, c, c, narrow}, {}, -far, far}};
  for (Example& example : grad.examples)
    if (added) example.inputs.push_back(example.inputs[0]);
  if (added) {
    grad.examples.push_back({{x, c, c, c, c, x, x, x}});
    grad.examples.push_back({{narrow, c, c, c, c, narrow, narrow, narrow}});
  }
  catalog.add(grad);
}

// A step of its own, apart from batch_norm_train: like every update it comes after all that can fail in a run.
void add_moving_statistics_update(Catalog& catalog) {
  OpDef op;
  op.name = "moving_statistics_update";
  op.doc =
      "Moves the running statistics of a batch normalisation towards those of a batch.\n"
      "  moving_mean = moving_mean * momentum + mean * (1 - momentum)\n"
      "  moving_variance = moving_variance * momentum + var * count / (count - 1) * (1 - momentum)\n"
      "  where var = 1 / inv_std^2 - epsilon. What enters is the unbiased variance, as cuDNN does it.\n"
      "finite, if given, is 0 in a step that is left out: nothing is changed.\n"
      "shapes: all (channels), but for finite ()\n"
      "dtypes: float32 or float64, all the same; finite float32\n"
      "defaults: momentum = 0.99, epsilon = 0.001\n"
      "errors: inputs of different types; momentum outside [0, 1]; count below 1";
  op.inputs = {{"moving_mean"}, {"moving_variance"}, {"mean"}, {"inv_std"}, {"finite", InputDef::Optional}};
  op.outputs = {};
  op.attrs = {{"momentum", 0.99, "how much of the running statistics stays"},
              epsilon_attr(1e-3),
              {"count", int64_t{1}, "values of the batch in a channel", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "moving_mean");
    const char* names[] = {"moving_mean", "moving_variance", "mean", "inv_std"};
    for (int i = 1; i < 4; ++i) require_type(call, i, names[i], call.type(0));
    if (call.has(4)) require_type(call, 4, "finite", f32({}));
    const double momentum = call.attrs.number("momentum");
    require(momentum >= 0 && momentum <= 1, ErrorCode::InvalidArgument, "momentum must be in [0, 1], got ", momentum);
    require(call.attrs.integer("count") >= 1, ErrorCode::InvalidArgument, "count must be at least 1");
    checked_epsilon(call.attrs);
    return {};
  };
  op.cpu = {prepare_moving_statistics_update};
  op.writes = {0, 1};
  const TensorType c = f32({3});
  op.examples = {{{c, c, c, c}, {{"count", int64_t{8}}}, 0.1, 0.9},
                 {{c, c, c, c, f32({})}, {{"count", int64_t{8}}}, 0.1, 0.9}};
  catalog.add(op);
}

void add_batch_norm_infer(Catalog& catalog) {
  OpDef op;
  op.name = "batch_norm_infer";
  op.doc =
      "Batch normalisation by given statistics.\n"
      "  y = (x - mean) / sqrt(variance + epsilon) * gamma + beta\n"
      "shapes: x (any, rank at least 1), the other inputs (channels) -> y as x\n"
      "dtypes: float32 or float64, all the same; an x in bfloat16 or float16 gives such a y, all else is then float32\n"
      "defaults: axis = 1, epsilon = 0.001\n"
      "errors: an input that has not one value for each channel\n"
      "source: Ioffe, Szegedy, Batch Normalization, ICML 2015";
  op.inputs = {{"x"}, {"gamma"}, {"beta"}, {"mean"}, {"variance"}};
  op.outputs = {"y"};
  op.attrs = {axis_attr(), epsilon_attr(1e-3)};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    const char* names[] = {"x", "gamma", "beta", "mean", "variance"};
    for (int i = 1; i < 5; ++i) require_type(call, i, names[i], channels);
    checked_epsilon(call.attrs);
    return {call.type(0)};
  };
  op.grad = [](GradCall& g) {
    return g.ops("batch_norm_infer_grad", {g.grads[0], g.inputs[0], g.inputs[1], g.inputs[3], g.inputs[4]}, g.attrs);
  };
  op.cpu = {[](KernelCall& call) { return cpu::batch_norm_infer(call, checked_epsilon(call.attrs)); },
            cpu::batch_norm_layouts};
  op.narrow = follows_off_cpu({1, 2, 3, 4});
  op.inplace = {{0, 0}};
  // The range keeps the drawn variances positive.
  op.examples = {{{f32({3, 2, 4}), f32({2}), f32({2}), f32({2}), f32({2})}, {}, 0.25, 1},
                 {{f32({5, 3}), f32({3}), f32({3}), f32({3}), f32({3})}, {{"axis", int64_t{-1}}}, 0.25, 1},
                 {{bf16({3, 2, 4}), f32({2}), f32({2}), f32({2}), f32({2})}, {}, 0.25, 1}};

  OpDef grad;
  grad.name = "batch_norm_infer_grad";
  grad.doc =
      "Gradient of batch_norm_infer. With s = 1 / sqrt(variance + epsilon) and h = (x - mean) * s:\n"
      "  dx = dy * gamma * s;  dgamma = sum(dy * h);  dbeta = sum(dy)\n"
      "  dmean = -gamma * s * dbeta;  dvariance = -gamma * s^2 * dgamma / 2\n"
      "shapes: dy and x alike, the other inputs (channels) -> dx as x, the others (channels)";
  grad.inputs = {{"dy"}, {"x"}, {"gamma"}, {"mean"}, {"variance"}};
  grad.outputs = {"dx", "dgamma", "dbeta", "dmean", "dvariance"};
  grad.attrs = op.attrs;
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 1);
    require_type(call, 0, "dy", call.type(1));
    const char* names[] = {"dy", "x", "gamma", "mean", "variance"};
    for (int i = 2; i < 5; ++i) require_type(call, i, names[i], channels);
    return {call.type(1), channels, channels, channels, channels};
  };
  grad.grad = gradient_of(batch_norm_infer_grad_formula);
  grad.cpu = {[](KernelCall& call) { return cpu::batch_norm_infer_grad(call, checked_epsilon(call.attrs)); },
              cpu::batch_norm_layouts};
  grad.narrow = follows_off_cpu({2, 3, 4});
  grad.inplace = {{0, 0}, {0, 1}};
  grad.examples = {{{f32({3, 2, 4}), f32({3, 2, 4}), f32({2}), f32({2}), f32({2})}, {}, 0.25, 1},
                   {{bf16({3, 2, 4}), bf16({3, 2, 4}), f32({2}), f32({2}), f32({2})}, {}, 0.25, 1}};
  catalog.add(op);
  catalog.add(grad);
}

}  // namespace

void add_norm(Catalog& catalog) {
  add_batch_norm_train(catalog);
  add_batch_norm_relu(catalog, Tail::Relu);
  add_batch_norm_relu(catalog, Tail::Relu6);
  add_batch_norm_relu(catalog, Tail::AddRelu);
  add_moving_statistics_update(catalog);
  add_batch_norm_infer(catalog);
}

}  // namespace moonflow
