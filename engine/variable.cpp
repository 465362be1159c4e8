#include "engine/variable.h"

#include "engine/op.h"

namespace moonflow {

Variable& Variables::declare(const std::string& name, const TensorType& type, Device& device) {
  if (Variable* known = find(name)) {
    require(known->type == type, ErrorCode::ShapeMismatch, "variable '", name, "' is ", known->type,
            " in this session, asked for as ", type);
    return *known;
  }
  auto variable = std::make_unique<Variable>();
  variable->name = name;
  variable->type = type;
  variable->memory = Buffer(device, type.bytes());
  return *variables_.emplace(name, std::move(variable)).first->second;
}

Variable* Variables::find(const std::string& name) {
  const auto found = variables_.find(name);
  return found == variables_.end() ? nullptr : found->second.get();
}

Variable& Variables::at(const std::string& name) {
  if (Variable* known = find(name)) return *known;
  fail(ErrorCode::NotFound, "there is no variable '", name, "'", did_you_mean(name, names()));
}

std::vector<std::string> Variables::names() const {
  std::vector<std::string> names;
  for (const auto& [name, variable] : variables_) names.push_back(name);
  return names;
}

}  // namespace moonflow
