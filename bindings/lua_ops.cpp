// The catalog as Lua tables, from which the Lua side makes its functions, options and help.
#include "bindings/lua_attrs.h"
#include "bindings/lua_module.h"

namespace moonflow::lua {

namespace {

void push_input(lua_State* L, const InputDef& input) {
  static constexpr const char* kKinds[] = {"one", "optional", "many"};
  lua_createtable(L, 0, 2);
  set_string(L, "name", input.name);
  set_string(L, "kind", kKinds[input.kind]);
}

void push_attr_def(lua_State* L, const AttrDef& attr) {
  lua_createtable(L, 0, 6);
  set_string(L, "name", attr.name);
  set_string(L, "type", attr_type_name(attr.fallback));
  push_attr(L, attr.fallback);
  lua_setfield(L, -2, "default");
  set_flag(L, "required", attr.required);
  set_string(L, "doc", attr.doc);
  if (!attr.table_form.empty()) set_string(L, "table_form", attr.table_form);
}

void push_op(lua_State* L, const OpDef& op) {
  lua_createtable(L, 0, 8);
  set_string(L, "name", op.name);
  if (!op.lua.empty()) set_string(L, "lua", op.lua);
  set_string(L, "doc", op.doc);
  set_list(L, "inputs", op.inputs, push_input);
  set_list(L, "outputs", op.outputs, push_string);
  set_list(L, "attrs", op.attrs, push_attr_def);
  set_flag(L, "random", op.random);
  set_list(L, "writes", op.writes, lua_pushinteger);
}

}  // namespace

// session:ops() -> all of them
int list_ops(lua_State* L) {
  const Catalog* catalog = nullptr;
  protect(L, [&] { catalog = &box_at<SessionBox>(L, 1, "a session").session->catalog(); });
  push_list(L, catalog->ops(), [](lua_State* state, const auto& named) { push_op(state, named.second); });
  return 1;
}

// session:op(name) -> one of them
int find_op(lua_State* L) {
  const OpDef* op = nullptr;
  protect(L,
          [&] { op = &box_at<SessionBox>(L, 1, "a session").session->catalog().at(string_at(L, 2, "name of an op")); });
  push_op(L, *op);
  return 1;
}

// session:op_paths() -> { name = path of its function under `flow`, or false }
int op_paths(lua_State* L) {
  const Catalog* catalog = nullptr;
  protect(L, [&] { catalog = &box_at<SessionBox>(L, 1, "a session").session->catalog(); });
  lua_createtable(L, 0, static_cast<int>(catalog->ops().size()));
  for (const auto& [name, op] : catalog->ops()) {
    push_string(L, name);
    if (op.lua.empty())
      lua_pushboolean(L, false);
    else
      push_string(L, op.lua);
    lua_rawset(L, -3);
  }
  return 1;
}

}  // namespace moonflow::lua
