#include "engine/draft.h"

#include <algorithm>
#include <cassert>

namespace moonflow {

Draft::Draft(const Graph& graph) : graph_(graph) {
  for (const Node& node : graph.nodes()) nodes_.push_back(&node);
  for (const Value& value : graph.values()) {
    types_.push_back(value.type);
    makers_.push_back(value.node);
  }
  tapped_.resize(types_.size(), false);
  for (const Tap& tap : graph.taps()) tapped_[tap.value] = true;
  live_.resize(nodes_.size(), false);
  for (NodeId id = 0; id < node_count(); ++id) ranks_.push_back(id);
}

void Draft::drop_dead_nodes() {
  for (const Tap& tap : graph_.taps()) live_[makers_[tap.value]] = true;
  for (NodeId id = node_count(); id-- > 0;) {
    const Node& node = *nodes_[id];
    if (node.kind == Node::Op && !node.op->writes.empty()) live_[id] = true;
    if (live_[id])
      for (const ValueId input : node.inputs)
        if (input != kNone) live_[makers_[input]] = true;
  }
  readers_.resize(types_.size());
  for (NodeId id = 0; id < node_count(); ++id)
    if (live_[id]) add_reader(id);
}

void Draft::rewrite(const Device& device) {
  launches_cost_ = device.asynchronous();
  const auto has_kernel = [&](const std::string& op) {
    return static_cast<bool>(device.kernel(graph_.catalog().at(op)));
  };
  for (const bool last : {false, true}) {
    for (NodeId id = 0; id < node_count(); ++id) {  // fused nodes are appended, and looked at in turn
      if (!live_[id] || nodes_[id]->kind != Node::Op) continue;
      for (const Rewrite& rewrite : nodes_[id]->op->rewrites) {
        if (rewrite.last != last || !live_[id]) continue;
        if (!std::all_of(rewrite.makes.begin(), rewrite.makes.end(), has_kernel)) continue;
        applying_ = &rewrite;
        if (rewrite.apply(*this, id)) break;
      }
    }
  }
}

NodeId Draft::made_by(ValueId value, std::string_view op) const {
  if (value == kNone) return kNone;
  const Node& maker = *nodes_[makers_[value]];
  return maker.kind == Node::Op && maker.op->name == op ? makers_[value] : kNone;
}

NodeId Draft::sole_reader(ValueId value) const {
  return !tapped_[value] && readers_[value].size() == 1 ? readers_[value][0] : kNone;
}

void Draft::fuse(const std::vector<NodeId>& old, std::string_view op_name, std::vector<ValueId> inputs, Attrs attrs,
                 const std::vector<ValueId>& outputs) {
  assert(std::count(applying_->makes.begin(), applying_->makes.end(), op_name) == 1);
  const OpDef& op = graph_.catalog().at(op_name);
  Node& fused = fused_.emplace_back();
  fused.op = &op;
  fused.name = nodes_[old.front()]->name;
  fused.site = nodes_[old.front()]->site;
  fused.attrs = complete(op, std::move(attrs));
  fused.inputs = std::move(inputs);
  fused.inputs.resize(std::max(fused.inputs.size(), op.inputs.size()), kNone);
  fused.outputs = outputs;
  int rank = 0;
  for (const NodeId id : old) {
    rank = std::max(rank, ranks_[id]);
    remove(id);
  }
  const NodeId id = node_count();
  nodes_.push_back(&fused);
  live_.push_back(true);
  ranks_.push_back(rank);
  for (const ValueId output : outputs) makers_[output] = id;
  add_reader(id);
}

ValueId Draft::root(ValueId value) const {
  for (;;) {
    const Node& node = *nodes_[makers_[value]];
    if (node.kind != Node::Op || node.op->alias.empty()) return value;
    value = node.inputs[node.op->alias[0].input];
  }
}

std::vector<bool> Draft::variables_only_read() const {
  std::vector<bool> only_read(value_count(), false);
  for (NodeId id = 0; id < node_count(); ++id)
    if (node(id).kind == Node::Variable) only_read[node(id).outputs[0]] = true;
  for (NodeId id = 0; id < node_count(); ++id) {
    const Node& reader = node(id);
    if (!live(id) || reader.kind != Node::Op) continue;
    for (size_t i = 0; i < reader.inputs.size(); ++i)
      if (reader.inputs[i] != kNone && reader.op->updates(i)) only_read[root(reader.inputs[i])] = false;
  }
  return only_read;
}

std::vector<TensorType> Draft::types(const std::vector<ValueId>& values) const {
  std::vector<TensorType> types;
  for (const ValueId value : values) types.push_back(value == kNone ? TensorType{} : type(value));
  return types;
}

ValueId Draft::add_value(const TensorType& type, NodeId maker) {
  types_.push_back(type);
  makers_.push_back(maker);
  tapped_.push_back(false);
  readers_.emplace_back();
  return value_count() - 1;
}

void Draft::forget_values(ValueId first) {
  types_.resize(first);
  makers_.resize(first);
  tapped_.resize(first);
  readers_.resize(first);
}

void Draft::add_reader(NodeId id) {
  for (const ValueId input : nodes_[id]->inputs)
    if (input != kNone) readers_[input].push_back(id);
}

void Draft::remove(NodeId id) {
  live_[id] = false;
  for (const ValueId input : nodes_[id]->inputs) {
    if (input == kNone) continue;
    std::vector<NodeId>& readers = readers_[input];
    readers.erase(std::remove(readers.begin(), readers.end(), id), readers.end());
  }
}

std::vector<bool> presence(const std::vector<ValueId>& values) {
  std::vector<bool> present;
  for (const ValueId value : values) present.push_back(value != kNone);
  return present;
}

}  // namespace moonflow
