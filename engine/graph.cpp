#include "engine/graph.h"

namespace moonflow {

std::string Node::describe() const {
  static constexpr const char* kSources[] = {"", "feed", "variable", "constant"};
  const std::string what = kind == Op ? op->name : kSources[kind];
  return name.empty() ? what : what + " '" + name + "'";
}

ValueId Graph::source(Node::Kind kind, std::string name, TensorType type, std::string site) {
  check_size(type);
  const ValueId id = static_cast<ValueId>(values_.size());
  const NodeId node_id = static_cast<NodeId>(nodes_.size());
  Node& node = nodes_.emplace_back();
  node.kind = kind;
  node.name = std::move(name);
  node.site = std::move(site);
  node.outputs = {id};
  values_.push_back({type, node_id, 0});
  return id;
}

ValueId Graph::feed(std::string name, TensorType type, std::string site) {
  const ValueId id = source(Node::Feed, std::move(name), type, std::move(site));
  feeds_.push_back(values_[id].node);
  return id;
}

ValueId Graph::variable(const std::string& name, TensorType type, std::string site) {
  const auto known = variables_.find(name);
  if (known == variables_.end()) {
    const ValueId id = source(Node::Variable, name, type, std::move(site));
    variables_.emplace(name, id);
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
  const ValueId id = source(Node::Constant, std::move(name), value.type(), std::move(site));
  nodes_.back().constant = std::move(value);
  return id;
}

std::vector<ValueId> Graph::append(std::string_view op_name, std::vector<ValueId> inputs, Attrs attrs, std::string name,
                                   std::string site) {
  const OpDef& op = blaming("", site, [&]() -> const OpDef& { return catalog_->at(op_name); });
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
  const NodeId node_id = static_cast<NodeId>(nodes_.size());
  for (const TensorType& type : types) {
    node.outputs.push_back(static_cast<ValueId>(values_.size()));
    values_.push_back({type, node_id, static_cast<int>(node.outputs.size()) - 1});
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().outputs;
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
