#include "engine/layout.h"

#include "engine/mixed_precision.h"

namespace moonflow {

namespace {

// The layout in which all that read a value take it.
using Taken = std::map<ValueId, Layout>;

class LayoutStage {
 public:
  // `taken`: of values in another layout than that in which they would be made without being told.
  LayoutStage(Draft& draft, Device& device, Taken taken = {})
      : draft_(draft), device_(device), kept_(draft.variables_only_read()), taken_(std::move(taken)) {
    result_.layouts.resize(draft.value_count());
    taken_as_made_.resize(draft.value_count());
    for (ValueId value = 0; value < draft.value_count(); ++value) result_.origins.push_back(value);
  }

  void run(const std::vector<NodeId>& sequence) {
    for (const NodeId id : sequence) {
      const Node& node = draft_.node(id);
      if (node.kind == Node::Op) add(node);
    }
  }
  LaidOut give() { return std::move(result_); }

  // After a run: what kernels that heed it should have been told.
  Taken taken_otherwise() const {
    Taken result;
    for (const auto& [value, copies] : copies_) {
      const bool one = copies.size() == 1 && !taken_as_made_[value];
      if (one && heeds_readers(draft_.node(draft_.maker(value)))) result[value] = result_.layouts[copies.front()];
    }
    return result;
  }

 private:
  bool is_kept(ValueId value) const { return kept_[result_.origins[value]]; }
  bool lasts(ValueId value) const {
    return is_kept(value) || draft_.node(draft_.maker(result_.origins[value])).kind == Node::Constant;
  }

  // Other nodes of constants alone are not kept: the graph that gives variables their first values has many, needs each
  // once, and would hold all of their values at a time.
  bool keeps(const Node& node) const {
    bool any = false;
    for (const ValueId input : node.inputs) {
      if (input == kNone) continue;
      if (!lasts(input)) return false;
      any = any || is_kept(input);
    }
    return any && node.op->writes.empty() && !node.op->meets_others;
  }

  bool heeds_readers(const Node& node) const {
    return node.kind == Node::Op && device_.kernel(*node.op).heeds_readers;
  }

  void add(const Node& node) {
    if (!node.op->alias.empty()) return view(node, node.inputs[node.op->alias[0].input]);
    DraftStep step{&node, false, node.inputs, node.outputs, keeps(node)};
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
    call.allow_tf32 = draft_.graph().allow_tf32 && !is_precise(node);
    call.quantizes_weights = draft_.graph().quantizes_weights && !is_precise(node);
    if (kernel.layouts) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (present[i]) call.inputs[i] = result_.layouts[node.inputs[i]];
        call.lasting.push_back(present[i] && lasts(node.inputs[i]));
      }
      for (const ValueId output : node.outputs) {
        const auto found = taken_.find(output);
        call.taken.push_back(found == taken_.end() ? std::nullopt : std::optional<Layout>(found->second));
      }
      blaming(node.describe(), node.site, [&] { kernel.layouts(call); });
    }
    for (size_t i = 0; i < step.inputs.size(); ++i)
      if (present[i]) step.inputs[i] = in_layout(step.inputs[i], call.inputs[i]);
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      result_.layouts[step.outputs[i]] = call.outputs[i];
      kept_[step.outputs[i]] = step.kept;
    }
    result_.steps.push_back(std::move(step));
    for (const ValueId output : node.outputs) offer(output);
  }

  // There is nothing to do, but where the input's layout has no form for the other shape.
  void view(const Node& node, ValueId input) {
    const Layout from = result_.layouts[input];
    for (const ValueId output : node.outputs) {
      Layout layout = from.row_major() ? Layout{} : device_.reshaped(draft_.type(input), from, draft_.type(output));
      result_.origins[output] = result_.origins[in_layout(input, layout.row_major() ? Layout{} : from)];
      result_.layouts[output] = std::move(layout);
      offer(output);
    }
  }

  // Taps take values in rows.
  void offer(ValueId value) {
    if (draft_.tapped(value)) result_.tap_sources[value] = in_layout(value, Layout{});
  }

  // Not between all private forms there is a way on every device, and between rows and each of them there is one.
  bool goes_directly(ValueId value, const Layout& wanted) const {
    const Layout& from = result_.layouts[value];
    if (from.row_major() || wanted.row_major()) return true;
    try {
      device_.reorder(draft_.type(value), from, wanted);
      return true;
    } catch (const Error& error) {
      if (error.code != ErrorCode::Unsupported) throw;
      return false;
    }
  }

  ValueId in_layout(ValueId value, const Layout& wanted) {
    if (result_.layouts[value] == wanted) {
      taken_as_made_[value] = true;
      return value;
    }
    for (const ValueId copy : copies_[value])
      if (result_.layouts[copy] == wanted) return copy;
    if (!goes_directly(value, wanted)) return in_layout(in_layout(value, Layout{}), wanted);
    const ValueId copy = draft_.add_value(draft_.type(value), draft_.maker(value));
    result_.layouts.push_back(wanted);
    result_.origins.push_back(copy);
    kept_.push_back(is_kept(value));
    copies_[value].push_back(copy);
    result_.steps.push_back(DraftStep{&draft_.node(draft_.maker(value)), true, {value}, {copy}, lasts(value)});
    return copy;
  }

  Draft& draft_;
  Device& device_;
  std::vector<bool> kept_;  // by origin: a variable that no step writes, or what a kept step makes
  const Taken taken_;
  std::map<ValueId, std::vector<ValueId>> copies_;  // of a value, in other layouts
  std::vector<bool> taken_as_made_;                 // by value: some reader takes no copy
  LaidOut result_;
};

}  // namespace

ValueId LaidOut::tap_source(ValueId value) const {
  const auto found = tap_sources.find(value);
  return found == tap_sources.end() ? value : found->second;
}

LaidOut lay_out(Draft& draft, const std::vector<NodeId>& sequence, Device& device) {
  const ValueId values = draft.value_count();
  LayoutStage untold(draft, device);
  untold.run(sequence);
  Taken taken = untold.taken_otherwise();
  if (taken.empty()) return untold.give();
  draft.forget_values(values);
  LayoutStage told(draft, device, std::move(taken));
  told.run(sequence);
  return told.give();
}

}  // namespace moonflow
