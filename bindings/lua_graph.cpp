// The graph userdata: what tracing a job appends to.
#include <climits>

#include "bindings/lua_attrs.h"
#include "bindings/lua_module.h"
#include "engine/autodiff.h"

namespace moonflow::lua {

namespace {

GraphBox& self(lua_State* L) { return box_at<GraphBox>(L, 1, "a graph"); }

// Id of a value of the graph.
ValueId value_at(lua_State* L, int index, const Graph& graph, const char* what) {
  const int64_t count = static_cast<int64_t>(graph.values().size());
  const int64_t id = integer_at(L, index, what);
  require(id >= 0 && id < count, ErrorCode::OutOfRange, what, ": there is no value ", id, " in this graph");
  return static_cast<ValueId>(id);
}

std::vector<ValueId> values_at(lua_State* L, int index, const Graph& graph, const char* what, bool may_be_left_out) {
  std::vector<ValueId> values;
  each_at(L, index, what, [&](int at) {
    const bool left_out = may_be_left_out && lua_isboolean(L, at) && !lua_toboolean(L, at);
    values.push_back(left_out ? kNone : value_at(L, at, graph, what));
  });
  return values;
}

int push_id(lua_State* L, ValueId id) {
  lua_pushnumber(L, id);
  return 1;
}

// graph:feed(name, dtype, shape, site) -> id
int feed(lua_State* L) {
  ValueId id = kNone;
  protect(L, [&] {
    const std::string site(optional_string_at(L, 5, "site"));
    blaming("", site, [&] {
      const std::string name(string_at(L, 2, "name"));
      const TensorType type{dtype_at(L, 3, "dtype"), shape_at(L, 4, "shape")};
      id = self(L).graph->feed(name, type, site);
    });
  });
  return push_id(L, id);
}

// graph:variable(name, dtype, shape, site) -> id. The session has the variable once the graph is compiled, so a job
// whose definition fails leaves nothing behind.
int variable(lua_State* L) {
  ValueId id = kNone;
  protect_allocating(L, [&] {
    const std::string site(optional_string_at(L, 5, "site"));
    blaming("", site, [&] {
      const std::string name(string_at(L, 2, "name"));
      const TensorType type{dtype_at(L, 3, "dtype"), shape_at(L, 4, "shape")};
      GraphBox& box = self(L);
      box.session->variables().expect(name, type);
      id = box.graph->variable(name, type, site);
    });
  });
  return push_id(L, id);
}

// graph:constant(ndarray, name, site) -> id; the value is copied.
int constant(lua_State* L) {
  ValueId id = kNone;
  protect_allocating(L, [&] {
    const std::string name(optional_string_at(L, 3, "name"));
    const std::string site(optional_string_at(L, 4, "site"));
    const Tensor value = array_at(L, 2, "value").copy(state_of(L).memory);
    id = self(L).graph->constant(value, name, site);
  });
  return push_id(L, id);
}

// graph:append(op, inputs, attrs, name, site) -> id, ...
int append(lua_State* L) {
  lua_settop(L, 6);
  const std::vector<ValueId>* outputs = nullptr;
  protect_allocating(L, [&] {
    lua_settop(L, 6);
    const std::string site(optional_string_at(L, 6, "site"));
    blaming("", site, [&] {
      Graph& graph = *self(L).graph;
      const std::string op_name(string_at(L, 2, "op"));
      const std::string name(optional_string_at(L, 5, "name"));
      const OpDef& op = graph.catalog().at(op_name);
      blaming(name.empty() ? op_name : op_name + " '" + name + "'", site, [&] {
        std::vector<ValueId> inputs = values_at(L, 3, graph, "inputs", true);
        Attrs attrs = attrs_at(L, 4, op);
        graph.append(op_name, std::move(inputs), std::move(attrs), name, site);
      });
      outputs = &graph.nodes().back().outputs;  // nodes stay where they are
    });
  });
  luaL_checkstack(L, static_cast<int>(outputs->size()), "too many outputs");
  for (const ValueId id : *outputs) lua_pushnumber(L, id);
  return static_cast<int>(outputs->size());
}

int tap(lua_State* L) {
  protect(L, [&] {
    Graph& graph = *self(L).graph;
    const ValueId value = value_at(L, 2, graph, "value");
    graph.tap(value, static_cast<Token>(integer_at(L, 3, "token", 1, kExact)));
  });
  return 0;
}

// graph:part(number): that of the ops which follow, 0 for none.
int part(lua_State* L) {
  protect(L, [&] { self(L).graph->part = static_cast<int>(integer_at(L, 2, "part", 0, INT_MAX)); });
  return 0;
}

// Pushes an id, false where there is none.
void push_id_or_false(lua_State* L, ValueId id) {
  if (id == kNone)
    lua_pushboolean(L, false);
  else
    lua_pushnumber(L, id);
}

// graph:gradients(losses, seeds, values) -> { id or false, ... }
int gradients_of(lua_State* L) {
  lua_settop(L, 4);
  auto& found = keep<std::vector<ValueId>>(L);
  protect(L, [&] {
    Graph& graph = *self(L).graph;
    const auto losses = values_at(L, 2, graph, "losses", false);
    const auto seeds = values_at(L, 3, graph, "seeds", false);
    const auto values = values_at(L, 4, graph, "values", false);
    found = gradients(graph, losses, seeds, values);
  });
  push_list(L, found, push_id_or_false);
  return 1;
}

// graph:stops_gradient(losses, value) -> "argmax 'best'", site of the first op on a way from the value to a loss that
// lets no gradient by; nothing where there is none.
int stops_gradient_at(lua_State* L) {
  lua_settop(L, 3);
  std::string& text = push_box<std::string>(L);
  const Node* stop = nullptr;
  protect(L, [&] {
    const Graph& graph = *self(L).graph;
    const NodeId id = stops_gradient(graph, values_at(L, 2, graph, "losses", false), value_at(L, 3, graph, "value"));
    if (id == kNone) return;
    stop = &graph.node(id);
    text = stop->describe();
  });
  if (stop == nullptr) return 0;
  push_string(L, text);
  push_string(L, stop->site);
  return 2;
}

// graph:computed_from(sources, values) -> { boolean, ... }: which of the values are one of the sources, or computed
// from one in any way.
int computed_from_any(lua_State* L) {
  lua_settop(L, 3);
  auto& found = keep<std::vector<bool>>(L);
  protect(L, [&] {
    const Graph& graph = *self(L).graph;
    const std::vector<bool> follows = computed_from(graph, values_at(L, 2, graph, "sources", false));
    for (const ValueId value : values_at(L, 3, graph, "values", false)) found.push_back(follows[value]);
  });
  push_list(L, found, lua_pushboolean);
  return 1;
}

// graph:type(id) -> dtype, shape
int type(lua_State* L) {
  TensorType type;
  protect(L, [&] {
    const Graph& graph = *self(L).graph;
    type = graph.type(value_at(L, 2, graph, "value"));
  });
  lua_pushstring(L, name(type.dtype));
  push_shape(L, type.shape);
  return 2;
}

// graph:made_by(id, op) -> inputs, attrs of the op that makes the value, or nothing where that is another.
int made_by(lua_State* L) {
  const Node* maker = nullptr;
  protect(L, [&] {
    const Graph& graph = *self(L).graph;
    const Node& node = graph.node(graph.value(value_at(L, 2, graph, "value")).node);
    if (node.kind == Node::Op && node.op->name == string_at(L, 3, "op")) maker = &node;
  });
  if (maker == nullptr) return 0;
  push_list(L, maker->inputs, push_id_or_false);
  lua_createtable(L, 0, 2);
  for (const auto& [name, value] : maker->attrs) {
    push_string(L, name);
    push_attr(L, value);
    lua_rawset(L, -3);
  }
  return 2;
}

// graph:constant_value(id) -> ndarray, or nothing where the value is no constant.
int constant_value(lua_State* L) {
  lua_settop(L, 2);
  Tensor& array = push_array(L);
  bool is_constant = false;
  protect(L, [&] {
    const Graph& graph = *self(L).graph;
    const Node& node = graph.node(graph.value(value_at(L, 2, graph, "value")).node);
    is_constant = node.kind == Node::Constant;
    if (is_constant) array = node.constant;
  });
  return is_constant ? 1 : 0;
}

int blob_name(lua_State* L) {
  std::string& text = push_box<std::string>(L);
  protect(L, [&] {
    const Graph& graph = *self(L).graph;
    text = graph.blob_name(value_at(L, 2, graph, "value"));
  });
  push_string(L, text);
  return 1;
}

int dump(lua_State* L) {
  std::string& text = push_box<std::string>(L);
  protect(L, [&] { text = self(L).graph->dump(); });
  push_string(L, text);
  return 1;
}

void push_node(lua_State* L, const Node& node) {
  static constexpr const char* kKinds[] = {"op", "feed", "variable", "constant"};
  lua_createtable(L, 0, 6);
  set_string(L, "kind", kKinds[node.kind]);
  if (node.op != nullptr) set_string(L, "op", node.op->name);
  set_string(L, "name", node.name);
  set_string(L, "site", node.site);
  set_list(L, "inputs", node.inputs, push_id_or_false);
  set_list(L, "outputs", node.outputs, push_id_or_false);
}

int nodes(lua_State* L) {
  const Graph* graph = nullptr;
  protect(L, [&] { graph = self(L).graph.get(); });
  // By number: a finalizer that runs meanwhile may append to the graph.
  const int count = static_cast<int>(graph->nodes().size());
  lua_createtable(L, count, 0);
  for (int id = 0; id < count; ++id) {
    push_node(L, graph->node(id));
    lua_rawseti(L, -2, id + 1);
  }
  return 1;
}

}  // namespace

// session:graph(job_name, dtype of mixed precision or nil, allow_tf32 or nil, quantizes_weights or nil) -> graph
int make_graph(lua_State* L) {
  lua_settop(L, 5);
  GraphBox& box = push_box<GraphBox>(L);
  protect(L, [&] {
    const SessionBox& session = box_at<SessionBox>(L, 1, "a session");
    require(!session.session->closed(), ErrorCode::WrongState, "the session is closed");
    box.job = std::string(string_at(L, 2, "name of the job"));
    box.session = session.session;
    box.graph = std::make_unique<Graph>(box.session->catalog());
    if (lua_toboolean(L, 3)) {
      const DType narrow = dtype_at(L, 3, "mixed_precision_dtype");
      require(is_narrow(narrow), ErrorCode::InvalidArgument, "mixed_precision_dtype is ", narrow,
              ", wanted bfloat16 or float16");
      box.graph->mixed_precision = narrow;
    }
    box.graph->allow_tf32 = lua_toboolean(L, 4) != 0;
    box.graph->quantizes_weights = lua_toboolean(L, 5) != 0;
  });
  return 1;
}

void add_graph(lua_State* L, State& state) {
  static const luaL_Reg kMethods[] = {{"feed", feed},
                                      {"variable", variable},
                                      {"constant", constant},
                                      {"append", append},
                                      {"tap", tap},
                                      {"part", part},
                                      {"gradients", gradients_of},
                                      {"stops_gradient", stops_gradient_at},
                                      {"type", type},
                                      {"made_by", made_by},
                                      {"constant_value", constant_value},
                                      {"blob_name", blob_name},
                                      {"nodes", nodes},
                                      {"dump", dump},
                                      {"computed_from", computed_from_any},
                                      {nullptr, nullptr}};
  new_class(L, state, Tag::Graph, finalize<GraphBox>, "moonflow graph", kMethods);
}

}  // namespace moonflow::lua
