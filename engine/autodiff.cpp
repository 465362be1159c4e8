#include "engine/autodiff.h"

namespace moonflow {

namespace {

// Which nodes lie on a path from one of `values` to a loss: only those are differentiated. A node is needed when one
// of its inputs is needed; it is reached when one of its outputs has a gradient.
std::vector<bool> needed_values(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<bool> needed(graph.values().size(), false);
  for (const ValueId value : values) needed[value] = true;
  for (const Node& node : graph.nodes()) {
    bool any = false;
    for (const ValueId input : node.inputs) any = any || (input != kNone && needed[input]);
    if (!any || node.kind != Node::Op || !node.op->grad) continue;
    for (const ValueId output : node.outputs) needed[output] = true;
  }
  return needed;
}

}  // namespace

std::vector<ValueId> gradients(Graph& graph, const std::vector<ValueId>& losses, const std::vector<ValueId>& seeds,
                               const std::vector<ValueId>& values) {
  require(losses.size() == seeds.size(), ErrorCode::InvalidArgument, losses.size(), " losses but ", seeds.size(),
          " seeds");
  const NodeId node_count = static_cast<NodeId>(graph.nodes().size());
  const std::vector<bool> needed = needed_values(graph, values);
  std::vector<ValueId> grads(graph.values().size(), kNone);

  const auto add = [&](ValueId value, ValueId grad) {
    if (grads[value] == kNone) {
      grads[value] = grad;
    } else {
      const Node& node = graph.node(graph.value(value).node);
      grads[value] =
          graph.append(graph.catalog().sum_op, {grads[value], grad}, {}, node.name + "_grad_sum", node.site)[0];
    }
  };

  for (size_t i = 0; i < losses.size(); ++i) {
    require(graph.type(losses[i]) == graph.type(seeds[i]), ErrorCode::ShapeMismatch, "the loss is ",
            graph.type(losses[i]), ", its seed is ", graph.type(seeds[i]));
    add(losses[i], seeds[i]);
  }
  // The order of the nodes is topological, so each value's gradient is complete when its node is met from behind.
  for (NodeId id = node_count; id-- > 0;) {
    const Node& node = graph.node(id);
    if (node.kind != Node::Op || !node.op->grad) continue;
    std::vector<ValueId> output_grads;
    bool reached = false, wanted = false;
    for (const ValueId output : node.outputs) {
      output_grads.push_back(grads[output]);
      reached = reached || grads[output] != kNone;
    }
    for (const ValueId input : node.inputs) wanted = wanted || (input != kNone && needed[input]);
    if (!reached || !wanted) continue;

    GradCall call{graph, graph.catalog(), node.name, node.site, node.inputs, node.outputs, output_grads, node.attrs};
    const std::vector<ValueId> input_grads = node.op->grad(call);
    for (size_t i = 0; i < input_grads.size(); ++i)
      if (input_grads[i] != kNone && call.inputs[i] != kNone && needed[call.inputs[i]])
        add(call.inputs[i], input_grads[i]);
  }

  std::vector<ValueId> result;
  for (const ValueId value : values) result.push_back(grads[value]);
  return result;
}

}  // namespace moonflow
