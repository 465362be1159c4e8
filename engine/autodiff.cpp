#include "engine/autodiff.h"

#include <algorithm>
#include <functional>
#include <set>

namespace moonflow {

namespace {

// Some nodes in a row with the values that they make, which are in a row as well.
struct Stretch {
  NodeId first_node = 0, end_node = 0;
  ValueId first = 0, end = 0;

  bool has(ValueId value) const { return value >= first && value < end; }  // not kNone
};

Stretch all_of(const Graph& graph) {
  return {0, static_cast<NodeId>(graph.nodes().size()), 0, static_cast<ValueId>(graph.values().size())};
}

// From the first of `values` to the last of them and of `losses`: nothing else is on the way from one to the other.
// What a body asks for step after step is near by, however long the graph has become.
Stretch between(const Graph& graph, const std::vector<ValueId>& values, const std::vector<ValueId>& losses) {
  if (values.empty()) return {};
  NodeId first = graph.value(values[0]).node, last = first;
  for (const ValueId value : values) first = std::min(first, graph.value(value).node);
  for (const std::vector<ValueId>* list : {&values, &losses})
    for (const ValueId value : *list) last = std::max(last, graph.value(value).node);
  return {first, last + 1, graph.node(first).outputs.front(), graph.node(last).outputs.back() + 1};
}

// Something about each value of a stretch, and `other` about all others.
template <class T>
class OfValues {
 public:
  OfValues(const Stretch& stretch, T other)
      : stretch_(stretch), other_(other), list_(static_cast<size_t>(stretch.end - stretch.first), other) {}

  T operator()(ValueId value) const { return stretch_.has(value) ? T(list_[value - stretch_.first]) : other_; }
  void set(ValueId value, T to) {
    if (stretch_.has(value)) list_[value - stretch_.first] = to;
  }

