// The chunks of Moonflow's own Lua files.
#include "bindings/bytecode.h"
#include "bindings/file.h"
#include "bindings/lua_module.h"
#include "bindings/wire.h"

namespace moonflow::lua {

namespace {

// core.load_file(path, compiled) -> the chunk of a Lua file, as loadfile gives it, and whether it was compiled when the
// library was built, which `compiled` = false does without; or nil and what is wrong with its text
int load_file(lua_State* L) {
  const bool takes_compiled = lua_isnoneornil(L, 2) || lua_toboolean(L, 2);
  lua_settop(L, 1);
  std::string &text = push_box<std::string>(L), &name = push_box<std::string>(L), &made = push_box<std::string>(L);
  protect_allocating(L, [&] {
    const std::string path = path_at(L, 1);
    text = FileSource(path).read_rest();
    name = "@" + path;
    made.clear();
    if (!takes_compiled) return;
    const Bytecode found = bytecode_of(text);
    if (found.tail.empty()) return;
    made.append(found.head);
    append_varint(made, name.size());  // as LuaJIT writes sizes
    made.append(name).append(found.tail);
  });
  // A LuaJIT of another build refuses what it cannot read.
  const bool is_made = !made.empty() && luaL_loadbuffer(L, made.data(), made.size(), name.c_str()) == 0;
  const bool is_chunk = is_made || luaL_loadbuffer(L, text.data(), text.size(), name.c_str()) == 0;
  for (std::string* done : {&text, &made}) std::string().swap(*done);  // the collector does not know how large they are
  if (!is_chunk) {
    lua_pushnil(L);
    lua_insert(L, -2);
    return 2;
  }
  lua_pushboolean(L, is_made);
  return 2;
}

}  // namespace

void add_chunks(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {{"load_file", load_file}, {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
