#include "engine/rewriter.h"

#include <set>

namespace moonflow {

bool follows_from(const Rewriter& graph, ValueId value, NodeId node) {
  std::set<NodeId> seen;
  std::vector<NodeId> next{graph.maker(value)};
  while (!next.empty()) {
    const NodeId id = next.back();
    next.pop_back();
    if (id == node) return true;
    if (!seen.insert(id).second) continue;
    for (const ValueId input : graph.node(id).inputs)
      if (input != kNone) next.push_back(graph.maker(input));
  }
  return false;
}

}  // namespace moonflow
