// Calls into Lua as the launcher makes them: what goes wrong is said once, on standard error.
#pragma once

#include <lua.hpp>

namespace moonflow::calling {

// Registry: the folder of the library's own Lua files, whose frames tracebacks leave out.
constexpr const char* kLibrary = "moonflow.library";

// Makes what a call needs beside its function, which has memory then even where a script has taken all. Once, first.
void prepare(lua_State* L);
// Calls the function below its arguments. False after an error, which has been said; nothing is then left of the call.
bool call(lua_State* L, int arguments, int results = 0);
// For the status that luaL_load* gave: the chunk stays on the stack, or an error has been said without a traceback.
bool loaded(lua_State* L, int status);
// Calls a function of the library without arguments, if a script has loaded the library at all.
bool call_library(lua_State* L, const char* function);

}  // namespace moonflow::calling
