// The graph as the compiler works on it: the nodes that live, of equal ones the first alone, who makes and who reads
// their values, and the ops that rewrites have put in. Lives as long as one compilation.
#pragma once

#include <deque>
#include <vector>

#include "engine/rewriter.h"

namespace moonflow {

class Draft final : public Rewriter {
 public:
  explicit Draft(const Graph& graph);

  // Keeps what a tap or a write depends on.
  void drop_dead_nodes();
  // Makes one of nodes that give the same: whoever wants a value of a later one takes that of the first.
  void merge_equal_nodes();
  // Lets op families fuse their patterns, as far as the device has kernels for what they make of them.
  void rewrite(const Device& device);

  // ---- Rewriter
  const Node& node(NodeId id) const override { return *nodes_[id]; }
  const TensorType& type(ValueId value) const override { return types_[value]; }
  NodeId maker(ValueId value) const override { return makers_[value]; }
  NodeId made_by(ValueId value, std::string_view op) const override;
  NodeId sole_reader(ValueId value) const override;
  bool tapped(ValueId value) const override { return tapped_[value]; }
  bool is_variable(ValueId value) const override { return nodes_[makers_[root(value)]]->kind == Node::Variable; }
  bool launches_cost() const override { return launches_cost_; }
  bool quantizes_weights() const override { return graph_.quantizes_weights; }
  NodeId node_count() const override { return static_cast<NodeId>(nodes_.size()); }
  bool live(NodeId id) const override { return live_[id]; }
  const std::vector<NodeId>& readers(ValueId value) const override;
  ValueId add_value(const TensorType& type) override { return add_value(type, kNone); }
  void fuse(const std::vector<NodeId>& old, std::string_view op_name, std::vector<ValueId> inputs, Attrs attrs,
            const std::vector<ValueId>& outputs) override;

  // ---- for the stages that follow
  const Graph& graph() const { return graph_; }
  const std::vector<Tap>& taps() const { return taps_; }  // in the graph's order
  int merged_ops() const { return merged_ops_; }          // that are computed with an equal one
  ValueId value_count() const { return static_cast<ValueId>(types_.size()); }
  int rank(NodeId id) const { return ranks_[id]; }
  // Lets the node read a copy of one of its inputs, which a new node makes. After rewrite.
  void copy_input(NodeId id, size_t input);
  // The value whose memory this one uses, through alias ops.
  ValueId root(ValueId value) const;
  // By value: the variables that no node writes.
  std::vector<bool> variables_only_read() const;
  // The types of an op's inputs or outputs; one without dims for what is left out.
  std::vector<TensorType> types(const std::vector<ValueId>& values) const;
  // A value beyond the graph's own: the same value in another layout.
  ValueId add_value(const TensorType& type, NodeId maker);
  // Those from `first` on, which have been added since.
  void forget_values(ValueId first);

 private:
  void take_instead(NodeId id, const std::vector<ValueId>& instead);
  NodeId append(const Node& node, int rank);
  void add_reader(NodeId id);
  void remove(NodeId id);
  void remove_unread();

  const Graph& graph_;
  const Rewrite* applying_ = nullptr;
  bool launches_cost_ = false;
  int merged_ops_ = 0;
  std::vector<Tap> taps_;
  std::vector<const Node*> nodes_;
  std::deque<Node> own_nodes_;     // fused ones, copies, and those that take another value than the graph's
  std::vector<bool> live_;         // by node
  std::vector<int> ranks_;         // by node: age; a fused node is as old as the youngest it replaces
  std::vector<TensorType> types_;  // by value
  std::vector<NodeId> makers_;     // by value
  std::vector<bool> tapped_;       // by value
  // By value, from rewrite on. A node that reads a value twice stands twice. Those that live no more stay until
  // somebody asks for the list: thousands of nodes may read one value, such as a constant, and go one by one.
  mutable std::vector<std::vector<NodeId>> readers_;
  std::vector<size_t> live_reads_;     // by value: how long its list is without them
  std::vector<ValueId> lost_readers_;  // what the rewrite that is applied has taken readers from
};

// Which of an op's inputs are not left out.
std::vector<bool> presence(const std::vector<ValueId>& values);

}  // namespace moonflow
