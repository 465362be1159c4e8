// What reading and writing ONNX files share: the numbers of fields and of element types, and what holds of every graph.
#pragma once

#include <string>
#include <string_view>

#include "bindings/onnx.h"

namespace moonflow::onnx {

constexpr size_t kMaxFile = (size_t{1} << 31) - 1;  // of a protobuf message

// ---- fields and types, as onnx.proto has them ----------------------------------------------------------------------

namespace model {
enum : uint32_t { IrVersion = 1, Producer = 2, ProducerVersion = 3, Graph = 7, Opset = 8, Function = 25 };
}
namespace opset {
enum : uint32_t { Domain = 1, Version = 2 };
}
namespace graph {
enum : uint32_t { Node = 1, Name = 2, Initializer = 5, Input = 11, Output = 12, SparseInitializer = 15 };
}
namespace node {
enum : uint32_t { Input = 1, Output = 2, Name = 3, Op = 4, Attribute = 5, Domain = 7, Overload = 8 };
}
namespace function {
enum : uint32_t { Name = 1, Input = 4, Output, Attribute, Node, Opset = 9, Domain, Default, Overload = 13 };
}
namespace attribute {
enum : uint32_t { Name = 1, F, I, S, T, G, Floats, Ints, Strings, Tensors, Graphs, Type = 20, Reference = 21 };
// The value of field `Type`.
enum Kind { Float = 1, Int, String, Tensor, Graph, FloatList, IntList, StringList, TensorList, GraphList };
}  // namespace attribute
namespace tensor {
enum : uint32_t {
  Dims = 1,
  Type,
  Segment,
  Floats,
  Int32s,
  Strings,
  Int64s,
  Name,
  Raw,
  Doubles,
  UInt64s,
  External = 13,
  Location
};
}
namespace entry {
enum : uint32_t { Key = 1, Value = 2 };
}
namespace value {
enum : uint32_t { Name = 1, Type = 2, ElementType = 1, ElementShape = 2, Dim = 1, Size = 1, Param = 2 };
enum : uint32_t { TensorType = 1, SequenceType = 4 };  // what a type is of
}

constexpr int kBool = 9;  // of element types; it is our int8

std::string element_name(int64_t type);
// Throws, naming `what`, where there is no such dtype here.
DType dtype_of(int64_t type, const std::string& what);
int64_t type_of(DType dtype);

// A name as messages show it: of one line and not too long.
std::string shown(std::string_view name);

// Puts nodes behind those that make what they use, and else leaves their order. ONNX wants it so in a file, but ONNX
// Runtime does not ask for it, and some converters append nodes. Where nodes wait for each other all stay.
void order_nodes(OnnxGraph& graph);

// What holds of every graph: each value has a name and is made once, before it is used. So there is no cycle either.
// What a graph in a node makes, nobody around it sees.
void check_graph(const OnnxGraph& graph);

}  // namespace moonflow::onnx
