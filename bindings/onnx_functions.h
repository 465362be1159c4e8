// Functions of an ONNX file: operators that it says by others. A node that calls one is read as the function's nodes,
// whose values have names of their own in each call.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bindings/onnx.h"
#include "bindings/wire.h"

namespace moonflow::onnx {

// "" and "ai.onnx" are one domain.
std::string domain_of(std::string_view name);

// The version of ONNX's own operators, if this entry of a list of opsets is about them; else 0.
int64_t own_opset(WireReader entry);

// By what a node calls it.
struct FunctionKey {
  std::string domain, op, overload;

  bool operator<(const FunctionKey& other) const {
    return std::tie(domain, op, overload) < std::tie(other.domain, other.op, other.overload);
  }
};

// As far as it can be read before there is a call.
struct Function {
  explicit Function(WireReader reader);

  FunctionKey key;
  size_t bytes;       // of all of it
  int64_t opset = 0;  // 0: it does not say
  std::vector<std::string> inputs, outputs;
  std::vector<WireReader> defaults, nodes;  // attributes that a call may leave out, and what there is to do
};

// What the names in a function stand for where a node calls it that gives a value at least, within so many other calls.
// The node's attributes are followed by the defaults.
class Call {
 public:
  Call(const Function& function, OnnxNode node, int depth);

  // The names in the graph around it.
  std::string value(std::string_view name) const;
  std::string node(std::string_view name) const;
  // nullptr: there is none, so what refers to it is left out.
  const OnnxAttribute* attribute(std::string_view name) const;
  // Nodes that give an output its name which has another already: an input is one, or it is there twice.
  std::vector<OnnxNode> copies() const;

 private:
  const Function& function_;
  OnnxNode node_;
  std::string prefix_;                                  // of names that are this call's alone
  std::unordered_map<std::string, std::string> names_;  // of inputs and outputs
};

}  // namespace moonflow::onnx