 private:
  Stretch stretch_;
  T other_;
  std::vector<T> list_;
};

// Whether a value is one of `sources`, or reached from one through nodes of the stretch that `leads_on` lets by.
template <class LeadsOn>
OfValues<bool> reached_from(const Graph& graph, const Stretch& stretch, const std::vector<ValueId>& sources,
                            const LeadsOn& leads_on) {
  OfValues<bool> reached(stretch, false);
  for (const ValueId source : sources) reached.set(source, true);
  // The order of the nodes is topological.
  for (NodeId id = stretch.first_node; id < stretch.end_node; ++id) {
    const Node& node = graph.node(id);
    const bool any = std::any_of(node.inputs.begin(), node.inputs.end(), std::cref(reached));
    if (!any || !leads_on(node)) continue;
    for (const ValueId output : node.outputs) reached.set(output, true);
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
  explicit Seen(Graph& graph) : graph_(graph), all_(all_of(graph)) {}

  std::vector<ValueId> operator()(const std::vector<ValueId>& values, int part) {
    if (part > 0 && repeated_.insert(part).second) repeat(part);
    std::vector<ValueId> seen;
    for (const ValueId value : values) seen.push_back(value == kNone || part <= 0 ? value : seen_[value]);
    return seen;
  }

 private:
  void repeat(int part) {
    for (ValueId value = static_cast<ValueId>(seen_.size()); value < all_.end; ++value) seen_.push_back(value);
    const std::vector<bool> read_elsewhere = read_outside_of(part);
    for (NodeId id = 0; id < all_.end_node; ++id) {
      const Node& node = graph_.node(id);
      if (node.part != part || !node.op->writes.empty()) continue;
      const std::vector<ValueId> again = graph_.repeat(id, (*this)(node.inputs, part));
      for (size_t i = 0; i < again.size(); ++i)
        if (!read_elsewhere[node.outputs[i]]) seen_[node.outputs[i]] = again[i];
    }
  }

  std::vector<bool> read_outside_of(int part) const {
    std::vector<bool> read(seen_.size(), false);
    for (NodeId id = 0; id < all_.end_node; ++id)
      if (graph_.node(id).part != part)
        for (const ValueId input : graph_.node(id).inputs)
          if (input != kNone) read[input] = true;
    return read;
  }

  Graph& graph_;
  const Stretch all_;          // before any gradient
  std::vector<ValueId> seen_;  // by value, once a part is repeated
  std::set<int> repeated_;
};

}  // namespace

std::vector<bool> computed_from(const Graph& graph, const std::vector<ValueId>& sources) {
  const Stretch all = all_of(graph);
  const OfValues<bool> reached = reached_from(graph, all, sources, [](const Node&) { return true; });
  std::vector<bool> computed;
  for (ValueId value = 0; value < all.end; ++value) computed.push_back(reached(value));
  return computed;
}

std::vector<ValueId> gradients(Graph& graph, const std::vector<ValueId>& losses, const std::vector<ValueId>& seeds,
                               const std::vector<ValueId>& values) {
  require(losses.size() == seeds.size(), ErrorCode::InvalidArgument, losses.size(), " losses but ", seeds.size(),
          " seeds");
  // Only what lies on a path from one of `values` to a loss is differentiated. A value is needed when it is on the way
  // from one of them; a node is met from behind when one of its outputs has a gradient.
  const Stretch stretch = between(graph, values, losses);
  const NodeId first_appended = static_cast<NodeId>(graph.nodes().size());
  const OfValues<bool> needed = reached_from(graph, stretch, values, has_gradient);
  OfValues<ValueId> grads(stretch, kNone);
  Seen seen(graph);

  const auto add = [&](ValueId value, ValueId grad) {
    if (grads(value) == kNone) {
      grads.set(value, grad);
    } else {
      const Node& node = graph.node(graph.value(value).node);
      grads.set(value,
                graph.append(graph.catalog().sum_op, {grads(value), grad}, {}, node.name + "_grad_sum", node.site)[0]);
    }
  };

  for (size_t i = 0; i < losses.size(); ++i) {
    require(graph.type(losses[i]) == graph.type(seeds[i]), ErrorCode::ShapeMismatch, "the loss is ",
            graph.type(losses[i]), ", its seed is ", graph.type(seeds[i]));
    add(losses[i], seeds[i]);
  }
  // The order of the nodes is topological, so each value's gradient is complete when its node is met from behind.
  for (NodeId id = stretch.end_node; id-- > stretch.first_node;) {
    const Node& node = graph.node(id);
    if (!has_gradient(node) || std::none_of(node.inputs.begin(), node.inputs.end(), std::cref(needed))) continue;
    std::vector<ValueId> output_grads;
    for (const ValueId output : node.outputs) output_grads.push_back(grads(output));
    if (std::count(output_grads.begin(), output_grads.end(), kNone) == static_cast<int64_t>(output_grads.size()))
      continue;

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
      if (input_grads[i] != kNone && needed(node.inputs[i])) add(node.inputs[i], input_grads[i]);
  }

  graph.note_gradients(first_appended);

  std::vector<ValueId> result;
  for (const ValueId value : values) result.push_back(grads(value));
  return result;
}

NodeId stops_gradient(const Graph& graph, const std::vector<ValueId>& losses, ValueId value) {
  const std::vector<bool> leads = leading_to(graph, losses);
  const auto gives_fractions = [&](const Node& node) {
    return std::any_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId output) { return is_floating(graph.type(output).dtype); });
  };
  const auto lets_by = [&](const Node& node) { return has_gradient(node) && gives_fractions(node); };
  const Stretch all = all_of(graph);
  const OfValues<bool> reached = reached_from(graph, all, {value}, lets_by);
  OfValues<bool> counted(all, false);  // made by comparing or counting what is reached
  for (NodeId id = 0; id < all.end_node; ++id) {
    const Node& node = graph.node(id);
    const bool is_on_way = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return leads[v]; });
    // Where a gradient goes by a comparison it is 0 beside the jump, as is that of relu.
    for (const ValueId input : node.inputs)
      if (is_on_way && !node.of_gradient && input != kNone && counted(input)) return graph.value(input).node;
    if (lets_by(node) || std::none_of(node.inputs.begin(), node.inputs.end(), std::cref(reached))) continue;
    if (is_on_way && gives_fractions(node)) return id;
    if (!gives_fractions(node))
      for (const ValueId output : node.outputs) counted.set(output, true);
  }
  return kNone;
}

}  // namespace moonflow
