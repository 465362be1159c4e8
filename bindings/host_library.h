// The library as a host's lua_State gets it: where its Lua files are, and its C module, which is this shared library.
#pragma once

#include <string>

#include "bindings/lua_module.h"

namespace moonflow::host {

// The folder that holds moonflow/init.lua: the one named, or, for nullptr, the one beside this library in a build tree
// or an installation. Refuses where there is none.
std::string library_folder(const char* named);

// Pushes the module moonflow.core: the one that the state has, or this library's, which is loaded with what it is
// given, and the Lua files from the folder from then on. Raises errors of Lua.
void push_core(lua_State* L, const std::string& folder, lua::Given& given);

}  // namespace moonflow::host
