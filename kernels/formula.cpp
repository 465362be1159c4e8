#include "kernels/formula.h"

#include "engine/autodiff.h"
#include "engine/graph.h"
#include "kernels/types.h"

namespace moonflow {

Term Term::number(double value) const {
  const Attrs attrs{{"value", value}, {"dtype", dtype()}, {"shape", Ints{}}};
  return {*call_, call_->op("constant", {}, attrs)};
}

Term Term::reshaped(const Shape& to) const { return shape() == to ? *this : op("reshape", {{"shape", to.dims()}}); }

Term sum(Term x, const Ints& axes) {
  return axes.empty() ? x : x.op("reduce_sum", {{"axis", axes}, {"keepdims", true}});
}

Term mean(Term x, const Ints& axes) {
  return axes.empty() ? x : x.op("reduce_mean", {{"axis", axes}, {"keepdims", true}});
}

Grad gradient_of(Formula formula) {
  return [formula](GradCall& call) {
    // Copies, so that the walk ends there: one input may be computed from another, and whoever asks goes on himself.
    Terms inputs;
    std::vector<ValueId> copies;
    for (const ValueId input : call.inputs) {
      inputs.emplace_back();
      if (input == kNone) continue;
      copies.push_back(call.op("identity", {input}));
      inputs.back().emplace(call, copies.back());
    }
    const std::vector<Term> outputs = formula(call, inputs);
    std::vector<ValueId> ends, grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (call.grads[i] == kNone) continue;
      ends.push_back(outputs[i].id());
      grads.push_back(call.grads[i]);
    }
    std::vector<ValueId> found = gradients(call.graph, ends, grads, copies), result;
    for (size_t i = 0, next = 0; i < inputs.size(); ++i) result.push_back(inputs[i] ? found[next++] : kNone);
    return result;
  };
}

Grad linear_gradient(std::string gradient_op) {
  return [op = std::move(gradient_op)](GradCall& call) -> std::vector<ValueId> {
    const TensorType x = call.type(call.inputs[0]);
    if (!is_floating(x.dtype)) return {kNone};
    return {call.op(op, {call.grads[0]}, with(call.attrs, "shape", x.shape.dims()))};
  };
}

Grad gradient_of_linear(std::string op) {
  return [op = std::move(op)](GradCall& call) -> std::vector<ValueId> {
    return {call.op(op, {call.grads[0]}, without(call.attrs, "shape"))};
  };
}

}  // namespace moonflow
