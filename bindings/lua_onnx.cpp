// ONNX files as Lua tables, and such tables as files. A model is
//   { opset = 17, producer = "...", name = "...", inputs = { value... }, outputs = { value... },
//     initializers = { { name = "...", value = ndarray }... },
//     nodes = { { op = "...", domain = "...", name = "...", inputs = { name... }, outputs = { name... },
//                 attributes = { name = { kind = value } } }... } }
// where a value is { name = "...", dtype = "...", shape = { 1, "batch", "" } }, without what is unknown, and the kinds
// of attributes have ONNX's names: i, f, s, t, g, ints, floats, strings. A graph in a node is a table such as a model's
// without opset and producer.
#include <fcntl.h>

#include <algorithm>
#include <functional>
#include <map>

#include "bindings/file.h"
#include "bindings/lua_module.h"
#include "bindings/onnx.h"

namespace moonflow::lua {

namespace {

// ---- to Lua: in phase 3, from a model that a box holds -------------------------------------------------------------

// Beyond 2^53 numbers mean "to the end"; what they are exactly does not matter, but that they stay whole numbers does.
double number_of(int64_t integer) { return static_cast<double>(std::clamp(integer, -kExact, kExact)); }

void push_graph(lua_State* L, const OnnxGraph& graph, int more);

void push_attribute(lua_State* L, const OnnxAttribute::Value& value) {
  struct Visitor {
    lua_State* L;
    const char* operator()(int64_t integer) const { return lua_pushnumber(L, number_of(integer)), "i"; }
    const char* operator()(double real) const { return lua_pushnumber(L, real), "f"; }
    const char* operator()(const std::string& string) const { return push_string(L, string), "s"; }
    const char* operator()(const Tensor& tensor) const { return push_array(L) = tensor, "t"; }
    const char* operator()(const std::vector<int64_t>& ints) const {
      push_list(L, ints, [](lua_State* to, int64_t integer) { lua_pushnumber(to, number_of(integer)); });
      return "ints";
    }
    const char* operator()(const std::vector<double>& floats) const {
      push_list(L, floats, lua_pushnumber);
      return "floats";
    }
    const char* operator()(const std::vector<std::string>& strings) const {
      push_list(L, strings, push_string);
      return "strings";
    }
    const char* operator()(const std::shared_ptr<const OnnxGraph>& graph) const {
      return push_graph(L, *graph, 0), "g";
    }
  };
  lua_createtable(L, 0, 1);
  const char* kind = std::visit(Visitor{L}, value);
  lua_setfield(L, -2, kind);
}

void push_node(lua_State* L, const OnnxNode& node) {
  lua_createtable(L, 0, 6);
  set_string(L, "op", node.op);
  set_string(L, "domain", node.domain);
  set_string(L, "name", node.name);
  set_list(L, "inputs", node.inputs, push_string);
  set_list(L, "outputs", node.outputs, push_string);
  lua_createtable(L, 0, static_cast<int>(node.attributes.size()));
  for (const OnnxAttribute& attribute : node.attributes) {
    push_string(L, attribute.name);
    push_attribute(L, attribute.value);
    lua_rawset(L, -3);
  }
  lua_setfield(L, -2, "attributes");
}

void push_value(lua_State* L, const OnnxValue& value) {
  lua_createtable(L, 0, 3);
  set_string(L, "name", value.name);
  if (value.dtype) set_string(L, "dtype", name(*value.dtype));
  if (!value.shape) return;
  set_list(L, "shape", *value.shape, [](lua_State* to, const OnnxValue::Size& size) {
    if (const auto* number = std::get_if<int64_t>(&size))
      lua_pushnumber(to, number_of(*number));
    else
      push_string(to, std::get<std::string>(size));
  });
}

void push_initializer(lua_State* L, const OnnxInitializer& initializer) {
  lua_createtable(L, 0, 3);
  set_string(L, "name", initializer.name);
  if (initializer.narrow) set_string(L, "narrow", initializer.narrow);
  push_array(L) = initializer.value;
  lua_setfield(L, -2, "value");
}

// A table with room for `more` fields.
void push_graph(lua_State* L, const OnnxGraph& graph, int more) {
  luaL_checkstack(L, LUA_MINSTACK, "graphs in too many others");
  lua_createtable(L, 0, 5 + more);
  set_string(L, "name", graph.name);
  set_list(L, "inputs", graph.inputs, push_value);
  set_list(L, "outputs", graph.outputs, push_value);
  set_list(L, "initializers", graph.initializers, push_initializer);
  set_list(L, "nodes", graph.nodes, push_node);
}

// Reads what tensors keep in files beside the model.
class DataFiles {
 public:
  DataFiles(const std::string& model, const std::shared_ptr<HostMemory>& memory)
      : folder_(parent_of(model)),
        directory_(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
        memory_(memory) {
    if (!directory_) fail_errno(folder_, "open");
  }

  Tensor operator()(const std::string& name, int64_t offset, const TensorType& type) {
    const std::string path = folder_ + "/" + name;
    FileSource source(directory_, name, path);
    const int64_t size = source.size();
    require(offset <= size && type.bytes() <= size - offset, ErrorCode::Io, "file '", path, "' has ", size,
            " bytes, and the model wants ", type.bytes(), " from byte ", offset, " on");
    int64_t& read = read_[name];
    read += type.bytes();
    require(read / kMostShares <= size, ErrorCode::Io, "file '", path, "' has ", size, " bytes, of which ", read,
            " or more are to be made");
    source.seek(offset);
    Tensor tensor = Tensor::allocate(type, memory_);
    source.read(tensor.data(), type.bytes());
    return tensor;
  }

 private:
  static constexpr int64_t kMostShares = 8;  // of tensors in the same bytes, for a small file must not fill the memory

  std::string folder_;
  Descriptor directory_;
  const std::shared_ptr<HostMemory>& memory_;
  std::map<std::string, int64_t> read_;  // bytes of each file
};

int push_model(lua_State* L, const OnnxModel& model) {
  push_graph(L, model, 2);
  set_number(L, "opset", number_of(model.opset));
  set_string(L, "producer", model.producer);
  return 1;
}

// core.onnx_read(path) -> model
int onnx_read(lua_State* L) {
  lua_settop(L, 1);
  auto& model = keep<OnnxModel>(L);
  protect_allocating(L, [&] {
    const std::string path = path_at(L, 1);
    FileSource source(path);
    require(source.size() < int64_t{1} << 31, ErrorCode::Unsupported, "file '", path, "' is larger than 2 GiB");
    const std::string bytes = source.read_rest();
    DataFiles files(path, state_of(L).memory);
    model = prefixing([&] { return read_onnx(bytes, state_of(L).memory, std::ref(files)); }, "file '", path, "'");
  });
  return push_model(L, model);
}

// core.onnx_decode(bytes) -> model
int onnx_decode(lua_State* L) {
  lua_settop(L, 1);
  auto& model = keep<OnnxModel>(L);
  protect_allocating(L, [&] {
    const auto refuse = [](const std::string& name, int64_t, const TensorType&) -> Tensor {
      fail(ErrorCode::Unsupported, "the model keeps data in another file, '", name,
           "', and bytes have none beside them");
    };
    model = read_onnx(string_at(L, 1, "bytes"), state_of(L).memory, refuse);
  });
  return push_model(L, model);
}

// core.onnx_types() -> { [number] = { name = "...", dtype = "..." }... }, dtype only where there is one
int onnx_types(lua_State* L) {
  lua_createtable(L, kOnnxElementTypes - 1, 1);
  for (int number = 0; number < kOnnxElementTypes; ++number) {
    const OnnxElementType& type = onnx_element_type(number);
    lua_createtable(L, 0, 2);
    set_string(L, "name", type.name);
    if (type.dtype) set_string(L, "dtype", name(*type.dtype));
    lua_rawseti(L, -2, number);
  }
  return 1;
}

// ---- from Lua: in phase 2, so nothing may raise --------------------------------------------------------------------

// Names of fields that are read, by number: making a string may raise, so they are made in phase 1.
enum Field {
  Opset = 1,
  Producer,
  Name,
  Inputs,
  Outputs,
  Initializers,
  Nodes,
  Value,
  Op,
  Attributes,
  DTypeName,
  ShapeOf,
  Domain
};
constexpr const char* kFields[] = {"opset", "producer", "name",       "inputs", "outputs", "initializers", "nodes",
                                   "value", "op",       "attributes", "dtype",  "shape",   "domain"};

class ModelReader {
 public:
  ModelReader(lua_State* L, int names) : L_(L), names_(names) {}

