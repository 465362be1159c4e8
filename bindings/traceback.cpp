#include "bindings/traceback.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace moonflow::lua {

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Whether a line of a traceback is in this folder. Lua shortens long names to "..." and their end.
bool is_in(const std::string& folder, const std::string& line) {
  const std::string path = line.substr(1, line.find(':') - 1);
  if (path.compare(0, 3, "...") != 0) return path.compare(0, folder.size(), folder) == 0;
  const std::string end = path.substr(3, path.rfind('/') - 2);
  return end.size() > 1 && ends_with(folder, end);
}

std::string for_reading(const std::string& text, const std::string& library, bool only_place) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
  }
  std::string result;
  int folded = 0;
  bool users = false;  // a frame of the user has been shown
  const auto end_fold = [&] {
    const std::string frames = std::to_string(folded) + (folded == 1 ? " frame" : " frames");
    if (folded > 0) result += "\n\t(" + frames + " inside moonflow)";
    folded = 0;
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto is_frame = [&](size_t k) { return k < lines.size() && lines[k][0] == '\t'; };
    const auto is_c = [&](size_t k) { return is_frame(k) && lines[k][1] == '['; };
    size_t lua = i;
    while (is_c(lua)) ++lua;
    if (is_frame(i) && ((is_c(i) && folded > 0) || (is_frame(lua) && is_in(library, lines[lua])))) {
      ++folded;
      continue;
    }
    end_fold();
    users = users || is_frame(i);
    if (only_place && is_frame(i) && !is_c(i)) {
      const size_t colon = lines[i].find(':', lines[i].find(':') + 1);
      return lines[i].substr(1, colon) + " " + lines[0];
    }
    result += (i > 0 ? "\n" : "") + lines[i];
  }
  if (!users) end_fold();
  return only_place && !lines.empty() ? lines[0] : result;
}

// What to write where Lua itself refuses an array in the place of a number, or does not know the library; two arrays it
// compares by a function of ours, which says so.
const char* advice_for(const char* message) {
  const auto has = [&](const char* part) { return std::strstr(message, part) != nullptr; };
  if (has("attempt to compare userdata with number") || has("attempt to compare number with userdata"))
    return "; elements of an array are compared by x:gt(y), x:ge(y), x:lt(y) and x:le(y), "
           "all or any of them by x:gt(y):all() and x:gt(y):any(), and an array of one element is a number by x:item()";
  if (has("(number expected, got userdata)"))
    return "; Lua's own functions take no array: np.sqrt(x), x:max() and their like do, tostring(x) is its text, "
           "and an array of one element is a number by x:item()";
  if (has("(table expected, got userdata)"))
    return "; the rows of an array are gone through by: for i, row in a:rows() do, and a:totable() is a table of it";
  for (const char* dtype : {"'float", "'double'", "'int", "'uint8'", "'bfloat16'"})
    if (has("attempt to call field '") && has(dtype) && has("' (a string value)"))
      return "; a dtype is a word: np.array(x, dtype) and a:astype(dtype) take it";
  if (has("attempt to index global 'flow' (a nil value)"))
    return "; a file begins with: local flow = require \"moonflow\"";
  return "";
}

// Pushes the line that a prompt would show of a table. False where the library's files are out of reach.
bool push_line(lua_State* L, int table) {
  lua_pushliteral(L, "require");
  lua_rawget(L, LUA_GLOBALSINDEX);
  lua_pushliteral(L, "moonflow.inspect");
  if (lua_pcall(L, 1, 1, 0) != 0 || !lua_istable(L, -1)) return false;
  lua_getfield(L, -1, "line");
  lua_pushvalue(L, table);
  return lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1);
}

// Pushes the traceback of the body of a job that has failed with the value at place 1, which the definition could only
// raise again, or nil.
void push_body_traceback(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_pushliteral(L, "moonflow.errors");
  lua_rawget(L, -2);
  if (lua_istable(L, -1)) {
    lua_getfield(L, -1, "take_definition");
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 2, 0) == 0) return;
  }
  lua_pushnil(L);
}

}  // namespace

int describe_error(lua_State* L) {
  lua_settop(L, 1);
  size_t others = 0;
  if (lua_istable(L, 1) && luaL_getmetafield(L, 1, "__tostring")) {  // else a field is just what the script put there
    lua_getfield(L, 1, "also");
    if (lua_istable(L, -1)) others = lua_objlen(L, -1);
    lua_getfield(L, 1, "traceback");
  } else {
    push_body_traceback(L);
  }
  lua_replace(L, 2);
  lua_settop(L, 2);
  if (luaL_getmetafield(L, 1, "__tostring")) {
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) != 0 || !lua_isstring(L, -1)) lua_pushliteral(L, "(an error whose __tostring fails)");
  } else if (lua_isstring(L, 1)) {
    lua_pushvalue(L, 1);
    lua_pushstring(L, advice_for(lua_tostring(L, 1)));
    lua_concat(L, 2);
  } else if (!lua_istable(L, 1) || !push_line(L, 1)) {
    lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, 1));
  }
  if (others > 0) {
    lua_pushfstring(L, "\n  and %d more error%s", static_cast<int>(others), others == 1 ? "" : "s");
    lua_concat(L, 2);
  }
  if (lua_isstring(L, 2)) {
    lua_pushvalue(L, 2);
    lua_concat(L, 2);
  } else {
    luaL_traceback(L, L, lua_tostring(L, -1), 1);
  }
  return 1;
}

int fold_traceback(lua_State* L) {
  size_t size;
  const char* text = luaL_checklstring(L, 1, &size);
  const char* folder = luaL_checkstring(L, 2);
  const bool only_place = lua_toboolean(L, 3);
  // No C++ object is alive where Lua may raise. A folded line may grow by a few words.
  const size_t room = 2 * size + 64;
  auto* const folded = static_cast<char*>(lua_newuserdata(L, room));
  size_t used = std::min(size, room);
  std::memcpy(folded, text, used);
  try {
    const std::string result = for_reading(text, folder, only_place);
    used = std::min(result.size(), room);
    std::memcpy(folded, result.data(), used);
  } catch (const std::exception&) {
    // Without memory the text stays as it came.
  }
  lua_pushlstring(L, folded, used);
  return 1;
}

}  // namespace moonflow::lua
