#include "bindings/lua_glue.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace moonflow::lua {

namespace {

constexpr int kCData = 10;  // LuaJIT's type number of FFI objects

// "file:line" of the innermost script line that is not the library's; left empty when there is none.
void find_where(lua_State* L, const State& state, char* where, size_t size) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.currentline <= 0 || state.is_own(frame.source)) continue;
    std::snprintf(where, size, "%s:%d", frame.short_src, frame.currentline);
    return;
  }
}

void set_field(lua_State* L, const char* name, const char* value) {
  if (value[0] == '\0') return;
  lua_pushstring(L, value);
  lua_setfield(L, -2, name);
}

template <size_t size>
void copy(char (&to)[size], const char* from) {
  const size_t length = std::min(std::strlen(from), size - 1);
  std::memcpy(to, from, length);
  to[length] = '\0';
}

}  // namespace

PlainError State::take_fault() noexcept {
  const PlainError error = fault ? PlainError(*fault) : PlainError();
  fault.reset();
  return error;
}

PlainError::PlainError(const Error& error) : code(error.code) {
  copy(message, error.what());
  copy(op, error.op.c_str());
  copy(job, error.job.c_str());
  copy(where, error.where.c_str());
}

void push_error(lua_State* L, const PlainError& error) {
  lua_createtable(L, 0, 5);
  set_field(L, "code", name(error.code));
  set_field(L, "message", error.message);
  set_field(L, "op", error.op);
  set_field(L, "job", error.job);
  set_field(L, "where", error.where);
  lua_rawgeti(L, LUA_REGISTRYINDEX, state_of(L).error_ref);
  lua_setmetatable(L, -2);
}

void raise(lua_State* L) {
  State& state = state_of(L);
  static_assert(std::is_trivially_destructible_v<PlainError>);
  PlainError error = state.take_fault();
  lua_settop(L, 0);  // what the call had on the stack is no longer needed, and may be large
  if (error.where[0] == '\0') find_where(L, state, error.where, sizeof error.where);
  push_error(L, error);
  lua_error(L);
  __builtin_unreachable();
}

void collect_garbage(lua_State* L) {
  State& state = state_of(L);
  lua_gc(L, LUA_GCCOLLECT, 0);
  const int64_t live = state.memory ? state.memory->live_bytes.load(std::memory_order_relaxed) : 0;
  // A collection takes time by what is in Lua's own heap, so a large one is gone through less often.
  const int64_t heap = int64_t{1024} * lua_gc(L, LUA_GCCOUNT, 0);
  const int64_t watermark = std::clamp(16 * heap, State::kLeastWatermark, int64_t{256} << 20);
  state.collect_above = std::max(watermark, 2 * live);
}

std::string describe(lua_State* L, int index) {
  if (const Tensor* array = find_box<Tensor>(L, index))
    return *array ? "an ndarray " + array->type().str() : "a released ndarray";
  if (const Shape* shape = find_box<Shape>(L, index)) return "the shape " + shape->str();
  if (find_box<SessionBox>(L, index)) return "a session";
  if (find_box<GraphBox>(L, index)) return "a graph";
  if (find_box<PlanBox>(L, index)) return "a plan";
  switch (lua_type(L, index)) {
    case LUA_TNONE:
      return "nothing";
    case LUA_TNIL:
      return "nil";
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) ? "true" : "false";
    case LUA_TNUMBER: {
      const lua_Number number = lua_tonumber(L, index);
      if (std::isnan(number)) return "the number nan";
      char digits[32];
      const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
      return "the number " + std::string(digits, end);
    }
    case LUA_TSTRING: {
      const std::string_view string = string_at(L, index, "");
      if (string.size() <= 40 && string.find('\0') == string.npos) return "the string '" + std::string(string) + "'";
      return "a string of " + std::to_string(string.size()) + " bytes";
    }
    default:
      return std::string("a ") + lua_typename(L, lua_type(L, index));
  }
}

