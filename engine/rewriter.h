// What an op family's fusion sees: the graph as a list of nodes that may be replaced before anything is ordered.
#pragma once

#include <initializer_list>
#include <string_view>
#include <vector>

#include "engine/graph.h"

namespace moonflow {

class Rewriter {
 public:
  virtual const Node& node(NodeId id) const = 0;
  virtual const TensorType& type(ValueId value) const = 0;
  // The node that makes the value.
  virtual NodeId maker(ValueId value) const = 0;
  // The same if it is the op `op`, else kNone.
  virtual NodeId made_by(ValueId value, std::string_view op) const = 0;
  // The only node that reads the value, or kNone when there are several, none, or a tap wants it.
  virtual NodeId sole_reader(ValueId value) const = 0;
  // Whether a tap wants the value.
  virtual bool tapped(ValueId value) const = 0;
  // Whether the value is a variable, also under another type.
  virtual bool is_variable(ValueId value) const = 0;
  // Whether it is launches that cost, since the device works them off later: there a fusion pays that only saves one.
  virtual bool launches_cost() const = 0;
  // As the graph says: a product that may keep its weight in 8 bits had better stay one.
  virtual bool quantizes_weights() const = 0;
  // All nodes are those below node_count() that are live: the others are not needed, or have been fused.
  virtual NodeId node_count() const = 0;
  virtual bool live(NodeId id) const = 0;
  // All nodes that read the value, in the order of their ids; one that reads it twice stands twice. Valid until the
  // next fuse.
  virtual const std::vector<NodeId>& readers(ValueId value) const = 0;
  // A value that no node of the graph has, for an output of the next fuse: what fused ops tell each other.
  virtual ValueId add_value(const TensorType& type) = 0;
  // Replaces `nodes` by one op whose outputs take the places of `outputs`. The inner values must have no other reader.
  // What nobody reads any more goes when the rewrite is done.
  virtual void fuse(const std::vector<NodeId>& nodes, std::string_view op, std::vector<ValueId> inputs, Attrs attrs,
                    const std::vector<ValueId>& outputs) = 0;

 protected:
  ~Rewriter() = default;
};

// Of the parts that two nodes repeat, the one that gradients come to later; 0 where neither repeats any.
int later_repeated(int part, int other);

// Whether a value is made of what a node gives. A rewrite that puts a node and something behind it into one op asks so
// of what that op is to be given besides, which has to be there before.
bool follows_from(const Rewriter& graph, ValueId value, NodeId node);

// Whether nobody else updates what this node updates. Those who do keep their order, and so stay apart.
bool updates_alone(const Rewriter& graph, NodeId id);

// Whether an update may be what reads these, instead of another op before it. Not where one is a variable: two whose
// updates read one another would have no order that gives both the old value.
bool may_join_update(const Rewriter& graph, std::initializer_list<ValueId> read);

}  // namespace moonflow
