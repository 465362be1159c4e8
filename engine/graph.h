// The graph of one job: nodes appended in order, each with inferred types and the script's line it came from.
// Append-only. Used on the thread that traces.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/op.h"

namespace moonflow {

using Token = uint64_t;  // names whoever asked for a value; 0 is nobody

struct Value {
  TensorType type;
  NodeId node = kNone;
  int index = 0;  // which output of the node
};

struct Node {
  enum Kind { Op, Feed, Variable, Constant };
  Kind kind = Op;
  const OpDef* op = nullptr;  // only for Kind::Op
  Attrs attrs;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::string name;          // of the op, feed or variable
  std::string site;          // "file:line" of the user's script
  Tensor constant;           // only for Kind::Constant
  int part = 0;              // see Graph::part
  bool of_gradient = false;  // appended on the way back from a loss

  // "matmul 'hidden'", for messages.
  std::string describe() const;
};

// A value that must reach the host, with the token of whoever asked.
struct Tap {
  ValueId value;
  Token token;
};

class Graph {
 public:
  explicit Graph(const Catalog& catalog) : catalog_(&catalog) {}

  ValueId feed(std::string name, TensorType type, std::string site = {});
  // A second call with the same name gives the same value; another type is an error.
  ValueId variable(const std::string& name, TensorType type, std::string site = {});
  ValueId constant(Tensor value, std::string name, std::string site = {});
  // Checks arity and attributes, infers the types. Errors carry op, name and site.
  std::vector<ValueId> append(std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {}, std::string name = {},
                              std::string site = {});
  void tap(ValueId value, Token token);
  // Appends the node once more, of other values. The part is that of the first, below 0, so nobody takes one for the
  // other.
  std::vector<ValueId> repeat(NodeId node, std::vector<ValueId> inputs);
  // Notes that all nodes from this one on are of gradients.
  void note_gradients(NodeId first);

  // That of the ops which are appended from now on. What is between two ops of one part above 0 is not kept until
  // gradients want it: they repeat the part, which saves memory and takes its time once more.
  int part = 0;

  // The narrow dtype in which its ops may compute where that is faster; see engine/mixed_precision.h.
  std::optional<DType> mixed_precision;
  // Its products may round their float32 factors to TF32, where the device has that; see KernelCall.
  bool allow_tf32 = false;
  // Where a kernel is faster so, it may keep a weight that no op writes as numbers of 8 bits, each row with its scale.
  bool quantizes_weights = false;

  const Catalog& catalog() const { return *catalog_; }
  const std::deque<Node>& nodes() const { return nodes_; }
  const std::vector<Value>& values() const { return values_; }
  const Node& node(NodeId id) const { return nodes_[id]; }
  const Value& value(ValueId id) const { return values_[id]; }
  const TensorType& type(ValueId id) const { return values_[id].type; }
  const std::vector<NodeId>& feeds() const { return feeds_; }
  const std::vector<Tap>& taps() const { return taps_; }
  // The logical blob name: "conv1-weight/out" for a variable, "dense1-matmul/out_0" for an op.
  std::string blob_name(ValueId id) const;
  std::string dump() const;

 private:
  std::vector<ValueId> add(Node node, const std::vector<TensorType>& types);
  ValueId source(Node::Kind kind, std::string name, TensorType type, std::string site, Tensor constant = {});
  void check(ValueId value) const;

  const Catalog* catalog_;
  std::deque<Node> nodes_;  // stable addresses while gradients append
  std::vector<Value> values_;
  std::vector<NodeId> feeds_;
  std::map<std::string, ValueId> variables_;
  std::vector<Tap> taps_;
};

}  // namespace moonflow
