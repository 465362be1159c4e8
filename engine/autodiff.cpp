#include "engine/autodiff.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace moonflow {

namespace {

// By value: whether it is one of `sources`, or reached from one through nodes that `leads_on` lets by.
template <class LeadsOn>
std::vector<bool> reached_from(const Graph& graph, const std::vector<ValueId>& sources, const LeadsOn& leads_on) {
  std::vector<bool> reached(graph.values().size(), false);
  for (const ValueId source : sources) reached[source] = true;
  // The order of the nodes is topological.
  for (const Node& node : graph.nodes()) {
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId input) { return input != kNone && reached[input]; });
    if (!any || !leads_on(node)) continue;
    for (const ValueId output : node.outputs) reached[output] = true;
  }
  return reached;
}

bool has_gradient(const Node& node) { return node.kind == Node::Op && node.op->grad; }

// By value: whether one of `targets` is computed from it, or is it.
std::vector<bool> leading_to(const Graph& graph, const std::vector<ValueId>& targets) {
  std::vector<bool> leads(graph.values().size(), false);
  for (const ValueId target : targets) leads[target] = true;
  for (NodeId id = static_cast<NodeId>(graph.nodes().size()); id-- > 0;) {
    const Node& node = graph.node(id);
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) { return leads[output]; })) continue;
    for (const ValueId input : node.inputs)
      if (input != kNone) leads[input] = true;
  }
  return leads;
}

// What gradients see of a graph: the values of parts that are repeated come from a second time, which begins where the
// first gradient asks for one. What another part reads is there anyway, and what is written is written once.
class Seen {
 public:
  explicit Seen(Graph& graph)
      : graph_(graph), node_count_(static_cast<NodeId>(graph.nodes().size())), seen_(graph.values().size()) {
    std::iota(seen_.begin(), seen_.end(), 0);
  }

  std::vector<ValueId> operator()(const std::vector<ValueId>& values, int part) {
    if (part > 0 && repeated_.insert(part).second) repeat(part);
    std::vector<ValueId> seen;
    for (const ValueId value : values) seen.push_back(value == kNone || part <= 0 ? value : seen_[value]);
    return seen;
  }

 private:
  void repeat(int part) {
    const std::vector<bool> read_elsewhere = read_outside_of(part);
    for (NodeId id = 0; id < node_count_; ++id) {
      const Node& node = graph_.node(id);
      if (node.part != part || !node.op->writes.empty()) continue;
      const std::vector<ValueId> again = graph_.repeat(id, (*this)(node.inputs, part));
      for (size_t i = 0; i < again.size(); ++i)
        if (!read_elsewhere[node.outputs[i]]) seen_[node.outputs[i]] = again[i];
    }
  }

  std::vector<bool> read_outside_of(int part) const {
    std::vector<bool> read(seen_.size(), false);
    for (NodeId id = 0; id < node_count_; ++id)
      if (graph_.node(id).part != part)
        for (const ValueId input : graph_.node(id).inputs)
          if (input != kNone) read[input] = true;
    return read;
  }

  Graph& graph_;
  const NodeId node_count_;    // before any gradient
  std::vector<ValueId> seen_;  // by value
  std::set<int> repeated_;
};

}  // namespace

std::vector<bool> computed_from(const Graph& graph, const std::vector<ValueId>& sources) {
  return reached_from(graph, sources, [](const Node&) { return true; });
}

std::vector<ValueId> gradients(Graph& graph, const std::vector<ValueId>& losses, const std::vector<ValueId>& seeds,
                               const std::vector<ValueId>& values) {
  require(losses.size() == seeds.size(), ErrorCode::InvalidArgument, losses.size(), " losses but ", seeds.size(),
          " seeds");
  const NodeId node_count = static_cast<NodeId>(graph.nodes().size());
  // Only what lies on a path from one of `values` to a loss is differentiated. A value is needed when it is on the way
  // from one of them; a node is met from behind when one of its outputs has a gradient.
  const std::vector<bool> needed = reached_from(graph, values, has_gradient);
  std::vector<ValueId> grads(graph.values().size(), kNone);
  Seen seen(graph);

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
    if (!has_gradient(node)) continue;
    std::vector<ValueId> output_grads;
    bool reached = false, wanted = false;
    for (const ValueId output : node.outputs) {
      output_grads.push_back(grads[output]);
      reached = reached || grads[output] != kNone;
    }
    for (const ValueId input : node.inputs) wanted = wanted || (input != kNone && needed[input]);
    if (!reached || !wanted) continue;

    GradCall call{graph,
                  graph.catalog(),
                  node.name,
                  node.site,
                  seen(node.inputs, node.part),
                  seen(node.outputs, node.part),
                  output_grads,
                  node.attrs};
    const std::vector<ValueId> input_grads = blaming(node.describe(), node.site, [&] { return node.op->grad(call); });
    for (size_t i = 0; i < input_grads.size(); ++i)
      if (input_grads[i] != kNone && node.inputs[i] != kNone && needed[node.inputs[i]])
        add(node.inputs[i], input_grads[i]);
  }

  std::vector<ValueId> result;
  for (const ValueId value : values) result.push_back(grads[value]);
  return result;
}

NodeId stops_gradient(const Graph& graph, const std::vector<ValueId>& losses, ValueId value) {
  const std::vector<bool> leads = leading_to(graph, losses);
  const auto lets_by = [&](const Node& node) {
    return has_gradient(node) && std::any_of(node.outputs.begin(), node.outputs.end(),
                                             [&](ValueId output) { return is_floating(graph.type(output).dtype); });
  };
  const std::vector<bool> reached = reached_from(graph, {value}, lets_by);
  for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes().size()); ++id) {
    const Node& node = graph.node(id);
    const auto is_reached = [&](ValueId input) { return input != kNone && reached[input]; };
    if (lets_by(node) || std::none_of(node.inputs.begin(), node.inputs.end(), is_reached)) continue;
    if (std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) { return leads[output]; })) return id;
  }
  return kNone;
}

}  // namespace moonflow
