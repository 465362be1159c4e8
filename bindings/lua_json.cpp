#include "bindings/lua_json.h"

#include <cmath>

namespace moonflow::lua {

namespace {

constexpr int kDepth = 32;  // a table that holds itself ends here
constexpr size_t kEntries = 1 << 20;

Json value_at(lua_State* L, int index, const char* what, int depth);

Json array_of(lua_State* L, int index, const char* what, int depth) {
  Json::Array array;
  each_at(L, index, what, [&](int at) { array.push_back(value_at(L, at, what, depth + 1)); });
  return array;
}

Json object_of(lua_State* L, int index, const char* what, int depth) {
  Json::Object object;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    if (lua_type(L, -2) != LUA_TSTRING)
      fail(ErrorCode::InvalidArgument, what, ": a table must have the keys 1..n or strings only, got the key ",
           describe(L, -2));
    require(object.size() < kEntries, ErrorCode::InvalidArgument, what, ": a table is too large");
    const std::string key(string_at(L, -2, what));
    object[key] = value_at(L, lua_gettop(L), what, depth + 1);
    lua_pop(L, 1);
  }
  return object;
}

Json value_at(lua_State* L, int index, const char* what, int depth) {
  require(depth <= kDepth, ErrorCode::InvalidArgument, what, ": tables are nested more than ", kDepth, " deep");
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return Json();
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) != 0;
    case LUA_TNUMBER: {
      const double number = lua_tonumber(L, index);
      if (!std::isfinite(number)) fail(ErrorCode::InvalidArgument, what, ": ", describe(L, index), " cannot be saved");
      if (std::abs(number) <= static_cast<double>(kExact) && number == std::trunc(number))
        return static_cast<int64_t>(number);
      return number;
    }
    case LUA_TSTRING:
      return std::string(string_at(L, index, what));
    case LUA_TTABLE: {
      require(lua_checkstack(L, 4), ErrorCode::OutOfMemory, what, ": nested too deep");
      if (lua_objlen(L, index) == 0) return object_of(L, index, what, depth);
      const size_t count = static_cast<size_t>(list_size_at(L, index, what));
      require(count < kEntries, ErrorCode::InvalidArgument, what, ": a list is too long");
      return array_of(L, index, what, depth);
    }
    default: {
      int64_t integer = 0;
      if (!find_integer(L, index, integer))
        fail(ErrorCode::InvalidArgument, what, ": ", describe(L, index), " cannot be saved");
      return integer;
    }
  }
}

}  // namespace

Json json_at(lua_State* L, int index, const char* what) { return value_at(L, index, what, 0); }

void push_json(lua_State* L, const Json& value) {
  luaL_checkstack(L, 4, "nested too deep");
  if (const auto* object = value.as<Json::Object>()) {
    lua_createtable(L, 0, static_cast<int>(object->size()));
    for (const auto& [key, member] : *object) {
      push_string(L, key);
      push_json(L, member);
      lua_rawset(L, -3);
    }
  } else if (const auto* array = value.as<Json::Array>()) {
    push_list(L, *array, push_json);
  } else if (const auto* string = value.as<std::string>()) {
    push_string(L, *string);
  } else if (const auto* flag = value.as<bool>()) {
    lua_pushboolean(L, *flag);
  } else if (const auto* integer = value.as<int64_t>()) {
    lua_pushnumber(L, static_cast<double>(*integer));
  } else if (const auto* real = value.as<double>()) {
    lua_pushnumber(L, *real);
  } else {
    lua_pushnil(L);
  }
}

}  // namespace moonflow::lua
