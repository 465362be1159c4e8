#include "bindings/calling.h"

#include <cstdio>
#include <cstring>

#include "bindings/interruption.h"
#include "bindings/traceback.h"

namespace moonflow::calling {

namespace {

void push_kept(lua_State* L, lua_CFunction function) {
  lua_pushlightuserdata(L, reinterpret_cast<void*>(function));
  lua_rawget(L, LUA_REGISTRYINDEX);
}

}  // namespace

void prepare(lua_State* L) {
  const lua_CFunction kept[] = {lua::describe_error, lua::fold_traceback};
  for (const lua_CFunction function : kept) {
    lua_pushlightuserdata(L, reinterpret_cast<void*>(function));
    lua_pushcfunction(L, function);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
}

bool call(lua_State* L, int arguments, int results) {
  const int base = lua_gettop(L) - arguments;
  push_kept(L, lua::describe_error);
  lua_insert(L, base);
  const int status = lua_pcall(L, arguments, results, base);
  lua_remove(L, base);
  if (status == 0) return true;
  // What the user stopped needs no traceback, only its place.
  push_kept(L, lua::fold_traceback);
  lua_pushvalue(L, -2);
  lua_getfield(L, LUA_REGISTRYINDEX, kLibrary);
  lua_pushboolean(L, interruption::asked());
  if (lua_pcall(L, 3, 1, 0) != 0) lua_pop(L, 1);  // no memory for a shorter one
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", lua_tostring(L, -1));
  lua_settop(L, base - 1);
  return false;
}

bool loaded(lua_State* L, int status) {
  if (status == 0) return true;
  const char* problem = lua_tostring(L, -1);
  // What comes of { options } and (body) on two lines.
  const bool is_call = std::strstr(problem, "ambiguous syntax (function call") != nullptr;
  std::fprintf(stderr, "%s%s\n", problem, is_call ? "; a '(' stands on the line of what it calls" : "");
  lua_pop(L, 1);
  return false;
}

bool call_library(lua_State* L, const char* function) {
  const int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "moonflow");
  if (lua_istable(L, -1)) lua_getfield(L, -1, function);
  const bool fine = lua_isfunction(L, -1) ? call(L, 0) : true;
  lua_settop(L, top);
  return fine;
}

}  // namespace moonflow::calling
