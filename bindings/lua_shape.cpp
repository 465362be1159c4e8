// The shape userdata: s[0] .. s[rank - 1], #s, ==, tostring, s:table(), s:count().
#include "bindings/lua_module.h"

namespace moonflow::lua {

namespace {

Shape& self(lua_State* L) { return box_at<Shape>(L, 1, "a shape"); }

int make_shape(lua_State* L) {
  lua_settop(L, 1);
  Shape& shape = push_box<Shape>(L);
  protect(L, [&] { shape = shape_at(L, 1, "shape"); });
  return 1;
}

// s[axis], or a method.
int index(lua_State* L) {
  int64_t dim = 0;
  if (lua_type(L, 2) == LUA_TSTRING) {
    push_metatable(L, Tag::Shape);
    lua_pushvalue(L, 2);
    lua_rawget(L, -2);
    return 1;
  }
  protect(L, [&] {
    const Shape& shape = self(L);
    dim = shape[wrap_axis(integer_at(L, 2, "axis"), shape.rank())];
  });
  lua_pushnumber(L, static_cast<double>(dim));
  return 1;
}

int length(lua_State* L) {
  int rank = 0;
  protect(L, [&] { rank = self(L).rank(); });
  lua_pushnumber(L, rank);
  return 1;
}

int equal(lua_State* L) {
  const Shape* a = find_box<Shape>(L, 1);
  const Shape* b = find_box<Shape>(L, 2);
  lua_pushboolean(L, a != nullptr && b != nullptr && *a == *b);
  return 1;
}

int to_string(lua_State* L) {
  std::string& text = push_box<std::string>(L);
  protect(L, [&] { text = self(L).str(); });
  push_string(L, text);
  return 1;
}

int to_table(lua_State* L) {
  Shape shape;
  protect(L, [&] { shape = self(L); });
  lua_createtable(L, shape.rank(), 0);
  for (int axis = 0; axis < shape.rank(); ++axis) {
    lua_pushnumber(L, static_cast<double>(shape[axis]));
    lua_rawseti(L, -2, axis + 1);
  }
  return 1;
}

int unpack(lua_State* L) {
  Shape shape;
  protect(L, [&] { shape = self(L); });
  for (int axis = 0; axis < shape.rank(); ++axis) lua_pushnumber(L, static_cast<double>(shape[axis]));
  return shape.rank();
}

int count(lua_State* L) {
  int64_t count = 0;
  protect(L, [&] { count = self(L).count(); });
  lua_pushnumber(L, static_cast<double>(count));
  return 1;
}

}  // namespace

void push_shape(lua_State* L, const Shape& shape) { push_box<Shape>(L) = shape; }

void set_type(lua_State* L, const TensorType& type) {
  set_string(L, "dtype", name(type.dtype));
  push_shape(L, type.shape);
  lua_setfield(L, -2, "shape");
}

void add_shape(lua_State* L, State& state) {
  static const luaL_Reg kMethods[] = {{"__index", index},        {"__len", length},   {"__eq", equal},
                                      {"__tostring", to_string}, {"table", to_table}, {"totable", to_table},
                                      {"unpack", unpack},        {"count", count},    {nullptr, nullptr}};
  static const luaL_Reg kFunctions[] = {{"shape", make_shape}, {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
  new_metatable(L, state, Tag::Shape, finalize<Shape>, "moonflow shape");
  set_functions(L, state, kMethods);
  lua_pop(L, 1);
}

}  // namespace moonflow::lua