  OnnxModel read(int model) const {
    OnnxModel read;
    field(model, Opset, [&](int at) { read.opset = integer_at(L_, at, "opset", 1, 1000); });
    field(model, Producer, [&](int at) { read.producer = string_at(L_, at, "producer"); });
    read_graph(model, read, 0);
    return read;
  }

  static constexpr int kStack = 16;  // that a graph takes, without those in its nodes

 private:
  void read_graph(int table, OnnxGraph& read, int depth) const {
    field(table, Name, [&](int at) { read.name = string_at(L_, at, "name of the graph"); });
    list(table, Inputs, [&](int at) { read.inputs.push_back(value(at)); });
    list(table, Outputs, [&](int at) { read.outputs.push_back(value(at)); });
    list(table, Initializers, [&](int at) { read.initializers.push_back(initializer(at)); });
    list(table, Nodes, [&](int at) { read.nodes.push_back(node(at, depth)); });
  }

  // Calls read(index) with the field on the top of the stack.
  template <class Read>
  void field(int table, Field name, const Read& read) const {
    lua_rawgeti(L_, names_, name);
    lua_rawget(L_, table);
    read(lua_gettop(L_));
    lua_pop(L_, 1);
  }
  // The same of each table in the list that the field holds.
  template <class Read>
  void list(int table, Field name, const Read& read) const {
    field(table, name, [&](int at) {
      each_at(L_, at, kFields[name - 1], [&](int entry) {
        table_at(L_, entry, kFields[name - 1]);
        read(entry);
      });
    });
  }

