// The losses that go element by element. Those over classes are in cross_entropy.cpp.
#include "kernels/loss.h"

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- meaning -------------------------------------------------------------------------------------------------

// (first, second), or (dy, first, second), all alike -> that type
Infer infer_alike(int first, const char* first_name, int second, const char* second_name) {
  return [=](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, second, second_name);
    require_same(call, first, first_name, second, second_name);
    require(call.type(0) == call.type(first), ErrorCode::ShapeMismatch, "dy is ", call.type(0), ", ", first_name,
            " is ", call.type(first));
    return {call.type(second)};
  };
}

// ---- CPU -----------------------------------------------------------------------------------------------------

// A kernel over elements: compute(i, inputs..., output) with pointers of the floating type of the first input.
template <class Compute>
Launch elementwise(KernelCall& call, Compute compute) {
  const int64_t count = call.outputs[0].count();
  const bool three = call.inputs.size() == 3;
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *a = launch.input<T>(0), *b = launch.input<T>(1), *c = three ? launch.input<T>(2) : nullptr;
      T* out = launch.output<T>(0);
      cpu::parallel_for(count, cpu::kGrain / 4, [=](int64_t first, int64_t last) {
        cpu::widest([=] {
          const Compute held = compute;
#pragma GCC ivdep  // inputs and output are apart or the same
          for (int64_t i = first; i < last; ++i) out[i] = held(i, a, b, c);
        });
      });
    };
  });
}

Launch prepare_sigmoid_cross_entropy(KernelCall& call) {
  return elementwise(call, [](int64_t i, const auto* labels, const auto* logits, const auto*) {
    return loss::sigmoid_cross_entropy(labels[i], logits[i]);
  });
}

Launch prepare_sigmoid_cross_entropy_grad(KernelCall& call) {
  return elementwise(call, [](int64_t i, const auto* dy, const auto* labels, const auto* logits) {
    return dy[i] * loss::sigmoid_cross_entropy_slope(labels[i], logits[i]);
  });
}

Launch prepare_smooth_l1(KernelCall& call) {
  const double beta = call.attrs.number("beta");
  return elementwise(call, [beta](int64_t i, const auto* prediction, const auto* label, const auto*) {
    using T = std::decay_t<decltype(*prediction)>;
    return loss::smooth_l1(prediction[i] - label[i], static_cast<T>(beta));
  });
}

Launch prepare_smooth_l1_grad(KernelCall& call) {
  const double beta = call.attrs.number("beta");
  return elementwise(call, [beta](int64_t i, const auto* dy, const auto* prediction, const auto* label) {
    using T = std::decay_t<decltype(*dy)>;
    return dy[i] * loss::smooth_l1_slope(prediction[i] - label[i], static_cast<T>(beta));
  });
}

// ---- the ops -------------------------------------------------------------------------------------------------

void add_sigmoid(Catalog& catalog) {
  OpDef op;
  op.name = "sigmoid_cross_entropy_with_logits";
  op.lua = "nn.sigmoid_cross_entropy_with_logits";
  op.doc =
      "Cross entropy between labels in [0, 1] and sigmoid(logits), element by element.\n"
      "  out = max(logits, 0) - logits * labels + log(1 + exp(-|logits|))\n"
      "An infinite logit costs 0 where the label is the 1 or 0 that it stands for, and else infinity.\n"
      "shapes: labels and logits alike -> out alike\n"
      "dtypes: float32 or float64, both the same -> the same, in nats\n"
      "errors: labels and logits differ in shape or dtype";
  op.inputs = {{"labels"}, {"logits"}};
  op.infer = infer_alike(0, "labels", 1, "logits");
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {g.op("negative", {g.op("multiply", {g.grads[0], g.inputs[1]})}),
            g.op("sigmoid_cross_entropy_grad", {g.grads[0], g.inputs[0], g.inputs[1]})};
  };
  op.cpu = {prepare_sigmoid_cross_entropy};
  op.inplace = {{0, 0}, {0, 1}};
  op.examples = {{{f32({3, 4}), f32({3, 4})}, {}, -2, 2}};
  catalog.add(op);

  OpDef grad;
  grad.name = "sigmoid_cross_entropy_grad";
  grad.doc =
      "Gradient of sigmoid_cross_entropy_with_logits for the logits.\n"
      "  dlogits = dy * (sigmoid(logits) - labels)\n"
      "shapes: dy, labels and logits alike -> dlogits alike";
  grad.inputs = {{"dy"}, {"labels"}, {"logits"}};
  grad.outputs = {"dlogits"};
  grad.infer = infer_alike(1, "labels", 2, "logits");
  grad.grad = gradient_of(
      [](GradCall&, const Terms& in) -> std::vector<Term> { return {*in[0] * (in[2]->op("sigmoid") - *in[1])}; });
  grad.cpu = {prepare_sigmoid_cross_entropy_grad};
  grad.inplace = {{0, 0}, {0, 1}, {0, 2}};
  grad.examples = {{{f32({3, 4}), f32({3, 4}), f32({3, 4})}}};
  catalog.add(grad);
}

