#include "bindings/onnx_format.h"

#include <functional>
#include <queue>
#include <unordered_map>
#include <unordered_set>

namespace moonflow::onnx {

namespace {

// By the number of the type.
const OnnxElementType kElementTypes[] = {
    {"undefined", {}},
    {"float", DType::Float32},
    {"uint8", DType::UInt8},
    {"int8", DType::Int8},
    {"uint16", {}, DType::Int32, 16},
    {"int16", {}, DType::Int32, 16},
    {"int32", DType::Int32},
    {"int64", DType::Int64},
    {"string", {}},
    {"bool", DType::Int8},
    {"float16", DType::Float16},
    {"double", DType::Float64},
    {"uint32", {}},
    {"uint64", {}},
    {"complex64", {}},
    {"complex128", {}},
    {"bfloat16", DType::BFloat16},
    {"float8e4m3fn", {}},
    {"float8e4m3fnuz", {}},
    {"float8e5m2", {}},
    {"float8e5m2fnuz", {}},
    {"uint4", {}, DType::UInt8, 4},
    {"int4", {}, DType::Int8, 4},
    {"float4e2m1", {}},
    {"float8e8m0", {}},
    {"uint2", {}},
    {"int2", {}},
    {"float6e2m3", {}},
    {"float6e3m2", {}},
};
static_assert(std::size(kElementTypes) == kOnnxElementTypes);

void check_within(const OnnxGraph& graph, std::unordered_set<std::string_view>& made) {
  std::vector<std::string_view> own;
  const auto make = [&](const std::string& name, const char* by) {
    require(!name.empty(), ErrorCode::Io, by, " has no name");
    require(made.insert(name).second, ErrorCode::Io, "the value ", shown(name), " is made twice, the second time as ",
            by);
    own.push_back(name);
  };
  for (const OnnxValue& input : graph.inputs) make(input.name, "an input");
  for (const OnnxInitializer& initializer : graph.initializers) make(initializer.name, "an initializer");
  for (const OnnxNode& node : graph.nodes) {
    for (const std::string& input : node.inputs)
      require(input.empty() || made.count(input) > 0, ErrorCode::Io, "the value ", shown(input), " is used by node ",
              shown(node.name), " (", shown(node.op), "), but nothing before makes it");
    for (const OnnxAttribute& attribute : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<const OnnxGraph>>(&attribute.value))
        check_within(**inner, made);
    for (const std::string& output : node.outputs)
      if (!output.empty()) make(output, "an output of a node");
  }
  for (const OnnxValue& output : graph.outputs)
    require(made.count(output.name) > 0, ErrorCode::Io, "nothing makes the output ", shown(output.name));
  for (const std::string_view name : own) made.erase(name);
}

// Calls use(name) for each value that a node reads, also in the graphs in it.
template <class Use>
void each_use(const OnnxNode& node, const Use& use) {
  for (const std::string& input : node.inputs)
    if (!input.empty()) use(input);
  for (const OnnxAttribute& attribute : node.attributes)
    if (const auto* inner = std::get_if<std::shared_ptr<const OnnxGraph>>(&attribute.value)) {
      for (const OnnxNode& within : (*inner)->nodes) each_use(within, use);
      for (const OnnxValue& output : (*inner)->outputs) use(output.name);
    }
}

}  // namespace

std::string element_name(int64_t type) {
  return type >= 0 && type < kOnnxElementTypes ? kElementTypes[type].name : text("the type of number ", type);
}

DType dtype_of(int64_t type, const std::string& what) {
  if (type >= 0 && type < kOnnxElementTypes && kElementTypes[type].dtype) return *kElementTypes[type].dtype;
  fail(ErrorCode::Unsupported, what, " is of ", element_name(type), ", which there is none of here");
}

int64_t type_of(DType dtype) {
  int64_t type = 0;
  while (kElementTypes[type].dtype != dtype) ++type;  // int8 comes before bool
  return type;
}

std::string shown(std::string_view name) {
  std::string text(name.substr(0, 100));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  return "'" + text + "'";
}

void order_nodes(OnnxGraph& graph) {
  const size_t count = graph.nodes.size();
  std::unordered_map<std::string_view, size_t> makers;
  for (size_t i = 0; i < count; ++i)
    for (const std::string& output : graph.nodes[i].outputs) makers.emplace(output, i);

  std::vector<std::vector<size_t>> readers(count);
  std::vector<size_t> waits_for(count, 0);
  bool is_ordered = true;
  for (size_t i = 0; i < count; ++i)
    each_use(graph.nodes[i], [&](const std::string& name) {
      const auto maker = makers.find(name);
      if (maker == makers.end()) return;
      readers[maker->second].push_back(i);
      ++waits_for[i];
      is_ordered = is_ordered && maker->second < i;
    });
  if (is_ordered) return;

  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;  // the first of the file first
  for (size_t i = 0; i < count; ++i)
    if (waits_for[i] == 0) ready.push(i);
  std::vector<size_t> sequence;
  while (!ready.empty()) {
    sequence.push_back(ready.top());
    ready.pop();
    for (const size_t reader : readers[sequence.back()])
      if (--waits_for[reader] == 0) ready.push(reader);
  }
  if (sequence.size() < count) return;
  std::vector<OnnxNode> nodes;
  for (const size_t i : sequence) nodes.push_back(std::move(graph.nodes[i]));
  graph.nodes = std::move(nodes);
}

void check_graph(const OnnxGraph& graph) {
  std::unordered_set<std::string_view> made;
  check_within(graph, made);
}

}  // namespace moonflow::onnx

namespace moonflow {

const OnnxElementType& onnx_element_type(int number) { return onnx::kElementTypes[number]; }

}  // namespace moonflow
