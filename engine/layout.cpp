#include "engine/layout.h"

namespace moonflow {

namespace {

class LayoutStage {
 public:
  LayoutStage(Draft& draft, Device& device) : draft_(draft), device_(device), lasting_(draft.variables_only_read()) {
    result_.layouts.resize(draft.value_count());
    for (ValueId value = 0; value < draft.value_count(); ++value) result_.origins.push_back(value);
  }

  LaidOut run(const std::vector<NodeId>& sequence) {
    for (const NodeId id : sequence) {
      const Node& node = draft_.node(id);
      if (node.kind == Node::Op) add(node);
    }
    return std::move(result_);
  }

 private:
  void add(const Node& node) {
    if (!node.op->alias.empty()) {  // there is nothing to do
      const ValueId origin = result_.origins[in_layout(node.inputs[node.op->alias[0].input], Layout{})];
      for (const ValueId output : node.outputs) result_.origins[output] = origin;
      return;
    }
    DraftStep step{&node, false, node.inputs, node.outputs, false};
    const Kernel& kernel = device_.kernel(*node.op);
    const std::vector<TensorType> input_types = draft_.types(node.inputs), output_types = draft_.types(node.outputs);
    const std::vector<bool> present = presence(node.inputs);
    LayoutCall call{device_,
                    node.attrs,
                    input_types,
                    present,
                    output_types,
                    std::vector<Layout>(node.inputs.size()),
                    std::vector<Layout>(node.outputs.size())};
    call.allow_tf32 = draft_.graph().allow_tf32;
    if (kernel.layouts) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (present[i]) call.inputs[i] = result_.layouts[node.inputs[i]];
        call.lasting.push_back(present[i] && lasting_[node.inputs[i]]);
      }
      blaming(node.describe(), node.site, [&] { kernel.layouts(call); });
    }
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (present[i]) step.inputs[i] = in_layout(step.inputs[i], call.inputs[i]);
    for (size_t i = 0; i < step.outputs.size(); ++i) result_.layouts[step.outputs[i]] = call.outputs[i];
    result_.steps.push_back(std::move(step));
    for (const ValueId output : node.outputs)
      if (draft_.tapped(output)) result_.tap_sources[output] = in_layout(output, Layout{});
  }

  ValueId in_layout(ValueId value, const Layout& wanted) {
    if (result_.layouts[value] == wanted) return value;
    for (const ValueId copy : copies_[value])
      if (result_.layouts[copy] == wanted) return copy;
    const ValueId copy = draft_.add_value(draft_.type(value), draft_.maker(value));
    result_.layouts.push_back(wanted);
    result_.origins.push_back(copy);
    copies_[value].push_back(copy);
    result_.steps.push_back(DraftStep{&draft_.node(draft_.maker(value)), true, {value}, {copy}, false});
    return copy;
  }

  Draft& draft_;
  Device& device_;
  const std::vector<bool> lasting_;                 // by value of the graph
  std::map<ValueId, std::vector<ValueId>> copies_;  // of a value, in other layouts
  LaidOut result_;
};

}  // namespace

ValueId LaidOut::tap_source(ValueId value) const {
  const auto found = tap_sources.find(value);
  return found == tap_sources.end() ? value : found->second;
}

LaidOut lay_out(Draft& draft, const std::vector<NodeId>& sequence, Device& device) {
  return LayoutStage(draft, device).run(sequence);
}

}  // namespace moonflow