void add_smooth_l1(Catalog& catalog) {
  OpDef op;
  op.name = "smooth_l1_loss";
  op.lua = "smooth_l1_loss";
  op.doc =
      "Squared near zero, absolute beyond `beta`, which is Huber's loss divided by beta; element by element.\n"
      "  d = |prediction - label|;  out = d * d / (2 * beta) where d < beta, else d - beta / 2\n"
      "shapes: prediction and label alike -> out alike\n"
      "dtypes: float32 or float64, both the same -> the same\n"
      "defaults: beta = 1; beta = 0 is the plain absolute distance\n"
      "errors: prediction and label differ in shape or dtype; beta below 0\n"
      "source: Girshick, Fast R-CNN, ICCV 2015";
  op.inputs = {{"prediction"}, {"label"}};
  op.attrs = {{"beta", 1.0, "the distance where the square ends; not negative"}};
  op.infer = [](const OpCall& call) {
    const double beta = call.attrs.number("beta");
    require(beta >= 0 && std::isfinite(beta), ErrorCode::InvalidArgument, "beta must be at least 0, got ", beta);
    return infer_alike(0, "prediction", 1, "label")(call);
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const ValueId dprediction =
        g.op("smooth_l1_loss_grad", {g.grads[0], g.inputs[0], g.inputs[1]}, {{"beta", g.attrs.number("beta")}});
    return {dprediction, g.op("negative", {dprediction})};
  };
  op.cpu = {prepare_smooth_l1};
  op.inplace = {{0, 0}, {0, 1}};
  op.examples = {{{f32({3, 4}), f32({3, 4})}, {{"beta", 0.5}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "smooth_l1_loss_grad";
  grad.doc =
      "Gradient of smooth_l1_loss for the prediction; the label's is its negative.\n"
      "  dprediction = dy * clamp((prediction - label) / beta, -1, 1)\n"
      "shapes: dy, prediction and label alike -> dprediction alike";
  grad.inputs = {{"dy"}, {"prediction"}, {"label"}};
  grad.outputs = {"dprediction"};
  grad.attrs = op.attrs;
  grad.infer = infer_alike(1, "prediction", 2, "label");
  grad.grad = gradient_of([](GradCall& call, const Terms& in) -> std::vector<Term> {
    const Term difference = *in[1] - *in[2];
    const double beta = call.attrs.number("beta");
    if (beta == 0) return {*in[0] * difference.op("sign")};
    return {*in[0] * (1 / beta * difference).op("hardtanh")};
  });
  grad.cpu = {prepare_smooth_l1_grad};
  grad.inplace = {{0, 0}, {0, 1}, {0, 2}};
  grad.examples = {{{f32({3, 4}), f32({3, 4}), f32({3, 4})}, {{"beta", 0.5}}}};
  catalog.add(grad);
}

}  // namespace

void add_loss(Catalog& catalog) {
  add_sigmoid(catalog);
  add_smooth_l1(catalog);
}

}  // namespace moonflow
