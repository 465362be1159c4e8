// Two looks at the nodes. From the last to the first: which values their readers want narrow. From the first to the
// last: each node again, in the precision that its op, its readers and its inputs lead to; a conversion is made where
// it is first needed, and shared.
#include "engine/mixed_precision.h"

#include <algorithm>

#include "engine/draft.h"

namespace moonflow {

namespace {

using Role = NarrowUse::Role;

bool contains(const std::vector<int>& list, int item) {
  for (const int each : list)
    if (each == item) return true;
  return false;
}

class MixedPrecision {
 public:
  MixedPrecision(const Graph& graph, DType dtype, Device& device)
      : graph_(graph),
        draft_(graph),
        dtype_(dtype),
        device_(device),
        result_(graph.catalog()),
        roles_(graph.nodes().size(), Role::Float32),
        wanted_(graph.values().size(), false),
        wide_(graph.values().size(), kNone),
        narrow_(graph.values().size(), kNone) {}

  Graph run() {
    draft_.drop_dead_nodes();
    pays_ = computes_enough();
    result_.allow_tf32 = graph_.allow_tf32 || !pays_;
    result_.quantizes_weights = graph_.quantizes_weights;
    kept_ = draft_.variables_only_read();
    find_wanted();
    for (NodeId id = 0; id < draft_.node_count(); ++id) copy(id);
    for (const Tap& tap : graph_.taps()) result_.tap(as_traced(tap.value), tap.token);
    return std::move(result_);
  }

 private:
  bool is_float32(ValueId value) const { return value != kNone && graph_.type(value).dtype == DType::Float32; }

  // What is made of it is kept from run to run.
  bool is_kept(ValueId value) const { return kept_[draft_.root(value)]; }

  // Whether the op reads this input narrow when it computes so.
  bool reads_narrow(const Node& node, int input) const {
    return is_float32(node.inputs[input]) && !contains(node.op->narrow.keeps_float32, input);
  }

  // What the op says, where the device gains by it. A view goes along with its value.
  Role role_of(const Node& node) const {
    if (!node.op->alias.empty()) return Role::Follows;
    if (is_precise(node)) return Role::Float32;
    const Role role = node.op->narrow.role;
    if (role == Role::Float32 || (role == Role::Computes && !is_float32(node.inputs[0]))) return Role::Float32;
    return pays_ && pays(node) ? role : Role::Float32;
  }

  bool computes_enough() const {
    double left = device_.least_narrow_flops();
    for (NodeId id = 0; id < draft_.node_count() && left > 0; ++id) {
      const Node& node = graph_.node(id);
      if (!draft_.live(id) || node.kind != Node::Op || !node.op->flops || node.op->narrow.role != Role::Computes ||
          is_precise(node))
        continue;
      KernelCall call{device_, node.attrs};
      for (const ValueId input : node.inputs) {
        call.inputs.push_back(input == kNone ? TensorType{} : graph_.type(input));
        call.present.push_back(input != kNone);
      }
      for (const ValueId output : node.outputs) call.outputs.push_back(graph_.type(output));
      left -= node.op->flops(call);
    }
    return left <= 0;
  }

  bool pays(const Node& node) const {
    std::vector<TensorType> types;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const ValueId input = node.inputs[i];
      types.push_back(input == kNone ? TensorType{} : graph_.type(input));
      const bool either = contains(node.op->narrow.takes_either, i);
      if (input != kNone && reads_narrow(node, i) && (!either || is_kept(input))) types[i].dtype = dtype_;
    }
    std::vector<const TensorType*> inputs;
    for (size_t i = 0; i < types.size(); ++i) inputs.push_back(node.inputs[i] == kNone ? nullptr : &types[i]);
    return device_.computes_in(dtype_, *node.op, OpCall{inputs, node.attrs});
  }

  bool rounds(const Node& node) const {
    std::vector<const TensorType*> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(input == kNone ? nullptr : &graph_.type(input));
    return device_.rounds_to(dtype_, *node.op, OpCall{inputs, node.attrs});
  }

  void find_wanted() {
    for (NodeId id = draft_.node_count(); id-- > 0;) {
      const Node& node = graph_.node(id);
      if (!draft_.live(id) || node.kind != Node::Op) continue;
      roles_[id] = role_of(node);
      if (roles_[id] == Role::Float32 || (roles_[id] == Role::Follows && !wants_output(node))) continue;
      for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i)
        if (reads_narrow(node, i)) wanted_[node.inputs[i]] = true;
    }
  }