  std::string string_of(int table, Field name) const {
    std::string text;
    field(table, name, [&](int at) { text = string_at(L_, at, kFields[name - 1]); });
    return text;
  }

  OnnxValue value(int table) const {
    OnnxValue value;
    value.name = string_of(table, Name);
    field(table, DTypeName, [&](int at) {
      if (!lua_isnil(L_, at)) value.dtype = dtype_at(L_, at, "dtype");
    });
    field(table, ShapeOf, [&](int at) {
      if (lua_isnil(L_, at)) return;
      value.shape.emplace();
      each_at(L_, at, "shape", [&](int size) {
        if (lua_type(L_, size) == LUA_TSTRING)
          value.shape->emplace_back(std::string(string_at(L_, size, "size")));
        else
          value.shape->emplace_back(integer_at(L_, size, "size", 0, kExact));
      });
    });
    return value;
  }

  OnnxInitializer initializer(int table) const {
    OnnxInitializer initializer{string_of(table, Name), {}};
    field(table, Value, [&](int at) { initializer.value = array_at(L_, at, "value of an initializer"); });
    return initializer;
  }

  OnnxNode node(int table, int depth) const {
    OnnxNode node;
    node.op = string_of(table, Op);
    node.name = string_of(table, Name);
    field(table, Domain, [&](int at) {
      if (!lua_isnil(L_, at)) node.domain = string_at(L_, at, "domain");
    });
    const auto names = [&](std::vector<std::string>& to) {
      return [&](int at) {
        each_at(L_, at, "names", [&](int name) { to.emplace_back(string_at(L_, name, "name of a value")); });
      };
    };
    field(table, Inputs, names(node.inputs));
    field(table, Outputs, names(node.outputs));
    field(table, Attributes, [&](int at) {
      table_at(L_, at, "attributes");
      for (lua_pushnil(L_); lua_next(L_, at) != 0; lua_pop(L_, 1))
        node.attributes.push_back(
            attribute(std::string(string_at(L_, -2, "name of an attribute")), lua_gettop(L_), depth));
    });
    // The order of a table's keys is nobody's choice, that of a file is.
    std::sort(node.attributes.begin(), node.attributes.end(),
              [](const OnnxAttribute& one, const OnnxAttribute& other) { return one.name < other.name; });
    return node;
  }

