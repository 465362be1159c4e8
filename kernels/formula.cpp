#include "kernels/formula.h"

#include "engine/autodiff.h"
#include "engine/graph.h"

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

}  // namespace moonflow