  bool wants_output(const Node& node) const {
    for (const ValueId output : node.outputs)
      if (wanted_[output]) return true;
    return false;
  }

  ValueId converted(ValueId value, ValueId from, DType dtype) {
    const Node& node = graph_.node(graph_.value(value).node);
    return result_.append(graph_.catalog().cast_op, {from}, {{"dtype", dtype}}, node.name, node.site)[0];
  }
  ValueId as_traced(ValueId value) {
    if (wide_[value] == kNone) wide_[value] = converted(value, narrow_[value], DType::Float32);
    return wide_[value];
  }
  ValueId as_narrow(ValueId value) {
    if (narrow_[value] == kNone) narrow_[value] = converted(value, wide_[value], dtype_);
    return narrow_[value];
  }

  // A chain goes on narrow where that is wanted at its end and any of it is there, or where all of it is and anything
  // else needs a conversion at once. Not where it would be given what many of its elements share, a factor or a scale:
  // rounding that errs to the same side in all of them.
  bool follows(const Node& node) const {
    int64_t narrow = 0, least_wide = 0;  // elements of the largest input that is there, and of the smallest that is not
    bool any = false, all = true, only_narrow = false;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const ValueId input = node.inputs[i];
      if (input == kNone || !reads_narrow(node, i)) continue;
      const int64_t count = graph_.type(input).count();
      if (narrow_[input] != kNone) {
        any = true;
        narrow = std::max(narrow, count);
        only_narrow = only_narrow || wide_[input] == kNone;
      } else {
        least_wide = all ? count : std::min(least_wide, count);
        all = false;
      }
    }
    if (!any) return false;
    if (all) return only_narrow || wants_output(node) || node.op->attr("mixed");
    return wants_output(node) && least_wide >= narrow;
  }

  void copy(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.kind == Node::Feed)
      wide_[node.outputs[0]] = result_.feed(node.name, graph_.type(node.outputs[0]), node.site);
    if (!draft_.live(id)) return;
    if (node.kind == Node::Variable)
      wide_[node.outputs[0]] = result_.variable(node.name, graph_.type(node.outputs[0]), node.site);
    if (node.kind == Node::Constant) wide_[node.outputs[0]] = result_.constant(node.constant, node.name, node.site);
    if (node.kind != Node::Op) return;

    const bool narrow = roles_[id] == Role::Computes || (roles_[id] == Role::Follows && follows(node));
    std::vector<ValueId> inputs;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const ValueId input = node.inputs[i];
      if (input == kNone) {
        inputs.push_back(kNone);
      } else if (narrow && reads_narrow(node, i)) {
        const bool as_it_is = contains(node.op->narrow.takes_either, i) && narrow_[input] == kNone && !is_kept(input);
        inputs.push_back(as_it_is ? wide_[input] : as_narrow(input));
      } else {
        inputs.push_back(as_traced(input));
      }
    }
    Attrs attrs = node.attrs;
    if (narrow && node.op->attr("mixed"))
      attrs.set("mixed", std::string(name(wants_output(node) ? dtype_ : DType::Float32)));
    if (node.op->attr("rounds_to") && (narrow || rounds(node))) attrs.set("rounds_to", dtype_);
    result_.part = node.part;
    const std::vector<ValueId> outputs = result_.append(node.op->name, std::move(inputs), attrs, node.name, node.site);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool as_traced = result_.type(outputs[i]) == graph_.type(node.outputs[i]);
      (as_traced ? wide_ : narrow_)[node.outputs[i]] = outputs[i];
    }
  }

  const Graph& graph_;
  Draft draft_;        // as it was traced, without dead nodes
  const DType dtype_;  // the narrow one
  Device& device_;
  Graph result_;
  bool pays_ = true;
  std::vector<bool> kept_;              // by value: a variable that no node writes
  std::vector<Role> roles_;             // by node: what it does here
  std::vector<bool> wanted_;            // by value
  std::vector<ValueId> wide_, narrow_;  // by value: its forms in the result; wide is the type that was traced
};

}  // namespace

Graph with_mixed_precision(const Graph& graph, DType narrow, Device& device) {
  return MixedPrecision(graph, narrow, device).run();
}

bool is_precise(const Node& node) { return node.op->attr("precise") && node.attrs.flag("precise"); }

}  // namespace moonflow
