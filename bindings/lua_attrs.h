// Between Lua tables and the attributes of an op.
#pragma once

#include "bindings/lua_glue.h"

namespace moonflow::lua {

// The attributes in the table at `index` (nil: none), each of the type that its definition gives. An unknown name is an
// error with the nearest one; defaults are left to the engine. For phase 2.
Attrs attrs_at(lua_State* L, int index, const OpDef& op);

// Pushes the value as Lua sees it: a list for Ints and Floats, a name for a dtype. For phase 3.
void push_attr(lua_State* L, const AttrValue& value);
const char* attr_type_name(const AttrValue& value);

}  // namespace moonflow::lua
