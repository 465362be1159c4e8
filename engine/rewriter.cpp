#include "engine/rewriter.h"

#include <algorithm>

namespace moonflow {

// Gradients begin with the last part, and those that are repeated have their numbers below 0.
int later_repeated(int part, int other) {
  if (part >= 0 || other >= 0) return std::min({part, other, 0});
  return std::max(part, other);
}

bool follows_from(const Rewriter& graph, ValueId value, NodeId node) {
  std::vector<bool> seen(graph.node_count());
  std::vector<NodeId> next{graph.maker(value)};
  while (!next.empty()) {
    const NodeId id = next.back();
    next.pop_back();
    if (id == node) return true;
    if (seen[id]) continue;
    seen[id] = true;
    for (const ValueId input : graph.node(id).inputs)
      if (input != kNone) next.push_back(graph.maker(input));
  }
  return false;
}

bool updates_alone(const Rewriter& graph, NodeId id) {
  const Node& update = graph.node(id);
  for (size_t i = 0; i < update.inputs.size(); ++i) {
    if (update.inputs[i] == kNone || !update.op->updates(i)) continue;
    for (const NodeId reader : graph.readers(update.inputs[i])) {
      if (reader != id && !graph.node(reader).op->writes.empty()) return false;
    }
  }
  return true;
}

bool may_join_update(const Rewriter& graph, std::initializer_list<ValueId> read) {
  return std::none_of(read.begin(), read.end(), [&](ValueId value) { return graph.is_variable(value); });
}

}  // namespace moonflow
