// The scripts of a session of the C ABI: files and text whose jobs the session keeps.
#include <unistd.h>

#include <cerrno>

#include "bindings/host_session.h"

using namespace moonflow::host;

namespace {

// "file:line: message" of what the compiler says.
[[noreturn]] void refuse_chunk(int code, const std::string& name, const std::string& message) {
  if (code == LUA_ERRMEM) refuse(MF_OUT_OF_MEMORY, "out of memory in Lua");
  if (message.find("wrong mode") != std::string::npos)  // all that Lua says, of no file
    refuse(MF_SCRIPT_ERROR, name, ": this is bytecode, which can break the process; load the source");
  Status status(code == LUA_ERRFILE ? MF_IO : MF_SCRIPT_ERROR, message);
  // The name may have colons of its own; the line is the first number between two of them.
  for (size_t end = message.find(':'); code != LUA_ERRFILE && end != std::string::npos;
       end = message.find(':', end + 1)) {
    const size_t digits = message.find_last_not_of("0123456789", end - 1);
    if (end == 0 || digits == std::string::npos || digits + 1 == end || message[digits] != ':') continue;
    status.where = message.substr(0, end);
    break;
  }
  throw status;
}

// `compile` leaves a function, or a message, on the stack and gives the code of luaL_load*.
template <class Compile>
void load(HostSession& session, const std::string& name, const Compile& compile) {
  session.enter([&](lua_State* L) {
    session.push_function(L, "load");
    if (const int code = compile(L)) refuse_chunk(code, name, lua_tostring(L, -1));
    lua_pushlstring(L, name.data(), name.size());
    lua_call(L, 2, 0);
  });
}

}  // namespace

extern "C" {

mf_status* mf_session_load_file(mf_session* handle, const char* path) {
  return guarded([&] {
    const Entered session(handle);
    if (path == nullptr) refuse(MF_INVALID_ARGUMENT, "path is NULL");
    if (access(path, F_OK) != 0 && errno == ENOENT) refuse(MF_NOT_FOUND, "there is no file '", path, "'");
    load(*session, path, [&](lua_State* L) { return luaL_loadfilex(L, path, "t"); });
  });
}

mf_status* mf_session_load_text(mf_session* handle, const char* text, size_t size, const char* name) {
  return guarded([&] {
    const Entered session(handle);
    if (text == nullptr || name == nullptr) refuse(MF_INVALID_ARGUMENT, text ? "name is NULL" : "text is NULL");
    const std::string chunk = "@" + std::string(name);
    load(*session, name, [&](lua_State* L) { return luaL_loadbufferx(L, text, size, chunk.c_str(), "t"); });
  });
}

}  // extern "C"
