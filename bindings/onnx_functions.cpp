#include "bindings/onnx_functions.h"

#include <algorithm>

#include "bindings/onnx_format.h"

namespace moonflow::onnx {

std::string domain_of(std::string_view name) { return name == "ai.onnx" ? std::string() : std::string(name); }

int64_t own_opset(WireReader entry) {
  std::string domain;
  int64_t version = 0;
  while (entry.next()) {
    if (entry.number() == opset::Domain) domain = domain_of(entry.bytes());
    if (entry.number() == opset::Version) version = entry.integer();
  }
  return domain.empty() ? version : 0;
}

Function::Function(WireReader reader) : bytes(reader.left()) {
  while (reader.next()) switch (reader.number()) {
      case function::Name:
        key.op = reader.bytes();
        break;
      case function::Domain:
        key.domain = domain_of(reader.bytes());
        break;
      case function::Overload:
        key.overload = reader.bytes();
        break;
      case function::Opset:
        opset = std::max(opset, own_opset(reader.message()));
        break;
      case function::Input:
        inputs.emplace_back(reader.bytes());
        break;
      case function::Output:
        outputs.emplace_back(reader.bytes());
        break;
      case function::Default:
        defaults.push_back(reader.message());
        break;
      case function::Node:
        nodes.push_back(reader.message());
        break;
      default:
        break;
    }
}

Call::Call(const Function& function, OnnxNode node, int depth) : function_(function), node_(std::move(node)) {
  const auto name = [&](std::vector<std::string>& given, const std::vector<std::string>& known, const char* what) {
    require(given.size() <= known.size(), ErrorCode::Io, "node ", shown(node_.name), " gives the function ",
            shown(node_.op), " ", given.size(), " ", what, ", and it has ", known.size());
    given.resize(known.size());
  };
  name(node_.inputs, function.inputs, "inputs");
  name(node_.outputs, function.outputs, "outputs");
  for (size_t i = 0; i < node_.inputs.size(); ++i) names_.emplace(function.inputs[i], node_.inputs[i]);
  for (size_t i = 0; i < node_.outputs.size(); ++i) {
    if (node_.outputs[i].empty()) continue;
    names_.emplace(function.outputs[i], node_.outputs[i]);
    // Calls that give a value of the same name lie in each other.
    if (prefix_.empty()) prefix_ = node_.outputs[i] + std::string(static_cast<size_t>(depth) + 1, ':');
  }
}

std::string Call::value(std::string_view name) const {
  if (name.empty()) return {};
  const auto found = names_.find(std::string(name));
  return found != names_.end() ? found->second : prefix_ + std::string(name);
}

std::string Call::node(std::string_view name) const {
  return (node_.name.empty() ? prefix_ : node_.name + "/") + std::string(name);
}

const OnnxAttribute* Call::attribute(std::string_view name) const {
  const std::vector<OnnxAttribute>& all = node_.attributes;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const OnnxAttribute& attribute) { return attribute.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<OnnxNode> Call::copies() const {
  std::vector<OnnxNode> nodes;
  for (size_t i = 0; i < node_.outputs.size(); ++i) {
    const std::string from = value(function_.outputs[i]);
    if (node_.outputs[i].empty() || from == node_.outputs[i]) continue;
    OnnxNode copy;
    copy.op = "Identity";
    copy.name = node(function_.outputs[i]);
    copy.inputs = {from};
    copy.outputs = {node_.outputs[i]};
    nodes.push_back(std::move(copy));
  }
  return nodes;
}

}  // namespace moonflow::onnx
