// Between Lua tables and JSON: plain data only, nothing that could run.
#pragma once

#include <nlohmann/json.hpp>

#include "bindings/lua_glue.h"

namespace moonflow::lua {

// The value at `index`: a table with keys 1..n becomes an array, one with string keys an object. For phase 2.
nlohmann::json json_at(lua_State* L, int index, const char* what);
// For phase 3; `value` must be held by a box.
void push_json(lua_State* L, const nlohmann::json& value);

}  // namespace moonflow::lua
