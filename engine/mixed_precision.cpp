// Two looks at the nodes. From the last to the first: which values their readers want in bfloat16. From the first to
// the last: each node again, in the precision that its op, its readers and its inputs lead to; a conversion is made
// where it is first needed, and shared.
#include "engine/mixed_precision.h"

namespace moonflow {

namespace {

using Role = Bfloat16Use::Role;

bool contains(const std::vector<int>& list, int item) {
  for (const int each : list)
    if (each == item) return true;
  return false;
}

class MixedPrecision {
 public:
  MixedPrecision(const Graph& graph, const Device& device)
      : graph_(graph),
        device_(device),
        result_(graph.catalog()),
        live_(graph.nodes().size(), false),
        computes_(graph.nodes().size(), false),
        written_(graph.values().size(), false),
        wanted_(graph.values().size(), false),
        wide_(graph.values().size(), kNone),
        narrow_(graph.values().size(), kNone) {}

  Graph run() {
    result_.allow_tf32 = graph_.allow_tf32;
    find_live();
    find_wanted();
    for (NodeId id = 0; id < node_count(); ++id) copy(id);
    for (const Tap& tap : graph_.taps()) result_.tap(as_traced(tap.value), tap.token);
    return std::move(result_);
  }

 private:
  NodeId node_count() const { return static_cast<NodeId>(graph_.nodes().size()); }
  bool is_float32(ValueId value) const { return value != kNone && graph_.type(value).dtype == DType::Float32; }

  void find_live() {
    for (const Tap& tap : graph_.taps()) live_[graph_.value(tap.value).node] = true;
    for (NodeId id = node_count(); id-- > 0;) {
      const Node& node = graph_.node(id);
      if (node.kind == Node::Op && !node.op->writes.empty()) {
        live_[id] = true;
        for (size_t i = 0; i < node.inputs.size(); ++i)
          if (node.inputs[i] != kNone && node.op->updates(i)) written_[root(node.inputs[i])] = true;
      }
      if (!live_[id]) continue;
      for (const ValueId input : node.inputs)
        if (input != kNone) live_[graph_.value(input).node] = true;
    }
  }

  ValueId root(ValueId value) const {
    for (;;) {
      const Node& node = graph_.node(graph_.value(value).node);
      if (node.kind != Node::Op || node.op->alias.empty()) return value;
      value = node.inputs[node.op->alias[0].input];
    }
  }

  // What is made of it is kept from run to run.
  bool is_kept(ValueId value) const {
    const ValueId origin = root(value);
    return graph_.node(graph_.value(origin).node).kind == Node::Variable && !written_[origin];
  }

  // Whether the op reads this input in bfloat16 when it computes in it.
  bool reads_bfloat16(const Node& node, int input) const {
    return is_float32(node.inputs[input]) && !contains(node.op->bfloat16.keeps_float32, input);
  }

  static Role role(const Node& node) { return node.op->alias.empty() ? node.op->bfloat16.role : Role::Follows; }

  bool computes(const Node& node) const {
    if (node.kind != Node::Op || role(node) != Role::Computes || !is_float32(node.inputs[0])) return false;
    std::vector<TensorType> types;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const ValueId input = node.inputs[i];
      types.push_back(input == kNone ? TensorType{} : graph_.type(input));
      const bool either = contains(node.op->bfloat16.takes_either, i);
      if (input != kNone && reads_bfloat16(node, i) && (!either || is_kept(input))) types[i].dtype = DType::BFloat16;
    }
    std::vector<const TensorType*> inputs;
    for (size_t i = 0; i < types.size(); ++i) inputs.push_back(node.inputs[i] == kNone ? nullptr : &types[i]);
    return device_.computes_bfloat16(*node.op, OpCall{inputs, node.attrs});
  }

  void find_wanted() {
    for (NodeId id = node_count(); id-- > 0;) {
      const Node& node = graph_.node(id);
      if (!live_[id] || node.kind != Node::Op) continue;
      computes_[id] = computes(node);
      if (!computes_[id] && !(role(node) == Role::Follows && wants_output(node))) continue;
      for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i)
        if (reads_bfloat16(node, i)) wanted_[node.inputs[i]] = true;
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
  ValueId as_bfloat16(ValueId value) {
    if (narrow_[value] == kNone) narrow_[value] = converted(value, wide_[value], DType::BFloat16);
    return narrow_[value];
  }

  // A chain goes on in bfloat16 where that is wanted at its end, or where anything else needs a conversion at once.
  bool follows(const Node& node) const {
    if (role(node) != Role::Follows) return false;
    for (const ValueId input : node.inputs) {
      if (input == kNone || !is_float32(input)) continue;
      return narrow_[input] != kNone && (wants_output(node) || wide_[input] == kNone);
    }
    return false;
  }

  void copy(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.kind == Node::Feed)
      wide_[node.outputs[0]] = result_.feed(node.name, graph_.type(node.outputs[0]), node.site);
    if (!live_[id]) return;
    if (node.kind == Node::Variable)
      wide_[node.outputs[0]] = result_.variable(node.name, graph_.type(node.outputs[0]), node.site);
    if (node.kind == Node::Constant) wide_[node.outputs[0]] = result_.constant(node.constant, node.name, node.site);
    if (node.kind != Node::Op) return;

    const bool narrow = computes_[id] || follows(node);
    std::vector<ValueId> inputs;
    for (int i = 0; i < static_cast<int>(node.inputs.size()); ++i) {
      const ValueId input = node.inputs[i];
      if (input == kNone) {
        inputs.push_back(kNone);
      } else if (narrow && reads_bfloat16(node, i)) {
        const bool as_it_is = contains(node.op->bfloat16.takes_either, i) && narrow_[input] == kNone && !is_kept(input);
        inputs.push_back(as_it_is ? wide_[input] : as_bfloat16(input));
      } else {
        inputs.push_back(as_traced(input));
      }
    }
    Attrs attrs = node.attrs;
    if (narrow && node.op->attr("mixed"))
      attrs.set("mixed", std::string(wants_output(node) ? name(DType::BFloat16) : name(DType::Float32)));
    const std::vector<ValueId> outputs = result_.append(node.op->name, std::move(inputs), attrs, node.name, node.site);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const bool as_traced = result_.type(outputs[i]) == graph_.type(node.outputs[i]);
      (as_traced ? wide_ : narrow_)[node.outputs[i]] = outputs[i];
    }
  }

  const Graph& graph_;
  const Device& device_;
  Graph result_;
  std::vector<bool> live_, computes_;   // by node
  std::vector<bool> written_, wanted_;  // by value
  std::vector<ValueId> wide_, narrow_;  // by value: its forms in the result; wide is the type that was traced
};

}  // namespace

Graph with_mixed_precision(const Graph& graph, const Device& device) { return MixedPrecision(graph, device).run(); }

}  // namespace moonflow