bool find_integer(lua_State* L, int index, int64_t& value) {
  if (lua_type(L, index) == LUA_TNUMBER) {
    const double number = lua_tonumber(L, index);
    if (!(number >= -static_cast<double>(kExact) && number <= static_cast<double>(kExact))) return false;
    value = static_cast<int64_t>(number);
    return static_cast<double>(value) == number;
  }
  if (lua_type(L, index) != kCData) return false;
  // The C API does not say what a cdata is, but "-12LL" is how a 64-bit integer prints, and nothing else prints so.
  index = from_bottom(L, index);
  lua_rawgeti(L, LUA_REGISTRYINDEX, state_of(L).tostring_ref);
  lua_pushvalue(L, index);
  bool found = false;
  if (lua_pcall(L, 1, 1, 0) == 0 && lua_type(L, -1) == LUA_TSTRING) {
    size_t size;
    const char* digits = lua_tolstring(L, -1, &size);
    const char* end = digits + size;
    if (size > 3 && std::memcmp(end - 3, "ULL", 3) == 0)
      end -= 3;
    else if (size > 2 && std::memcmp(end - 2, "LL", 2) == 0)
      end -= 2;
    const auto parsed = std::from_chars(digits, end, value);
    found = end != digits + size && parsed.ec == std::errc() && parsed.ptr == end;
  }
  lua_pop(L, 1);
  return found;
}

int64_t integer_at(lua_State* L, int index, const char* what) {
  int64_t value = 0;
  if (!find_integer(L, index, value))
    fail(ErrorCode::InvalidArgument, what, ": expected an integer, got ", describe(L, index));
  return value;
}

int64_t integer_at(lua_State* L, int index, const char* what, int64_t low, int64_t high) {
  const int64_t value = integer_at(L, index, what);
  require(value >= low && value <= high, ErrorCode::OutOfRange, what, ": ", value, " is outside ", low, " to ", high);
  return value;
}

double number_at(lua_State* L, int index, const char* what) {
  if (lua_type(L, index) != LUA_TNUMBER)
    fail(ErrorCode::InvalidArgument, what, ": expected a number, got ", describe(L, index));
  return lua_tonumber(L, index);
}

bool flag_at(lua_State* L, int index, const char* what) {
  if (lua_type(L, index) != LUA_TBOOLEAN)
    fail(ErrorCode::InvalidArgument, what, ": expected true or false, got ", describe(L, index));
  return lua_toboolean(L, index) != 0;
}

std::string_view string_at(lua_State* L, int index, const char* what) {
  if (lua_type(L, index) != LUA_TSTRING)
    fail(ErrorCode::InvalidArgument, what, ": expected a string, got ", describe(L, index));
  size_t size;
  const char* bytes = lua_tolstring(L, index, &size);
  return {bytes, size};
}

std::string_view optional_string_at(lua_State* L, int index, const char* what) {
  return lua_isnoneornil(L, index) ? std::string_view() : string_at(L, index, what);
}

std::vector<std::string> strings_at(lua_State* L, int index, const char* what) {
  std::vector<std::string> strings;
  each_at(L, index, what, [&](int at) { strings.emplace_back(string_at(L, at, what)); });
  return strings;
}

DType dtype_at(lua_State* L, int index, const char* what) {
  const std::optional<DType> dtype = dtype_named(string_at(L, index, what));
  if (!dtype)
    fail(ErrorCode::InvalidArgument, what, ": ", describe(L, index),
         " is no dtype; there are float32, float64, bfloat16, float16, int8, uint8, int32, int64");
  return *dtype;
}

void table_at(lua_State* L, int index, const char* what) {
  if (lua_type(L, index) != LUA_TTABLE)
    fail(ErrorCode::InvalidArgument, what, ": expected a table, got ", describe(L, index));
}

std::string flaw_of_list(lua_State* L, int index, int64_t size) {
  const int list = from_bottom(L, index);
  int64_t count = 0;
  for (lua_pushnil(L); lua_next(L, list) != 0; lua_pop(L, 1)) ++count;
  if (count == size) return {};
  std::string flaw;
  for (lua_pushnil(L); lua_next(L, list) != 0; lua_pop(L, 1)) {
    const bool is_number = lua_type(L, -2) == LUA_TNUMBER;
    const double key = is_number ? lua_tonumber(L, -2) : 0.5;
    if (key >= 1 && key <= static_cast<double>(size) && key == std::floor(key)) continue;
    if (key == 0)
      flaw = " has an entry 0; Lua tables count from 1";
    else if (is_number)
      flaw = text(" has a hole: nothing stands at ", size + 1, ", but something at ", key);
    else if (lua_type(L, -2) == LUA_TSTRING)
      flaw = text(" has the key '", lua_tostring(L, -2), "' among its entries");
    else
      flaw = text(" has the key ", describe(L, -2), " among its entries");
    lua_pop(L, 2);
    break;
  }
  return flaw;
}

