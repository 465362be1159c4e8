#include "bindings/lua_json.h"

#include <cmath>

namespace moonflow::lua {

namespace {

using nlohmann::json;

constexpr int kDepth = 32;  // a table that holds itself ends here
constexpr size_t kEntries = 1 << 20;

json value_at(lua_State* L, int index, const char* what, int depth);

json array_of(lua_State* L, int index, size_t count, const char* what, int depth) {
  json array = json::array();
  for (size_t i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    array.push_back(value_at(L, lua_gettop(L), what, depth + 1));
    lua_pop(L, 1);
  }
  return array;
}

json object_of(lua_State* L, int index, const char* what, int depth) {
  json object = json::object();
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

json value_at(lua_State* L, int index, const char* what, int depth) {
  require(depth <= kDepth, ErrorCode::InvalidArgument, what, ": tables are nested more than ", kDepth, " deep");
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return nullptr;
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) != 0;
    case LUA_TNUMBER: {
      const double number = lua_tonumber(L, index);
      if (!std::isfinite(number)) fail(ErrorCode::InvalidArgument, what, ": ", describe(L, index), " cannot be saved");
      if (std::abs(number) <= 9007199254740992.0 && number == std::trunc(number)) return static_cast<int64_t>(number);
      return number;
    }
    case LUA_TSTRING:
      return std::string(string_at(L, index, what));
    case LUA_TTABLE: {
      require(lua_checkstack(L, 4), ErrorCode::OutOfMemory, what, ": nested too deep");
      const size_t count = lua_objlen(L, index);
      require(count < kEntries, ErrorCode::InvalidArgument, what, ": a list is too long");
      return count > 0 ? array_of(L, index, count, what, depth) : object_of(L, index, what, depth);
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

json json_at(lua_State* L, int index, const char* what) { return value_at(L, index, what, 0); }

void push_json(lua_State* L, const json& value) {
  luaL_checkstack(L, 4, "nested too deep");
  switch (value.type()) {
    case json::value_t::object: {
      lua_createtable(L, 0, static_cast<int>(value.size()));
      for (auto entry = value.begin(); entry != value.end(); ++entry) {
        push_string(L, entry.key());
        push_json(L, entry.value());
        lua_rawset(L, -3);
      }
      return;
    }
    case json::value_t::array: {
      lua_createtable(L, static_cast<int>(value.size()), 0);
      int i = 0;
      for (const json& element : value) {
        push_json(L, element);
        lua_rawseti(L, -2, ++i);
      }
      return;
    }
    case json::value_t::string:
      push_string(L, value.get_ref<const std::string&>());
      return;
    case json::value_t::boolean:
      lua_pushboolean(L, value.get<bool>());
      return;
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      lua_pushnumber(L, value.get<double>());
      return;
    default:
      lua_pushnil(L);
  }
}

}  // namespace moonflow::lua
