// ONNX files: a graph of nodes, the values of its weights, and the types of what goes in and out.
// Reading trusts nothing. A file that is read has no cycle, makes each value once and before its use, and took memory
// in proportion to its size. What operators mean is not known here, but for functions that the file itself has: a node
// that calls one is replaced by the nodes of the function.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/tensor.h"

namespace moonflow {

// What ONNX calls the type of an element, and the dtype that is read as; bool is int8, as everywhere here. An
// initializer may also be of a type of so many `bits` that a wider dtype has all numbers of.
struct OnnxElementType {
  const char* name;
  std::optional<DType> dtype;
  std::optional<DType> wider = {};
  int bits = 0;
};
constexpr int kOnnxElementTypes = 29;
// By the number that a file has for it, below kOnnxElementTypes.
const OnnxElementType& onnx_element_type(int number);

struct OnnxGraph;

// A graph is what a node of control flow does; it is shared with copies of the attribute, since nobody changes it.
struct OnnxAttribute {
  using Value = std::variant<int64_t, double, std::string, Tensor, std::vector<int64_t>, std::vector<double>,
                             std::vector<std::string>, std::shared_ptr<const OnnxGraph>>;
  std::string name;
  Value value;
};

// Inputs and outputs are names of values; an empty one is left out.
struct OnnxNode {
  std::string op, domain, name;
  std::vector<std::string> inputs, outputs;
  std::vector<OnnxAttribute> attributes;
  std::string overload = {};  // of a function of the file
};

// An input or output of the graph. A size is a number, the name of one that is open, or "" where nothing is said.
struct OnnxValue {
  using Size = std::variant<int64_t, std::string>;
  std::string name;
  std::optional<DType> dtype;
  std::optional<std::vector<Size>> shape;
};

struct OnnxInitializer {
  std::string name;
  Tensor value;
  const char* narrow = nullptr;  // what ONNX calls its type, where the value is of a wider one
};

// One that lies in a node uses values of the graphs around it too.
struct OnnxGraph {
  std::string name;
  std::vector<OnnxValue> inputs, outputs;  // without the initializers that old files name among the inputs
  std::vector<OnnxInitializer> initializers;
  std::vector<OnnxNode> nodes;
};

constexpr int kOnnxMaxDepth = 8;  // of graphs in nodes of graphs

struct OnnxModel : OnnxGraph {
  int64_t opset = 0;  // of the operators of ONNX itself
  std::string producer;
};

// Gives a tensor whose elements lie in another file than the model, from the byte `offset` on. The name has no folder
// in it: such files lie beside the model.
using OnnxDataFile = std::function<Tensor(const std::string& name, int64_t offset, const TensorType& type)>;

// Without `data_file` all data must be in the model's own.
OnnxModel read_onnx(std::string_view file, const std::shared_ptr<HostMemory>& memory,
                    const OnnxDataFile& data_file = nullptr);

// The file in two parts, one behind the other, so that the weights are copied once.
std::pair<std::string, std::string> write_onnx(const OnnxModel& model);

}  // namespace moonflow
