// Between Lua tables and JSON: plain data only, nothing that could run.
#pragma once

#include "bindings/json.h"
#include "bindings/lua_glue.h"

namespace moonflow::lua {

// The value at `index`: a table with keys 1..n becomes an array, one with string keys an object. For phase 2.
Json json_at(lua_State* L, int index, const char* what);
// For phase 3; `value` must be held by a box.
void push_json(lua_State* L, const Json& value);

}  // namespace moonflow::lua
