// Which line of the user's runs: the nearest frame outside of the library's own files. A tail call takes that frame off
// the stack, so while a job is traced a line hook keeps the line that the user ran last.
#include "bindings/lua_module.h"

namespace moonflow::lua {

// In the registry, by the address of kKey: a hook is given nothing else. So there is one in each lua_State, also where
// the library is opened there once more, under another name. The functions that it names are kept alive in the
// userdata's environment, so an address means one function.
struct Lines {
  State& state;

  bool following = false;
  lua_Hook earlier = nullptr;  // of coverage tools, debuggers, a Ctrl-C
  int earlier_mask = 0;
  int earlier_count = 0;

  const void* last = nullptr;  // the function that ran last, and whether it is the library's
  bool last_is_own = false;
  const void* user = nullptr;  // the user's function that ran last
  const char* source = nullptr;
  int line = 0;
};

namespace {

const char kKey = 0;
enum Kept { kLast = 1, kUser = 2 };

Lines* lines_of(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kKey));
  lua_rawget(L, LUA_REGISTRYINDEX);
  return static_cast<Lines*>(lua_touserdata(L, -1));  // and leaves it on the stack
}

// Keeps what is at the top alive, in place of what was kept there; the userdata of the lines is below it. The slots
// exist, so this takes no memory.
void keep(lua_State* L, Kept slot) {
  lua_getfenv(L, -2);
  lua_pushvalue(L, -2);
  lua_rawseti(L, -2, slot);
  lua_pop(L, 1);
}

void on_event(lua_State* L, lua_Debug* event) {
  Lines& lines = *lines_of(L);
  if (!lines.following) {  // a Ctrl-C in a body has kept it from being taken off, and has put it back
    lua_sethook(L, lines.earlier, lines.earlier_mask, lines.earlier_count);
    return lua_pop(L, 1);
  }
  if (event->event == LUA_HOOKLINE) {
    lua_getinfo(L, "f", event);
    const void* const function = lua_topointer(L, -1);
    if (function != lines.last) {
      lua_getinfo(L, "S", event);
      lines.last = function;
      // LuaJIT has some of Lua's own functions as bytecode, such as table.remove, all of it on line 0.
      lines.last_is_own = event->currentline <= 0 || lines.state.is_own(event->source);
      keep(L, kLast);
    }
    if (!lines.last_is_own) {
      if (function != lines.user) {
        lua_getinfo(L, "S", event);
        lines.user = function;
        lines.source = event->source;
        keep(L, kUser);
      }
      lines.line = event->currentline;
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  if (lines.earlier && (lines.earlier_mask & (1 << event->event))) lines.earlier(L, event);
}

// core.own_lines(folder): what the library's chunk names start with.
int own_lines(lua_State* L) {
  Lines& lines = *lines_of(L);
  protect(L, [&] { state_of(L).own_folder = lines.state.own_folder = std::string(string_at(L, 1, "folder")); });
  return 0;
}

// core.follow_lines(): remembers the user's last line from now on, until core.leave_lines(). A hook that is there
// still gets its events.
int follow_lines(lua_State* L) {
  Lines& lines = *lines_of(L);
  if (lines.following) return 0;
  lines.following = true;
  lines.earlier = lua_gethook(L);
  lines.earlier_mask = lines.earlier ? lua_gethookmask(L) : 0;
  lines.earlier_count = lines.earlier ? lua_gethookcount(L) : 0;
  lua_sethook(L, on_event, LUA_MASKLINE | lines.earlier_mask, lines.earlier_count);
  return 0;
}

// core.leave_lines() -> source, line that the user ran last; nothing when none ran. A hook set meanwhile stays.
int leave_lines(lua_State* L) {
  Lines& lines = *lines_of(L);
  const int lines_index = lua_gettop(L);
  if (!lines.following) return 0;
  lines.following = false;
  if (lua_gethook(L) == on_event) lua_sethook(L, lines.earlier, lines.earlier_mask, lines.earlier_count);
  const bool ran = lines.user != nullptr;
  if (ran) {
    lua_pushstring(L, lines.source);
    lua_pushinteger(L, lines.line);
  }
  lua_pushvalue(L, lines_index);
  lua_pushboolean(L, 0);
  keep(L, kLast);
  keep(L, kUser);
  lua_pop(L, 2);
  lines.last = lines.user = nullptr;
  return ran ? 2 : 0;
}

// core.user_line() -> source, line of the user's code that runs now; nothing when there is none (called from C).
int user_line(lua_State* L) {
  const Lines& lines = *lines_of(L);
  lua_Debug frame;
  for (int level = 1; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline <= 0 || lines.state.is_own(frame.source)) continue;
    lua_getinfo(L, "f", &frame);
    // Another function ran the last line: it has left the stack by a tail call.
    if (lines.user && lines.user != lua_topointer(L, -1)) break;
    lua_pushstring(L, frame.source);
    lua_pushinteger(L, frame.currentline);
    return 2;
  }
  if (!lines.user) return 0;
  lua_pushstring(L, lines.source);
  lua_pushinteger(L, lines.line);
  return 2;
}

}  // namespace

void add_lines(lua_State* L, State& state) {
  static_assert(std::is_trivially_destructible_v<Lines>);
  const bool is_first = lines_of(L) == nullptr;
  lua_pop(L, 1);
  if (is_first) {
    lua_pushlightuserdata(L, const_cast<char*>(&kKey));
    new (lua_newuserdata(L, sizeof(Lines))) Lines{state};
    lua_createtable(L, 2, 0);
    for (const int slot : {kLast, kUser}) {
      lua_pushboolean(L, 0);
      lua_rawseti(L, -2, slot);
    }
    lua_setfenv(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  static const luaL_Reg kFunctions[] = {{"own_lines", own_lines},
                                        {"follow_lines", follow_lines},
                                        {"leave_lines", leave_lines},
                                        {"user_line", user_line},
                                        {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