int64_t entries_at(lua_State* L, int index) {
  int64_t count = 0;
  for (bool is_there = true; is_there; lua_pop(L, 1)) {
    lua_rawgeti(L, index, static_cast<int>(count + 1));
    is_there = !lua_isnil(L, -1);
    count += is_there;
  }
  return count;
}

int64_t list_size_at(lua_State* L, int index, const char* what) {
  const int64_t size = entries_at(L, index);
  if (const std::string flaw = flaw_of_list(L, index, size); !flaw.empty())
    fail(ErrorCode::InvalidArgument, what, ": the list", flaw);
  return size;
}

std::string path_at(lua_State* L, int index) {
  const std::string_view path = string_at(L, index, "path");
  if (path.empty() || path.find('\0') != path.npos)
    fail(ErrorCode::InvalidArgument, "path: ", describe(L, index), " names no file");
  return std::string(path);
}

std::vector<int64_t> dims_at(lua_State* L, int index, const char* what) {
  if (const Shape* shape = find_box<Shape>(L, index)) return shape->dims();
  std::vector<int64_t> dims;
  if (lua_type(L, index) == LUA_TNUMBER) {
    dims.push_back(integer_at(L, index, what));
    return dims;
  }
  if (lua_type(L, index) != LUA_TTABLE)
    fail(ErrorCode::InvalidArgument, what, ": expected a list of sizes or a shape, got ", describe(L, index));
  const int64_t count = list_size_at(L, index, what);
  require(count <= Shape::kMaxRank, ErrorCode::InvalidArgument, what, ": has ", count, " axes, at most ",
          Shape::kMaxRank, " are possible");
  each_at(L, index, what, [&](int at) { dims.push_back(integer_at(L, at, what)); });
  return dims;
}

Shape shape_at(lua_State* L, int index, const char* what) {
  if (const Shape* shape = find_box<Shape>(L, index)) return *shape;
  Shape shape;
  for (const int64_t dim : dims_at(L, index, what)) {
    require(dim >= 0, ErrorCode::InvalidArgument, what, ": axis ", shape.rank(), " has the negative size ", dim);
    shape.push_back(dim);
  }
  shape.count();  // throws when the product overflows
  return shape;
}

Tensor& array_at(lua_State* L, int index, const char* what, const State& state) {
  Tensor* array = find_box<Tensor>(L, index, state);
  if (array == nullptr) fail(ErrorCode::InvalidArgument, what, ": expected an ndarray, got ", describe(L, index));
  require(static_cast<bool>(*array), ErrorCode::WrongState, what, ": the ndarray was released");
  return *array;
}

void collect_where_due(lua_State* L, State& state) {
  const int64_t live = state.memory ? state.memory->live_bytes.load(std::memory_order_relaxed) : 0;
  // A stopped collector is the host's decision, and it also stands still while a finalizer runs.
  if (live > state.collect_above && lua_gc(L, LUA_GCISRUNNING, 0)) collect_garbage(L);
}

Tensor& push_array(lua_State* L, State& state) {
  collect_where_due(L, state);
  return push_box<Tensor>(L, state);
}

void set_functions(lua_State* L, State& state, const luaL_Reg* list) {
  for (; list->name != nullptr; ++list) {
    // The state is anchored in the registry; a light pointer spares each function a reference.
    lua_pushlightuserdata(L, &state);
    lua_pushcclosure(L, list->func, 1);
    lua_setfield(L, -2, list->name);
  }
}

void new_metatable(lua_State* L, State& state, Tag tag, lua_CFunction finalizer, const char* name) {
  lua_newtable(L);
  lua_pushlightuserdata(L, &state);
  lua_pushcclosure(L, finalizer, 1);
  lua_setfield(L, -2, "__gc");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  lua_pushvalue(L, -1);
  state.kind(tag).metatable_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}

void new_class(lua_State* L, State& state, Tag tag, lua_CFunction finalizer, const char* name,
               const luaL_Reg* methods) {
  new_metatable(L, state, tag, finalizer, name);
  lua_newtable(L);
  set_functions(L, state, methods);
  lua_setfield(L, -2, "__index");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__metatable");
  lua_pop(L, 1);
}

}  // namespace moonflow::lua
