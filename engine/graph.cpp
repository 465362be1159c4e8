#include "engine/graph.h"

#include <algorithm>

namespace moonflow {

namespace {

// So much that adding `more` cannot fail.
template <class T>
void make_room(std::vector<T>& list, size_t more) {
  if (list.capacity() - list.size() < more) list.reserve(std::max(list.size() + more, 2 * list.capacity()));
}

}  // namespace

std::string Node::describe() const {
  static constexpr const char* kSources[] = {"", "feed", "variable", "constant"};
  const std::string what = kind == Op ? op->name : kSources[kind];
  return name.empty() ? what : what + " '" + name + "'";
}

// What is short of memory leaves the graph as it was, since who asked may collect garbage and ask again.
std::vector<ValueId> Graph::add(Node node, const std::vector<TensorType>& types) {
  for (size_t i = 0; i < types.size(); ++i) node.outputs.push_back(static_cast<ValueId>(values_.size() + i));
  std::vector<ValueId> outputs = node.outputs;
  make_room(values_, types.size());
  nodes_.push_back(std::move(node));
  const NodeId id = static_cast<NodeId>(nodes_.size() - 1);
  for (size_t i = 0; i < types.size(); ++i) values_.push_back({types[i], id, static_cast<int>(i)});
  return outputs;
}

ValueId Graph::source(Node::Kind kind, std::string name, TensorType type, std::string site, Tensor constant) {
  check_size(type);
  Node node;
  node.kind = kind;
  node.name = std::move(name);
  node.site = std::move(site);
  node.constant = std::move(constant);
  return add(std::move(node), {type})[0];
}

ValueId Graph::feed(std::string name, TensorType type, std::string site) {
  make_room(feeds_, 1);
  const ValueId id = source(Node::Feed, std::move(name), type, std::move(site));
  feeds_.push_back(values_[id].node);
  return id;
}

ValueId Graph::variable(const std::string& name, TensorType type, std::string site) {
  const auto known = variables_.find(name);
  if (known == variables_.end()) {
    std::map<std::string, ValueId> added{{name, kNone}};
    const ValueId id = source(Node::Variable, name, type, std::move(site));
    added.begin()->second = id;
    variables_.merge(added);
    return id;
  }
  const Value& value = values_[known->second];
  blaming("variable '" + name + "'", site, [&] {
    require(value.type == type, ErrorCode::ShapeMismatch, "is ", value.type, " already (made at ",
            nodes_[value.node].site, "), asked for as ", type);
  });
  return known->second;
}

ValueId Graph::constant(Tensor value, std::string name, std::string site) {
  const TensorType type = value.type();
  return source(Node::Constant, std::move(name), type, std::move(site), std::move(value));
}

std::vector<ValueId> Graph::append(std::string_view op_name, std::vector<ValueId> inputs, Attrs attrs, std::string name,
                                   std::string site) {
  const OpDef& op = *blaming("", site, [&] { return &catalog_->at(op_name); });
  Node node;
  node.op = &op;
  node.name = std::move(name);
  node.site = std::move(site);
  const std::vector<TensorType> types = blaming(node.describe(), node.site, [&] {
    fit_inputs(op, inputs);
    std::vector<const TensorType*> input_types;
    for (const ValueId input : inputs) {
      if (input != kNone) check(input);
      input_types.push_back(input == kNone ? nullptr : &values_[input].type);
    }
    attrs = complete(op, std::move(attrs));
    return infer(op, OpCall{input_types, attrs});
  });
  node.inputs = std::move(inputs);
  node.attrs = std::move(attrs);
  node.part = part;
  return add(std::move(node), types);
}

void Graph::note_gradients(NodeId first) {
  for (NodeId id = first; id < static_cast<NodeId>(nodes_.size()); ++id) nodes_[id].of_gradient = true;
}

std::vector<ValueId> Graph::repeat(NodeId id, std::vector<ValueId> inputs) {
  const Node& node = nodes_[id];
  std::vector<ValueId> outputs = append(node.op->name, std::move(inputs), node.attrs, node.name + "_again", node.site);
  nodes_.back().part = -node.part;
  return outputs;
}

void Graph::tap(ValueId value, Token token) {
  check(value);
  taps_.push_back({value, token});
}

void Graph::check(ValueId value) const {
  require(value >= 0 && value < static_cast<ValueId>(values_.size()), ErrorCode::InvalidArgument, "there is no value ",
          value, " in this graph");
}

std::string Graph::blob_name(ValueId id) const {
  const Value& value = values_[id];
  const Node& node = nodes_[value.node];
  if (node.kind != Node::Op) return node.name + "/out";
  return node.name + "/" + node.op->outputs[value.index] + "_0";
}

std::string Graph::dump() const {
  std::string lines;
  for (const Node& node : nodes_) {
    for (size_t i = 0; i < node.outputs.size(); ++i)
      lines += text(i ? ", " : "", "%", node.outputs[i], ": ", values_[node.outputs[i]].type);
    lines += (node.outputs.empty() ? "" : " = ") + node.describe() + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i)
      lines += (i ? ", " : "") + (node.inputs[i] == kNone ? std::string("-") : text("%", node.inputs[i]));
    lines += ")";
    for (const auto& [name, value] : node.attrs) lines += " " + name + "=" + str(value);
    lines += (node.site.empty() ? "" : "  # " + node.site) + "\n";
  }
  for (const Tap& tap : taps_) lines += text("tap %", tap.value, " for ", tap.token, "\n");
  return lines;
}

}  // namespace moonflow