  OnnxAttribute attribute(const std::string& name, int table, int depth) const {
    table_at(L_, table, "an attribute");
    lua_pushnil(L_);
    require(lua_next(L_, table) != 0, ErrorCode::InvalidArgument, "attribute '", name, "' is empty");
    const std::string kind(string_at(L_, -2, "kind of an attribute"));
    OnnxAttribute attribute{name, attribute_value(name, kind, lua_gettop(L_), depth)};
    lua_pop(L_, 2);
    return attribute;
  }

  OnnxAttribute::Value attribute_value(const std::string& name, const std::string& kind, int at, int depth) const {
    const char* what = name.c_str();
    if (kind == "i") return integer_at(L_, at, what);
    if (kind == "f") return number_at(L_, at, what);
    if (kind == "s") return std::string(string_at(L_, at, what));
    if (kind == "t") return array_at(L_, at, what);
    if (kind == "g") {
      table_at(L_, at, what);
      require(depth < kOnnxMaxDepth, ErrorCode::Unsupported, "attribute '", name, "' is a graph, in more than ",
              kOnnxMaxDepth, " others");
      auto graph = std::make_shared<OnnxGraph>();
      read_graph(at, *graph, depth + 1);
      return graph;
    }
    if (kind == "ints") {
      std::vector<int64_t> ints;
      each_at(L_, at, what, [&](int entry) { ints.push_back(integer_at(L_, entry, what)); });
      return ints;
    }
    if (kind == "floats") {
      std::vector<double> floats;
      each_at(L_, at, what, [&](int entry) { floats.push_back(number_at(L_, entry, what)); });
      return floats;
    }
    require(kind == "strings", ErrorCode::InvalidArgument, "attribute '", name, "' is of no kind: ", kind);
    std::vector<std::string> strings;
    each_at(L_, at, what, [&](int entry) { strings.emplace_back(string_at(L_, entry, what)); });
    return strings;
  }

  lua_State* L_;
  int names_;
};

// Pushes what reading a model takes: the names of its fields.
void push_fields(lua_State* L) {
  luaL_checkstack(L, LUA_MINSTACK + ModelReader::kStack * (kOnnxMaxDepth + 1), "no room");
  lua_createtable(L, static_cast<int>(std::size(kFields)), 0);
  int i = 0;
  for (const char* field : kFields) {
    lua_pushstring(L, field);
    lua_rawseti(L, -2, ++i);
  }
}

// The bytes of the model of the table at `index`, in two parts; push_fields has been called with nothing above it.
std::pair<std::string, std::string> model_at(lua_State* L, int index) {
  table_at(L, index, "model");
  return write_onnx(ModelReader(L, index + 1).read(index));
}

// core.onnx_write(path, model)
int onnx_write(lua_State* L) {
  lua_settop(L, 2);
  push_fields(L);
  protect(L, [&] {
    const std::string path = path_at(L, 1);
    const auto [head, graph] = model_at(L, 2);
    replace_file(path, head, graph.data(), static_cast<int64_t>(graph.size()));
  });
  return 0;
}

// core.onnx_encode(model) -> bytes
int onnx_encode(lua_State* L) {
  lua_settop(L, 1);
  push_fields(L);
  return push_bytes(L, [&] {
    auto [head, graph] = model_at(L, 1);
    return head.append(graph);
  });
}

}  // namespace

void add_onnx(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {{"onnx_read", onnx_read},   {"onnx_decode", onnx_decode},
                                        {"onnx_write", onnx_write}, {"onnx_encode", onnx_encode},
                                        {"onnx_types", onnx_types}, {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
