#include "bindings/onnx_format.h"
#include "bindings/wire.h"

namespace moonflow {

using namespace onnx;

namespace {

constexpr int64_t kIrVersion = 8;  // that of opset 17

// All of a tensor but its elements, and how many bytes those take.
std::pair<WireWriter, int64_t> tensor_head(const Tensor& value, const std::string& name) {
  WireWriter head;
  for (const int64_t dim : value.shape()) head.integer(tensor::Dims, dim);
  head.integer(tensor::Type, type_of(value.dtype()));
  if (!name.empty()) head.bytes(tensor::Name, name);
  head.begin_bytes(tensor::Raw, static_cast<uint64_t>(value.bytes()));
  return {std::move(head), value.bytes()};
}

void write_tensor(WireWriter& to, uint32_t number, const Tensor& value, const std::string& name) {
  const auto [head, bytes] = tensor_head(value, name);
  to.begin_bytes(number, head.text().size() + static_cast<uint64_t>(bytes));
  to.append(head.text());
  to.append({value.data<char>(), static_cast<size_t>(bytes)});
}

WireWriter graph_message(const OnnxGraph& graph);

WireWriter attribute_message(const OnnxAttribute& attribute) {
  WireWriter message;
  message.bytes(attribute::Name, attribute.name);
  struct Visitor {
    WireWriter& message;
    attribute::Kind operator()(int64_t integer) const {
      message.integer(attribute::I, integer);
      return attribute::Int;
    }
    attribute::Kind operator()(double real) const {
      message.real(attribute::F, static_cast<float>(real));
      return attribute::Float;
    }
    attribute::Kind operator()(const std::string& string) const {
      message.bytes(attribute::S, string);
      return attribute::String;
    }
    attribute::Kind operator()(const Tensor& value) const {
      write_tensor(message, attribute::T, value, "");
      return attribute::Tensor;
    }
    attribute::Kind operator()(const std::vector<int64_t>& ints) const {
      for (const int64_t integer : ints) message.integer(attribute::Ints, integer);
      return attribute::IntList;
    }
    attribute::Kind operator()(const std::vector<double>& floats) const {
      for (const double real : floats) message.real(attribute::Floats, static_cast<float>(real));
      return attribute::FloatList;
    }
    attribute::Kind operator()(const std::vector<std::string>& strings) const {
      for (const std::string& string : strings) message.bytes(attribute::Strings, string);
      return attribute::StringList;
    }
    attribute::Kind operator()(const std::shared_ptr<const OnnxGraph>& graph) const {
      message.message(attribute::G, graph_message(*graph));
      return attribute::Graph;
    }
  };
  message.integer(attribute::Type, std::visit(Visitor{message}, attribute.value));
  return message;
}

WireWriter node_message(const OnnxNode& node) {
  WireWriter message;
  for (const std::string& input : node.inputs) message.bytes(node::Input, input);
  for (const std::string& output : node.outputs) message.bytes(node::Output, output);
  message.bytes(node::Name, node.name);
  message.bytes(node::Op, node.op);
  if (!node.domain.empty()) message.bytes(node::Domain, node.domain);
  for (const OnnxAttribute& attribute : node.attributes) message.message(node::Attribute, attribute_message(attribute));
  return message;
}

WireWriter value_message(const OnnxValue& value) {
  WireWriter shape, tensor, type, message;
  for (const OnnxValue::Size& size : value.shape.value_or(std::vector<OnnxValue::Size>())) {
    WireWriter dim;
    if (const auto* number = std::get_if<int64_t>(&size))
      dim.integer(value::Size, *number);
    else if (!std::get<std::string>(size).empty())
      dim.bytes(value::Param, std::get<std::string>(size));
    shape.message(value::Dim, dim);
  }
  if (value.dtype) tensor.integer(value::ElementType, type_of(*value.dtype));
  if (value.shape) tensor.message(value::ElementShape, shape);
  type.message(value::TensorType, tensor);
  message.bytes(value::Name, value.name);
  message.message(value::Type, type);
  return message;
}

WireWriter graph_message(const OnnxGraph& graph) {
  WireWriter message;
  for (const OnnxNode& node : graph.nodes) message.message(graph::Node, node_message(node));
  message.bytes(graph::Name, graph.name);
  for (const OnnxInitializer& initializer : graph.initializers)
    write_tensor(message, graph::Initializer, initializer.value, initializer.name);
  for (const OnnxValue& input : graph.inputs) message.message(graph::Input, value_message(input));
  for (const OnnxValue& output : graph.outputs) message.message(graph::Output, value_message(output));
  return message;
}

}  // namespace

std::pair<std::string, std::string> write_onnx(const OnnxModel& model) {
  check_graph(model);
  const WireWriter graph = graph_message(model);
  WireWriter opset, head;
  opset.bytes(opset::Domain, "");
  opset.integer(opset::Version, model.opset);
  head.integer(model::IrVersion, kIrVersion);
  head.bytes(model::Producer, model.producer);
  head.message(model::Opset, opset);
  head.begin_bytes(model::Graph, graph.text().size());
  require(head.text().size() + graph.text().size() <= kMaxFile, ErrorCode::Unsupported,
          "the model is larger than 2 GiB, which an ONNX file cannot hold");
  return {head.text(), graph.text()};
}

}  // namespace moonflow
