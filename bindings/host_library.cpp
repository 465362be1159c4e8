#include "bindings/host_library.h"

#include <filesystem>
#include <string_view>

#include "bindings/file.h"
#include "bindings/status.h"
#include "kernels/run_time_module.h"

extern "C" int luaopen_moonflow_core(lua_State* L);

namespace moonflow::host {

namespace {

namespace fs = std::filesystem;

bool has_library(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / "moonflow" / "init.lua", none);
}

// Lua's `require` does not say why a file that is there cannot be read.
std::string readable(const std::string& folder) {
  open_for_reading(folder + "/moonflow/init.lua");
  return folder;
}

// Pushes a library of Lua's own.
void push_library(lua_State* L, const char* name) {
  lua_getglobal(L, name);
  if (!lua_istable(L, -1)) luaL_error(L, "this lua_State lacks Lua's library '%s'; open it before the session", name);
}

// `require` notes a module before it has run, by a light userdata or a number that Lua does not make, and keeps that
// where it fails; whoever tries again would be told of a loop. Of the table package.loaded on the top of the stack.
void forget_failed(lua_State* L) {
  lua_pushnil(L);
  while (lua_next(L, -2) != 0) {
    const int type = lua_type(L, -1);
    const bool is_note = type == LUA_TLIGHTUSERDATA || type == LUA_TNUMBER;
    lua_pop(L, 1);
    if (!is_note || lua_type(L, -1) != LUA_TSTRING) continue;
    const std::string_view name = lua_tostring(L, -1);
    if (name != "moonflow" && name.substr(0, 9) != "moonflow.") continue;
    lua_pushvalue(L, -1);
    lua_pushnil(L);
    lua_rawset(L, -4);
  }
}

// Of the library `package` on the top of the stack.
void prepend_path(lua_State* L, const std::string& folder) {
  lua_getfield(L, -1, "path");
  lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s", folder.c_str(), folder.c_str(), lua_tostring(L, -1));
  lua_setfield(L, -3, "path");
  lua_pop(L, 1);
}

}  // namespace

std::string library_folder(const char* named) {
  if (named != nullptr) {
    if (!has_library(named))
      refuse(MF_NOT_FOUND, "library_path is '", named, "', and there is no moonflow/init.lua in it");
    return readable(named);
  }
  std::error_code none;
  if (const fs::path folder = own_folder(); !folder.empty()) {
    for (const char* candidate :
         {"lua", "../share/lua/5.1", "../../share/lua/5.1", "../..", "../../../../share/lua/5.1"}) {
      const fs::path found = fs::weakly_canonical(folder / candidate, none);
      if (has_library(found)) return readable(found.string());
    }
  }
  refuse(MF_NOT_FOUND, "moonflow/init.lua is not beside the library; name its folder in library_path");
}

void push_core(lua_State* L, const std::string& folder, lua::Given& given) {
  push_library(L, "package");
  lua_getfield(L, -1, "loaded");
  forget_failed(L);
  lua_getfield(L, -1, "moonflow.core");
  lua_remove(L, -2);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    // Here, and not by the failure of `require`, after which this state could not try again.
    for (const char* library : {"debug", "io", "os"}) {
      push_library(L, library);
      lua_pop(L, 1);
    }
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, luaopen_moonflow_core);
    lua_setfield(L, -2, "moonflow.core");
    lua_pop(L, 1);
    prepend_path(L, folder);
    lua_pushlightuserdata(L, &given);
    lua_setfield(L, LUA_REGISTRYINDEX, lua::kGivenKey);
    lua_getglobal(L, "require");
    lua_pushliteral(L, "moonflow.core");
    lua_call(L, 1, 1);
  }
  lua_remove(L, -2);  // package
}

}  // namespace moonflow::host
