#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "bindings/onnx_format.h"
#include "bindings/onnx_functions.h"
#include "bindings/wire.h"

namespace moonflow {

using namespace onnx;

namespace {

constexpr int64_t kMaxParts = 1 << 22;  // nodes, names and attributes: each takes more memory than it takes bytes
constexpr int kMaxCalls = 16;           // of functions in functions
constexpr int64_t kMostCallBytes = 1 << 26;  // that calls may make of a small file

// What all parts of a file are read with.
struct Reading {
  const std::shared_ptr<HostMemory>& memory;
  const OnnxDataFile& data_file;
  int64_t call_bytes;  // that calls of functions may still make
  std::map<FunctionKey, Function> functions = {};
  int64_t opset = 0;
  int64_t parts = 0;
  int depth = 0;               // of the graph that is read, in nodes of others
  int calls = 0;               // of functions around it
  const Call* call = nullptr;  // the innermost of these

  // Counts what the file is made of.
  void take(const WireReader& at) {
    if (++parts > kMaxParts) at.damaged(text("the graph has more than ", kMaxParts, " parts"));
  }
  // Counts what calls add to that.
  void spend(const WireReader& at, size_t bytes) {
    call_bytes -= static_cast<int64_t>(bytes);
    if (call_bytes < 0) at.damaged("the calls of functions make the graph too large");
  }
  // What a value of the file is called in the model.
  std::string value(const WireReader& at, std::string_view name) {
    if (!call) return std::string(name);
    std::string full = call->value(name);
    spend(at, full.size());
    return full;
  }
};

// ---- tensors -------------------------------------------------------------------------------------------------------

// Where the elements of a tensor lie that are in another file.
struct External {
  std::string name;
  int64_t offset = 0, length = -1;  // -1: it does not say
};

// What a tensor says of itself; its elements are read once that is known.
struct TensorHead {
  std::string name;
  int64_t element = 0;
  Shape shape;
  uint32_t data = 0;  // the field that has the elements; 0: none, or there are no elements
  bool is_external = false;
  External external;
};

void read_external(WireReader reader, External& external) {
  std::string key, value;
  const WireReader whole = reader;
  while (reader.next()) {
    if (reader.number() == entry::Key) key = reader.bytes();
    if (reader.number() == entry::Value) value = reader.bytes();
  }
  if (key == "location") external.name = value;
  if (key != "offset" && key != "length") return;
  const bool is_number = !value.empty() && value.size() < 19 && value.find_first_not_of("0123456789") == value.npos;
  if (!is_number) whole.damaged(text("the ", key, " of data in another file is ", shown(value)));
  (key == "offset" ? external.offset : external.length) = std::stoll(value);
}

TensorHead read_tensor_head(WireReader reader) {
  TensorHead head;
  while (reader.next()) switch (reader.number()) {
      case tensor::Dims:
        reader.integers([&](int64_t dim) {
          if (dim < 0) reader.damaged(text("a tensor has the size ", dim));
          if (head.shape.rank() == Shape::kMaxRank)
            reader.damaged(text("a tensor has more than ", Shape::kMaxRank, " axes"));
          head.shape.push_back(dim);
        });
        break;
      case tensor::Type:
        head.element = reader.integer();
        break;
      case tensor::Name:
        head.name = reader.bytes();
        break;
      case tensor::Floats:
      case tensor::Int32s:
      case tensor::Strings:
      case tensor::Int64s:
      case tensor::Raw:
      case tensor::Doubles:
      case tensor::UInt64s:
        if (head.data != 0 && (head.data != reader.number() || head.data == tensor::Raw))
          reader.damaged("a tensor has two sets of elements");
        head.data = reader.number();
        break;
      case tensor::Segment:
        reader.damaged("a tensor in segments, which are not supported");
      case tensor::Location:
        head.is_external = reader.integer() != 0;
        break;
      case tensor::External:
        read_external(reader.message(), head.external);
        break;
      default:
        break;
    }
  return head;
}

uint32_t data_field_of(DType dtype) {
  switch (dtype) {
    case DType::Float32:
      return tensor::Floats;
    case DType::Float64:
      return tensor::Doubles;
    case DType::Int64:
      return tensor::Int64s;
    default:
      return tensor::Int32s;  // the narrow floats too, as bits
  }
}

// The elements one by one, as the field of their dtype has them.
void read_elements(WireReader reader, uint32_t field, const Tensor& to, const std::string& what) {
  const int64_t count = to.count();
  int64_t at = 0;
  const auto next = [&]() {
    if (at == count) reader.damaged(text(what, " has more elements than ", to.type(), " holds"));
    return at++;
  };
  while (reader.next()) {
    if (reader.number() != field) continue;
    switch (to.dtype()) {
      case DType::Float32:
        reader.fixed<uint32_t>([&](uint32_t bits) { to.data<uint32_t>()[next()] = bits; });
        break;
      case DType::Float64:
        reader.fixed<uint64_t>([&](uint64_t bits) { to.data<uint64_t>()[next()] = bits; });
        break;
      case DType::Int64:
        reader.integers([&](int64_t element) { to.data<int64_t>()[next()] = element; });
        break;
      case DType::BFloat16:
      case DType::Float16:
        reader.integers([&](int64_t bits) { to.data<uint16_t>()[next()] = static_cast<uint16_t>(bits); });
        break;
      default:
        reader.integers([&](int64_t element) {
          visit(to.dtype(), [&](auto like) {
            using T = decltype(like);
            if (element != static_cast<int64_t>(static_cast<T>(element)))
              reader.damaged(text(what, " holds ", element, ", which is no ", to.dtype()));
            to.data<T>()[next()] = static_cast<T>(element);
          });
        });
    }
  }
  if (at < count) reader.damaged(text(what, " is ", to.type(), ", but has ", at, " elements only"));
}

std::string_view raw_data(WireReader reader) {
  while (reader.next())
    if (reader.number() == tensor::Raw) return reader.bytes();
  return {};
}

Tensor read_data_file(const WireReader& reader, const std::string& what, const External& external,
                      const TensorType& type, const Reading& reading) {
  const std::string& name = external.name;
  // A plain name cannot lead out of the folder.
  if (name.empty() || name == "." || name == ".." || name.find_first_of(std::string_view("/\\\0", 3)) != name.npos)
    reader.damaged(text(what, " keeps its data in ", shown(name), "; only files in the model's folder are read"));
  if (external.length >= 0 && external.length != type.bytes())
    reader.damaged(text(what, " is ", type, ", which takes ", type.bytes(), " bytes; it has ", external.length));
  require(static_cast<bool>(reading.data_file), ErrorCode::Unsupported, what, " keeps its data in another file");
  return reading.data_file(name, external.offset, type);
}

// Widens whole numbers that lie in bytes, the lower half of a byte first.
void widen(const uint8_t* from, const OnnxElementType& element, const Tensor& to) {
  const bool is_signed = element.name[0] == 'i';
  visit(to.dtype(), [&](auto like) {
    using T = decltype(like);
    for (int64_t i = 0; i < to.count(); ++i) {
      const int bits = element.bits == 16 ? from[2 * i] | from[2 * i + 1] << 8 : from[i / 2] >> (i % 2 * 4) & 15;
      const bool is_below = is_signed && bits >> (element.bits - 1) != 0;
      to.data<T>()[i] = static_cast<T>(is_below ? bits - (1 << element.bits) : bits);
    }
  });
}

// An initializer of numbers that are narrower here than any dtype. One by one they lie in a field of 32 bits each, but
// two halves of a byte in one.
OnnxInitializer read_narrow(const WireReader& reader, const TensorHead& head, const std::string& what,
                            const Reading& reading) {
  const OnnxElementType& element = onnx_element_type(static_cast<int>(head.element));
  const TensorType type{*element.wider, head.shape};
  check_size(type);
  const int64_t bytes = type.count() / 8 * element.bits + (type.count() % 8 * element.bits + 7) / 8;
  const bool is_raw = head.data == tensor::Raw;
  if (head.data != 0 && !is_raw && head.data != tensor::Int32s)
    reader.damaged(text(what, " is of ", element.name, ", its elements are of another type"));
  const std::string_view raw = is_raw ? raw_data(reader) : std::string_view();
  if (is_raw && raw.size() != static_cast<size_t>(bytes))
    reader.damaged(text(what, " of ", element.name, " takes ", bytes, " bytes; it has ", raw.size()));
  if (!is_raw && !head.is_external && bytes > 2 * static_cast<int64_t>(reader.left()))
    reader.damaged(text(what, " is ", type, ", more than the file has"));

  OnnxInitializer read{head.name, Tensor::allocate(type, reading.memory), element.name};
  if (is_raw) {
    widen(reinterpret_cast<const uint8_t*>(raw.data()), element, read.value);
  } else if (head.is_external) {
    const Tensor packed = read_data_file(reader, what, head.external, {DType::UInt8, Shape({bytes})}, reading);
    widen(packed.data<uint8_t>(), element, read.value);
  } else if (element.bits < 8) {
    const Tensor packed = Tensor::allocate({DType::UInt8, Shape({bytes})}, reading.memory);
    read_elements(reader, head.data, packed, what);
    widen(packed.data<uint8_t>(), element, read.value);
  } else {
    read_elements(reader, head.data, read.value, what);
  }
  return read;
}

// `owner` names the attribute that it is the value of, if it is one's.
OnnxInitializer read_tensor(const WireReader& reader, const Reading& reading, const std::string& owner = {}) {
  const TensorHead head = read_tensor_head(reader);
  const std::string what = owner.empty() ? "tensor " + shown(head.name) : owner;
  const bool is_known = head.element >= 0 && head.element < kOnnxElementTypes;
  if (owner.empty() && is_known && onnx_element_type(static_cast<int>(head.element)).wider)
    return read_narrow(reader, head, what, reading);
  const TensorType type{dtype_of(head.element, what), head.shape};
  check_size(type);
  if (head.is_external) return {head.name, read_data_file(reader, what, head.external, type, reading)};
  const bool is_raw = head.data == tensor::Raw;
  if (head.data != 0 && !is_raw && head.data != data_field_of(type.dtype))
    reader.damaged(text(what, " is ", type, ", its elements are of another type"));
  const std::string_view raw = is_raw ? raw_data(reader) : std::string_view();
  if (is_raw && raw.size() != static_cast<size_t>(type.bytes()))
    reader.damaged(text(what, " is ", type, ", which takes ", type.bytes(), " bytes; it has ", raw.size()));
  // An element takes a byte of the file or more, so a size that is only claimed takes no memory.
  if (!is_raw && type.count() > static_cast<int64_t>(reader.left()))
    reader.damaged(text(what, " is ", type, ", more than the file has"));

  OnnxInitializer read{head.name, Tensor::allocate(type, reading.memory)};
  if (!raw.empty()) std::memcpy(read.value.data(), raw.data(), raw.size());
  if (!is_raw) read_elements(reader, head.data, read.value, what);
  if (head.element == kBool) {
    auto* flags = read.value.data<int8_t>();
    std::transform(flags, flags + type.count(), flags, [](int8_t flag) { return static_cast<int8_t>(flag != 0); });
  }
  return read;
}

// ---- nodes ---------------------------------------------------------------------------------------------------------

void read_graph(WireReader reader, OnnxGraph& graph, Reading& reading);

std::shared_ptr<const OnnxGraph> read_inner_graph(const WireReader& reader, const std::string& what, Reading& reading) {
  if (reading.depth == kOnnxMaxDepth)
    fail(ErrorCode::Unsupported, what, " is a graph, in more than ", kOnnxMaxDepth, " others");
  auto graph = std::make_shared<OnnxGraph>();
  ++reading.depth;
  prefixing([&] { read_graph(reader.message(), *graph, reading); }, what);
  --reading.depth;
  return graph;
}

// The value of an attribute, in the field that its type names, or that of the function's attribute that it refers to;
// nothing where the call leaves that out.
std::optional<OnnxAttribute> read_attribute(const WireReader& whole, const std::string& node, Reading& reading) {
  OnnxAttribute attribute;
  std::string reference;
  int64_t kind = 0;
  for (WireReader reader = whole; reader.next();) {
    if (reader.number() == attribute::Name) attribute.name = reader.bytes();
    if (reader.number() == attribute::Type) kind = reader.integer();
    if (reader.number() == attribute::Reference) reference = reader.bytes();
  }
  const std::string what = node + ": attribute " + shown(attribute.name);
  if (!reference.empty()) {
    if (!reading.call) whole.damaged(what + " is one of a function, and there is none around it");
    const OnnxAttribute* const given = reading.call->attribute(reference);
    if (!given) return std::nullopt;
    attribute.value = given->value;
    return attribute;
  }
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<std::string> strings;
  std::optional<OnnxAttribute::Value> single;
  for (WireReader reader = whole; reader.next();) switch (reader.number()) {
      case attribute::F:
        if (kind == attribute::Float) single = static_cast<double>(reader.real());
        break;
      case attribute::I:
        if (kind == attribute::Int) single = reader.integer();
        break;
      case attribute::S:
        if (kind == attribute::String) single = std::string(reader.bytes());
        break;
      case attribute::T:
        if (kind == attribute::Tensor) single = read_tensor(reader.message(), reading, what).value;
        break;
      case attribute::G:
        if (kind == attribute::Graph) single = read_inner_graph(reader, what, reading);
        break;
      case attribute::Floats:
        reader.fixed<uint32_t>([&](uint32_t bits) {
          float number;
          std::memcpy(&number, &bits, sizeof number);
          floats.push_back(static_cast<double>(number));
        });
        break;
      case attribute::Ints:
        reader.integers([&](int64_t number) { ints.push_back(number); });
        break;
      case attribute::Strings:
        reading.take(reader);
        strings.emplace_back(reader.bytes());
        break;
      default:
        break;
    }
  switch (kind) {
    case attribute::Float:
    case attribute::Int:
    case attribute::String:
    case attribute::Tensor:
    case attribute::Graph:
      if (!single) whole.damaged(what + " has no value of its type");
      attribute.value = *std::move(single);
      break;
    case attribute::FloatList:
      attribute.value = std::move(floats);
      break;
    case attribute::IntList:
      attribute.value = std::move(ints);
      break;
    case attribute::StringList:
      attribute.value = std::move(strings);
      break;
    default:
      fail(ErrorCode::Unsupported, what, " has the type of number ", kind, ", which is not supported");
  }
  return attribute;
}

// Appends attributes, none of them twice.
void read_attributes(const std::vector<WireReader>& readers, const std::string& what, Reading& reading,
                     std::vector<OnnxAttribute>& attributes) {
  std::unordered_set<std::string> names;
  for (const WireReader& reader : readers) {
    std::optional<OnnxAttribute> attribute = read_attribute(reader, what, reading);
    if (!attribute) continue;
    if (!names.insert(attribute->name).second)
      reader.damaged(what + " has the attribute " + shown(attribute->name) + " twice");
    attributes.push_back(*std::move(attribute));
  }
}

std::string described(const OnnxNode& node) {
  const std::string& name = node.name.empty() && !node.outputs.empty() ? node.outputs[0] : node.name;
  return "node " + shown(name) + " (" + shown(node.op) + ")";
}

OnnxNode read_node(const WireReader& whole, Reading& reading) {
  OnnxNode node;
  std::vector<WireReader> attributes;  // read once the node has its name
  for (WireReader reader = whole; reader.next();) {
    reading.take(reader);
    switch (reader.number()) {
      case node::Input:
        node.inputs.push_back(reading.value(reader, reader.bytes()));
        break;
      case node::Output:
        node.outputs.push_back(reading.value(reader, reader.bytes()));
        break;
      case node::Name:
        node.name = reader.bytes();
        break;
      case node::Op:
        node.op = reader.bytes();
        break;
      case node::Domain:
        node.domain = domain_of(reader.bytes());
        break;
      case node::Overload:
        node.overload = reader.bytes();
        break;
      case node::Attribute:
        attributes.push_back(reader.message());
        break;
      default:
        break;
    }
  }
  if (node.op.empty()) whole.damaged("a node has no operator");
  if (reading.call && !node.name.empty()) {
    node.name = reading.call->node(node.name);
    reading.spend(whole, node.name.size());
  }
  read_attributes(attributes, described(node), reading, node.attributes);
  return node;
}

void read_nodes(const WireReader& whole, Reading& reading, std::vector<OnnxNode>& nodes);

// Appends the nodes of the function that a node calls.
void read_call(const WireReader& at, const Function& function, OnnxNode node, Reading& reading,
               std::vector<OnnxNode>& nodes) {
  const auto is_empty = [](const std::string& name) { return name.empty(); };
  if (std::all_of(node.outputs.begin(), node.outputs.end(), is_empty)) return;  // nobody can ask for it
  const std::string what = described(node) + ", a function of the file,";
  if (reading.calls == kMaxCalls) fail(ErrorCode::Unsupported, what, " is called in ", kMaxCalls, " others");
  if (function.opset != 0 && function.opset != reading.opset)
    fail(ErrorCode::Unsupported, what, " is of opset ", function.opset, ", and the model of ", reading.opset,
         "; export it with one opset");
  reading.spend(at, function.bytes);
  const Call* const around = std::exchange(reading.call, nullptr);  // defaults refer to nothing
  read_attributes(function.defaults, what, reading, node.attributes);
  const Call call(function, std::move(node), reading.calls);
  reading.call = &call;
  ++reading.calls;
  for (const WireReader& inner : function.nodes) read_nodes(inner, reading, nodes);
  --reading.calls;
  reading.call = around;
  for (OnnxNode& copy : call.copies()) nodes.push_back(std::move(copy));
}

// Appends a node, or those of the function that it calls.
void read_nodes(const WireReader& whole, Reading& reading, std::vector<OnnxNode>& nodes) {
  OnnxNode node = read_node(whole, reading);
  const auto function = reading.functions.find({node.domain, node.op, node.overload});
  if (function == reading.functions.end())
    nodes.push_back(std::move(node));
  else
    read_call(whole, function->second, std::move(node), reading, nodes);
}

// ---- the graph -----------------------------------------------------------------------------------------------------

std::vector<OnnxValue::Size> read_shape(WireReader reader, Reading& reading) {
  std::vector<OnnxValue::Size> shape;
  while (reader.next()) {
    if (reader.number() != value::Dim) continue;
    reading.take(reader);
    OnnxValue::Size size;
    size = std::string();
    for (WireReader dim = reader.message(); dim.next();) {
      if (dim.number() == value::Size && dim.integer() >= 0) size = dim.integer();
      if (dim.number() == value::Param) size = std::string(dim.bytes());
    }
    shape.push_back(std::move(size));
  }
  return shape;
}

OnnxValue read_value(WireReader reader, const char* role, Reading& reading) {
  OnnxValue read;
  std::optional<WireReader> type;
  while (reader.next()) {
    if (reader.number() == value::Name) read.name = reading.value(reader, reader.bytes());
    if (reader.number() == value::Type) type = reader.message();
  }
  const std::string what = std::string(role) + " " + shown(read.name);
  while (type && type->next()) {
    // The graph of a node may hand on a sequence; it does not matter of what.
    if (type->number() == value::SequenceType && reading.depth > 0) continue;
    if (type->number() > value::TensorType && type->number() <= 9 && type->number() != 6)
      fail(ErrorCode::Unsupported, what, " is a sequence, a map or another type that is no dense tensor");
    if (type->number() != value::TensorType) continue;
    for (WireReader tensor = type->message(); tensor.next();) {
      if (tensor.number() == value::ElementType && tensor.integer() != 0) read.dtype = dtype_of(tensor.integer(), what);
      if (tensor.number() == value::ElementShape) read.shape = read_shape(tensor.message(), reading);
    }
  }
  return read;
}

void read_graph(WireReader reader, OnnxGraph& graph, Reading& reading) {
  while (reader.next()) {
    reading.take(reader);
    switch (reader.number()) {
      case graph::Node:
        read_nodes(reader.message(), reading, graph.nodes);
        break;
      case graph::Name:
        graph.name = reader.bytes();
        break;
      case graph::Initializer:
        graph.initializers.push_back(read_tensor(reader.message(), reading));
        graph.initializers.back().name = reading.value(reader, graph.initializers.back().name);
        break;
      case graph::Input:
        graph.inputs.push_back(read_value(reader.message(), "input", reading));
        break;
      case graph::Output:
        graph.outputs.push_back(read_value(reader.message(), "output", reading));
        break;
      case graph::SparseInitializer:
        fail(ErrorCode::Unsupported, "the graph has sparse initializers, which are not supported");
      default:
        break;
    }
  }
  std::unordered_set<std::string_view> initialized;
  for (const OnnxInitializer& initializer : graph.initializers) initialized.insert(initializer.name);
  const auto is_initialized = [&](const OnnxValue& input) { return initialized.count(input.name) > 0; };
  graph.inputs.erase(std::remove_if(graph.inputs.begin(), graph.inputs.end(), is_initialized), graph.inputs.end());
  order_nodes(graph);
}

void add_function(const WireReader& reader, Reading& reading) {
  Function function(reader);
  const std::string name = function.key.op;
  if (!reading.functions.emplace(function.key, std::move(function)).second)
    reader.damaged("the function " + shown(name) + " is there twice");
}

// Pages that say why there was no download, and the pointers that git keeps in the place of large files, are text.
bool is_text(std::string_view file) {
  constexpr size_t kEnough = 64;
  const std::string_view begin = file.substr(0, kEnough);
  const auto is_written = [](char c) { return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~'); };
  return !begin.empty() && std::all_of(begin.begin(), begin.end(), is_written);
}

}  // namespace

OnnxModel read_onnx(std::string_view file, const std::shared_ptr<HostMemory>& memory, const OnnxDataFile& data_file) {
  require(file.size() <= kMaxFile, ErrorCode::Unsupported, "the file is larger than 2 GiB");
  OnnxModel model;
  std::string version;
  constexpr int64_t kMostCopies = 16;  // of a large file
  Reading reading{memory, data_file, std::max(kMostCallBytes, kMostCopies * static_cast<int64_t>(file.size()))};
  require(!is_text(file), ErrorCode::Io, "this is no ONNX model but text: ", shown(file.substr(0, file.find('\n'))));
  bool is_model = false;  // so far it may be anything
  std::optional<WireReader> graph;
  WireReader reader(file);
  const auto next = [&] {
    try {
      return reader.next();
    } catch (const Error& error) {
      if (is_model) throw;
      fail(error.code, "this is no ONNX model: ", error.what());
    }
  };
  for (; next(); is_model = is_model || reader.number() <= model::Opset) switch (reader.number()) {
      case model::Producer:
        model.producer = reader.bytes();
        break;
      case model::ProducerVersion:
        version = reader.bytes();
        break;
      case model::Opset:
        model.opset = std::max(model.opset, own_opset(reader.message()));
        break;
      case model::Graph:
        if (graph) reader.damaged("there is a second graph");
        graph = reader.message();
        break;
      case model::Function:
        add_function(reader.message(), reading);
        break;
      default:
        break;
    }
  require(graph.has_value(), ErrorCode::Io, "this is no ONNX model: there is no graph in it");
  reading.opset = model.opset;
  read_graph(*graph, model, reading);
  if (!version.empty()) model.producer += " " + version;
  check_graph(model);
  return model;
}

}  // namespace moonflow
