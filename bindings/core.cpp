// The Lua C module `moonflow.core`: everything that crosses between Lua and the engine. What users see is built on it
// in lua/moonflow. No global state: each lua_State has its own, so several may live in one process.
#include "bindings/lua_module.h"
#include "bindings/traceback.h"
#include "engine/recycling_memory.h"
#include "kernels/catalog.h"

namespace moonflow::lua {

namespace {

int finalize_state(lua_State* L) {
  State& state = *static_cast<State*>(lua_touserdata(L, 1));
  state.memory.reset();
  state.interrupted.reset();
  state.newest.reset();
  state.fault.reset();
  std::string().swap(state.own_folder);
  return 0;
}

// Appends a field of the error at index 1 to what is on the top of the stack.
void append_field(lua_State* L, const char* field, const char* separator) {
  lua_pushstring(L, field);
  lua_rawget(L, 1);
  if (lua_type(L, -1) != LUA_TSTRING) {
    lua_pop(L, 1);
    return;
  }
  lua_pushstring(L, separator);
  lua_concat(L, 3);
}

// "file:line: job: op: message", leaving out what is unknown.
int error_to_string(lua_State* L) {
  if (lua_type(L, 1) != LUA_TTABLE) {
    lua_pushliteral(L, "moonflow error");
    return 1;
  }
  lua_settop(L, 1);
  lua_pushliteral(L, "");
  append_field(L, "where", ": ");
  append_field(L, "job", ": ");
  append_field(L, "op", ": ");
  append_field(L, "message", "");
  return 1;
}

// Errors join with strings, as error strings do.
int error_concat(lua_State* L) {
  lua_settop(L, 2);
  lua_rawgeti(L, LUA_REGISTRYINDEX, state_of(L).tostring_ref);
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  lua_rawgeti(L, LUA_REGISTRYINDEX, state_of(L).tostring_ref);
  lua_pushvalue(L, 2);
  lua_call(L, 1, 1);
  lua_concat(L, 2);
  return 1;
}

// Where the registry has the module once it is open. A lua_State has one engine: a script that reloads its files may
// have taken the module out of package.loaded. Another copy of the library has another address, and an engine of its
// own.
const char kOpened = 0;

bool push_opened(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kOpened));
  lua_rawget(L, LUA_REGISTRYINDEX);
  return lua_istable(L, -1) != 0;
}

// The module is on the top of the stack, and stays there.
void note_opened(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kOpened));
  lua_pushvalue(L, -2);
  lua_rawset(L, LUA_REGISTRYINDEX);
}

State& new_state(lua_State* L) {
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, finalize_state);
  lua_setfield(L, -2, "__gc");
  State& state = *new (lua_newuserdata(L, sizeof(State))) State();
  lua_insert(L, -2);
  lua_setmetatable(L, -2);
  luaL_ref(L, LUA_REGISTRYINDEX);  // for good: functions hold plain pointers to it
  lua_getfield(L, LUA_REGISTRYINDEX, kGivenKey);
  if (const auto* given = static_cast<const Given*>(lua_touserdata(L, -1))) {
    state.memory = given->memory;
    state.interrupted = given->interrupted;
    state.interrupt = given->interrupt;
  }
  lua_pop(L, 1);
  if (!state.memory) try {
      state.memory = std::make_shared<RecyclingMemory>();
    } catch (const std::bad_alloc&) {
      // Without one nothing is counted; the module works all the same.
    }
  lua_getglobal(L, "tostring");
  state.tostring_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  return state;
}

void add_errors(lua_State* L, State& state) {
  static const luaL_Reg kMetamethods[] = {
      {"__tostring", error_to_string}, {"__concat", error_concat}, {nullptr, nullptr}};
  lua_createtable(L, 0, 3);
  set_functions(L, state, kMetamethods);
  lua_pushliteral(L, "moonflow error");
  lua_setfield(L, -2, "__name");
  lua_pushvalue(L, -1);
  state.error_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_setfield(L, -2, "error_metatable");
}

// core.nearest(name, { candidate, ... }) -> the candidate that was meant, or nil
int nearest_name(lua_State* L) {
  lua_settop(L, 2);
  int place = 0;
  protect(L, [&] {
    const std::string name(string_at(L, 1, "name"));
    const std::vector<std::string> candidates = strings_at(L, 2, "candidate");
    if (const std::string* near = nearest(name, candidates)) place = static_cast<int>(near - candidates.data()) + 1;
  });
  lua_rawgeti(L, 2, place);  // nothing is at 0
  return 1;
}

}  // namespace

int build_info(lua_State* L) {
  lua_settop(L, 0);
  auto& features = keep<std::vector<const char*>>(L);
  protect(L, [&] { features = cpu_features(); });
  lua_createtable(L, 0, 6);
  set_string(L, "version", MOONFLOW_VERSION);
  set_string(L, "build_type", MOONFLOW_BUILD_TYPE);
  set_string(L, "sanitizer", MOONFLOW_SANITIZER);
  set_string(L, "compiler", __VERSION__);
  set_string(L, "lua", LUAJIT_VERSION);
  set_list(L, "cpu", features, push_string);
  return 1;
}

}  // namespace moonflow::lua

extern "C" __attribute__((visibility("default"))) int luaopen_moonflow_core(lua_State* L) {
  using namespace moonflow::lua;
  static const luaL_Reg kFunctions[] = {{"build_info", build_info},
                                        {"describe_error", describe_error},
                                        {"fold_traceback", fold_traceback},
                                        {"nearest", nearest_name},
                                        {nullptr, nullptr}};
  if (push_opened(L)) return 1;
  State& state = new_state(L);
  lua_newtable(L);
  lua_pushliteral(L, MOONFLOW_VERSION);
  lua_setfield(L, -2, "version");
  set_functions(L, state, kFunctions);
  add_errors(L, state);
  new_metatable(L, state, Tag::Text, finalize<std::string>, "moonflow text");
  lua_pop(L, 1);
  add_shape(L, state);
  add_ndarray(L, state);
  add_places(L, state);
  add_array_sources(L, state);
  add_draws(L, state);
  add_session(L, state);
  add_graph(L, state);
  add_plan(L, state);
  add_prepared(L, state);
  add_chunks(L, state);
  add_files(L, state);
  add_pictures(L, state);
  add_onnx(L, state);
  add_system(L, state);
  add_socket(L, state);
  add_lines(L, state);
  note_opened(L);
  return 1;
}
