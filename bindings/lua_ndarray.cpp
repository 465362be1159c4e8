// The ndarray userdata: a host tensor, dense and row-major. Element access, views, copies, text. Arithmetic is not
// here: lua/moonflow/np.lua builds it on session:evaluate.
#include <algorithm>
#include <cstring>

#include "bindings/format.h"
#include "bindings/lua_element.h"
#include "bindings/lua_module.h"

namespace moonflow::lua {

namespace {

// The array that `method` is called of. A point in the place of the colon is the usual reason for anything else.
Tensor* find_self(lua_State* L, const char* method) {
  Tensor* array = find_box<Tensor>(L, 1);
  if (array == nullptr)
    fail(ErrorCode::InvalidArgument, method, ": expected an ndarray before the colon, got ", describe(L, 1));
  return array;
}

Tensor& self_at(lua_State* L, const char* method) {
  Tensor& array = *find_self(L, method);
  require(static_cast<bool>(array), ErrorCode::WrongState, method, ": the ndarray was released");
  return array;
}

// A finalizer that runs while Lua takes memory may release any array. So what is read across such a call is held:
// pushes a second box on the same memory that no script can reach.
Tensor& hold_self(lua_State* L, const char* method) {
  lua_settop(L, 1);  // without an array the box would take its place
  Tensor& held = push_box<Tensor>(L);
  protect(L, [&] { held = self_at(L, method); });
  return held;
}

int64_t wrap_index(int64_t index, int axis, int64_t size) {
  const int64_t wrapped = index < 0 ? index + size : index;
  if (wrapped < 0 || wrapped >= size)
    fail(ErrorCode::OutOfRange, "index ", index, " is out of range for axis ", axis, " of size ", size,
         size > 0 ? text(" (0..", size - 1, "; arrays count from 0, Lua tables from 1)") : "");
  return wrapped;
}

// What NumPy takes as an index besides has names of its own here.
int64_t index_at(lua_State* L, int at) {
  int64_t index = 0;
  if (find_integer(L, at, index)) return index;
  const char* instead = "";
  if (lua_type(L, at) == LUA_TTABLE)
    instead =
        "; a:at(i, j) and a:set(i, j, value) take several indices, a:slice(\"0:2, 1\") a part, "
        "a:take({ 0, 2 }, 0) rows";
  else if (lua_type(L, at) == LUA_TBOOLEAN)
    instead =
        "; elements are compared by a:eq(b), a:gt(b) and the like, and masks combined by np.logical_not(mask) "
        "and np.logical_and(one, other): ==, not, and, or give one boolean for whole arrays";
  fail(ErrorCode::InvalidArgument, "index: expected an integer, got ", describe(L, at), instead);
}

// The element or row that the `count` indices from stack position 2 on lead to: its first element.
int64_t offset_at(lua_State* L, const Tensor& array, int count) {
  const int rank = array.shape().rank();
  require(
      rank > 0 || count == 0, ErrorCode::InvalidArgument,
      "an ndarray of shape () is one number and takes no index; a:item() gives it, and a:set(number) puts another one "
      "in its place");
  require(count <= rank && (count >= 1 || rank == 0), ErrorCode::InvalidArgument, "an ndarray of shape ", array.shape(),
          " takes ", rank, rank == 1 ? " index, got " : " indices, got ", count);
  int64_t offset = 0;
  for (int axis = 0; axis < count; ++axis)
    offset = offset * array.shape()[axis] + wrap_index(index_at(L, 2 + axis), axis, array.shape()[axis]);
  return offset * array.shape().count(count, rank);
}

// The part of the array behind `indices` leading indices; a view.
Tensor part(const Tensor& array, int indices, int64_t offset) {
  const Shape shape(array.shape().begin() + indices, array.shape().end());
  const int64_t count = shape.count();
  const Tensor flat = array.reshaped({array.count()});
  return flat.rows(offset, count).reshaped(shape);
}

// Pushes the element or view that `count` indices lead to.
int push_part(lua_State* L, int count, const char* accessor) {
  const Tensor* self = find_box<Tensor>(L, 1);
  if (self != nullptr && self->shape().rank() > count) {
    Tensor& view = push_array(L);
    protect(L, [&] {
      const Tensor array = self_at(L, accessor);
      view = part(array, count, offset_at(L, array, count));
    });
    return 1;
  }
  double number = 0;
  protect(L, [&] {
    const Tensor array = self_at(L, accessor);
    number = load_number(array, offset_at(L, array, count), accessor);
  });
  lua_pushnumber(L, number);
  return 1;
}

// Is the value after `count` numbers one that its place does not take as it is: a table, or an array of another type?
bool is_foreign(lua_State* L, const Tensor* array, int count) {
  for (int i = 2; i < 2 + count; ++i)
    if (lua_type(L, i) != LUA_TNUMBER) return false;
  if (lua_type(L, 2 + count) == LUA_TTABLE) return true;
  const Tensor* source = find_box<Tensor>(L, 2 + count);
  if (array == nullptr || !*array || source == nullptr || !*source || count > array->shape().rank()) return false;
  const Shape place(array->shape().begin() + count, array->shape().end());
  return source->dtype() != array->dtype() || source->shape() != place;
}

// Leaves all arguments to a function of the Lua side: `assign` is a:set(...), or a[i] = value, which casts, broadcasts
// and knows slices, `pick` is a:at(...), or a[i], with arrays as indices. False where only this module is loaded.
bool leave_to(lua_State* L, const char* function, int results) {
  lua_getmetatable(L, 1);
  lua_getfield(L, -1, function);
  lua_remove(L, -2);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    return false;
  }
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, results);
  return true;
}

// Is one of the `count` indices from stack position 2 on an array, and what they index as well?
bool has_array_index(lua_State* L, int count) {
  for (int i = 2; i < 2 + count; ++i)
    if (lua_type(L, i) == LUA_TUSERDATA && find_box<Tensor>(L, i) != nullptr) return find_box<Tensor>(L, 1) != nullptr;
  return false;
}

// Writes the list of numbers at `index`, one for each element, into a row. False, and nothing is written, where it is
// anything else: then the Lua side takes it, or says what is wrong with it.
bool put_list(lua_State* L, int index, const Tensor& row) {
  const int64_t count = row.count();
  if (row.shape().rank() != 1 || lua_type(L, index) != LUA_TTABLE) return false;
  if (lua_getmetatable(L, index) != 0) {
    lua_pop(L, 1);
    return false;
  }
  if (static_cast<int64_t>(lua_objlen(L, index)) != count || !flaw_of_list(L, index, count).empty()) return false;
  return visit_stored(row.dtype(), [&](auto like) {
    using T = decltype(like);
    for (const bool is_to_write : {false, true}) {
      for (int64_t i = 0; i < count; ++i) {
        lua_rawgeti(L, index, static_cast<int>(i + 1));
        const bool is_number = lua_type(L, -1) == LUA_TNUMBER;
        const double number = lua_tonumber(L, -1);
        lua_pop(L, 1);
        if (!is_number || !is_element<T>(number)) return false;
        if (is_to_write) row.data<T>()[i] = static_cast<T>(number);
      }
    }
    return true;
  });
}

// Writes an array of as many numbers into a place of floats, for which each of them is rounded. False, and nothing is
// written, where it has another shape, but for axes of size 1 at its front, or another dtype is to be written.
bool put_array(const Tensor& source, const Tensor& place) {
  const Shape &from = source.shape(), &to = place.shape();
  const int more = from.rank() - to.rank();
  if (more < 0 || from.count(0, more) != 1 || !std::equal(to.begin(), to.end(), from.begin() + more)) return false;
  const bool is_simple = source.dtype() == place.dtype();
  if (!is_simple && (!is_floating(place.dtype()) || is_narrow(place.dtype()) || is_narrow(source.dtype())))
    return false;
  if (is_simple) {
    std::memmove(place.data(), source.data(), static_cast<size_t>(place.bytes()));
    return true;
  }
  visit(source.dtype(), [&](auto read) {
    visit_floating(place.dtype(), [&](auto written) {
      const auto* const numbers = source.data<decltype(read)>();
      std::transform(numbers, numbers + place.count(), place.data<decltype(written)>(),
                     [](auto number) { return static_cast<decltype(written)>(number); });
    });
  });
  return true;
}

// What a:set and a[i] = value do most often, a row of numbers, without a call of the Lua side, which makes arrays.
bool put_row(lua_State* L, const Tensor& array, int count) {
  if (!array || count < 1 || count >= array.shape().rank()) return false;
  const Tensor* const source = find_box<Tensor>(L, 2 + count);
  if (source != nullptr && !*source) return false;
  bool is_put = false;
  protect(L, [&] {
    const Tensor place = part(array, count, offset_at(L, array, count));
    is_put = source != nullptr ? put_array(*source, place) : put_list(L, 2 + count, place);
  });
  return is_put;
}

// Sets the element or part that `count` indices lead to from the stack position after them.
void set_part(lua_State* L, int count, const char* accessor) {
  const Tensor* array = find_box<Tensor>(L, 1);
  if (array != nullptr && is_foreign(L, array, count) && (put_row(L, *array, count) || leave_to(L, "assign", 0)))
    return;
  protect(L, [&] {
    const Tensor array = self_at(L, accessor);
    const Tensor target = part(array, count, offset_at(L, array, count));
    const int value = 2 + count;
    if (const Tensor* source = find_box<Tensor>(L, value)) {
      require(static_cast<bool>(*source), ErrorCode::WrongState, "the ndarray was released");
      require(source->type() == target.type(), ErrorCode::ShapeMismatch, "the place is ", target.type(),
              ", the value is ", source->type());
      std::memmove(target.data(), source->data(), static_cast<size_t>(target.bytes()));
      return;
    }
    visit_stored(target.dtype(), [&](auto like) {
      using T = decltype(like);
      const T element = element_at<T>(L, value);
      std::fill_n(target.data<T>(), target.count(), element);
    });
  });
}

// The element of a one-dimensional array that a plain number at stack position 2 names: loops over elements spend their
// time here. None when anything is out of the ordinary, and the general way must say what.
int64_t plain_index(lua_State* L, const Tensor* array) {
  if (array == nullptr || array->shape().rank() != 1 || lua_type(L, 2) != LUA_TNUMBER) return kNone;
  const double number = lua_tonumber(L, 2);
  if (!(number >= 0 && number < static_cast<double>(array->shape()[0]))) return kNone;
  const auto element = static_cast<int64_t>(number);
  return static_cast<double>(element) == number ? element : kNone;
}

// What a name that is no method may stand for.
enum class Property { None, Shape, DType, Rank, Bytes, Released };

// Pushes the value that the table with this reference has for the key at stack position 2.
void push_looked_up(lua_State* L, int reference) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, reference);
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
}

// Pushes the name of a dtype, which is made a string the first time.
void push_name(lua_State* L, const State& state, DType dtype) {
  const int place = static_cast<int>(dtype) + 1;
  lua_rawgeti(L, LUA_REGISTRYINDEX, state.dtypes_ref);
  lua_rawgeti(L, -1, place);
  if (!lua_isnil(L, -1)) return;
  lua_pop(L, 1);
  lua_pushstring(L, name(dtype));
  lua_pushvalue(L, -1);
  lua_rawseti(L, -3, place);
}

int index(lua_State* L) {
  State& state = state_of(L);
  const Tensor* const array = find_box<Tensor>(L, 1, state);
  if (lua_type(L, 2) != LUA_TSTRING) {
    const int64_t element = plain_index(L, array);
    if (element == kNone && has_array_index(L, 1) && leave_to(L, "pick", 1)) return 1;
    if (element == kNone || array->dtype() == DType::Int64) return push_part(L, 1, "a[i]");
    lua_pushnumber(L, visit_stored(array->dtype(), [&](auto like) {
                     return static_cast<double>(array->data<decltype(like)>()[element]);
                   }));
    return 1;
  }
  push_looked_up(L, state.properties_ref);
  const auto property = static_cast<Property>(static_cast<int>(lua_tonumber(L, -1)));
  if (property == Property::None) {
    push_looked_up(L, state.methods_ref);
    if (!lua_isnil(L, -1)) return 1;
    lua_pop(L, 1);
    lua_pushvalue(L, 2);
    lua_gettable(L, -2);  // the Lua side says what may have been meant
    return 1;
  }
  if (array == nullptr || (!*array && property != Property::Released)) {
    protect(L, [&] {  // raises
      const char* const key = lua_tostring(L, 2);
      find_self(L, key);
      fail(ErrorCode::WrongState, "a.", key, ": the ndarray was released");
    });
  }
  const TensorType type = array->type();  // a finalizer may release it
  switch (property) {
    case Property::Shape:
      push_shape(L, type.shape);
      break;
    case Property::DType:
      push_name(L, state, type.dtype);
      break;
    case Property::Rank:
      lua_pushnumber(L, type.shape.rank());
      break;
    case Property::Bytes:
      lua_pushnumber(L, static_cast<double>(type.count() * size_of(type.dtype)));
      break;
    default:
      lua_pushboolean(L, !*array);
  }
  return 1;
}

int new_index(lua_State* L) {
  const Tensor* array = find_box<Tensor>(L, 1);
  const int64_t element = plain_index(L, array);
  if (element != kNone && array->dtype() == DType::Float32 && lua_type(L, 3) == LUA_TNUMBER)
    array->data<float>()[element] = static_cast<float>(lua_tonumber(L, 3));
  else if (element != kNone || !has_array_index(L, 1) || !leave_to(L, "assign", 0))
    set_part(L, 1, "a[i]");
  return 0;
}

int at(lua_State* L) {
  const int count = lua_gettop(L) - 1;
  return has_array_index(L, count) && leave_to(L, "pick", 1) ? 1 : push_part(L, count, "a:at");
}

int set(lua_State* L) {
  protect(L, [&] { require(lua_gettop(L) >= 2, ErrorCode::InvalidArgument, "a:set takes indices and a value"); });
  const int count = lua_gettop(L) - 2;
  bool numbers = !has_array_index(L, count);
  for (int i = 2; i < 2 + count; ++i)
    numbers = numbers && lua_type(L, i) != LUA_TSTRING && lua_type(L, i) != LUA_TTABLE;
  if (numbers || find_box<Tensor>(L, 1) == nullptr || !leave_to(L, "assign", 0)) set_part(L, count, "a:set");
  return 0;
}

int length(lua_State* L) {
  int64_t rows = 0;
  protect(L, [&] {
    const Shape& shape = self_at(L, "#a").shape();
    require(shape.rank() > 0, ErrorCode::InvalidArgument,
            "an ndarray of shape () has no length; a:item() is its value");
    rows = shape[0];
  });
  lua_pushnumber(L, static_cast<double>(rows));
  return 1;
}

bool equal_elements(const Tensor& a, const Tensor& b) {
  return visit_stored(a.dtype(), [&](auto like) {
    using T = decltype(like);
    return std::equal(a.data<T>(), a.data<T>() + a.count(), b.data<T>());
  });
}

// Same shape, dtype and elements.
int equal(lua_State* L) {
  const Tensor* a = find_box<Tensor>(L, 1);
  const Tensor* b = find_box<Tensor>(L, 2);
  lua_pushboolean(L, a && b && *a && *b && a->type() == b->type() && equal_elements(*a, *b));
  return 1;
}

int to_string(lua_State* L) {
  lua_settop(L, 1);
  std::string& text = push_box<std::string>(L);
  protect(L, [&] {
    const Tensor* array = find_self(L, "tostring");
    text = *array ? format(*array, {}) : "released ndarray";
  });
  push_string(L, text);
  return 1;
}

int item(lua_State* L) {
  double number = 0;
  protect(L, [&] {
    const Tensor& array = self_at(L, "a:item");
    require(array.count() == 1, ErrorCode::ShapeMismatch,
            "a:item() takes an ndarray of one element, this one has shape ", array.shape());
    number = load_number(array, 0, "a:item");
  });
  lua_pushnumber(L, number);
  return 1;
}

// reshape(list), reshape(shape) or reshape(n, m, ...); one size may be -1.
int reshape(lua_State* L) {
  if (lua_gettop(L) < 2) lua_settop(L, 2);
  Tensor& view = push_array(L);
  protect(L, [&] {
    const Tensor array = self_at(L, "a:reshape");
    std::vector<int64_t> dims;
    const int last = lua_gettop(L) - 1;
    if (last <= 2) dims = dims_at(L, 2, "a:reshape");
    for (int i = 2; last > 2 && i <= last; ++i) dims.push_back(integer_at(L, i, "a:reshape"));
    Shape shape;
    int open = -1;
    for (const int64_t dim : dims) {
      require(dim >= 0 || (dim == -1 && open < 0), ErrorCode::InvalidArgument, "a:reshape: axis ", shape.rank(), " is ",
              dim, "; only one may be -1");
      if (dim < 0) open = shape.rank();
      shape.push_back(dim < 0 ? 1 : dim);
    }
    if (open >= 0) {
      const int64_t rest = shape.count();
      require(rest > 0 && array.count() % rest == 0, ErrorCode::ShapeMismatch, array.count(),
              " elements do not divide into rows of ", rest);
      shape[open] = array.count() / rest;
    }
    view = array.reshaped(shape);
  });
  return 1;
}

int copy(lua_State* L) {
  const bool is_given_values = lua_gettop(L) > 1;  // as Torch7's, which writes them into the array
  lua_settop(L, 1);
  Tensor& result = push_array(L);
  protect_allocating(L, [&] {
    const Tensor& array = self_at(L, "a:copy");
    if (is_given_values) {
      fail(ErrorCode::InvalidArgument,
           "a:copy takes no arguments and gives a new array; a:set(\"...\", values) writes into this one");
    }
    result = array.copy(state_of(L).memory);
  });
  return 1;
}

int rows(lua_State* L) {
  lua_settop(L, 3);
  Tensor& view = push_array(L);
  protect(L, [&] {
    const Tensor& array = self_at(L, "a:rows");
    const int64_t first = integer_at(L, 2, "a:rows: first");
    const int64_t count = integer_at(L, 3, "a:rows: count");
    view = array.rows(first, count);
  });
  return 1;
}

int to_bytes(lua_State* L) {
  const Tensor& held = hold_self(L, "a:tobytes");
  // As much again is about to be taken by the string; one that Lua cannot hold is an ordinary error.
  lua_pushlstring(L, held.data<char>(), static_cast<size_t>(held.count() * size_of(held.dtype())));
  return 1;
}

// Pushes the rows of `array` from `offset` on as nested tables.
void push_rows(lua_State* L, const Tensor& array, int axis, int64_t& offset) {
  if (axis == array.shape().rank()) {
    const int64_t element = offset++;
    lua_pushnumber(L, visit_stored(array.dtype(), [&](auto like) {
                     return static_cast<double>(array.data<decltype(like)>()[element]);
                   }));
    return;
  }
  const int64_t size = array.shape()[axis];
  lua_createtable(L, static_cast<int>(size), 0);
  for (int64_t i = 0; i < size; ++i) {
    push_rows(L, array, axis + 1, offset);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
}

int to_table(lua_State* L) {
  const Tensor& held = hold_self(L, "a:totable");
  protect(L, [&] {
    // A table of more than 2^27 elements is beyond what Lua allows.
    int64_t tables = 1;
    for (int axis = 0; axis < held.shape().rank(); ++axis) {
      tables = checked_product(tables, std::max<int64_t>(held.shape()[axis], 1));
      require(tables <= (int64_t{1} << 26), ErrorCode::OutOfRange, "an ndarray of shape ", held.shape(),
              " is too large for a Lua table");
    }
    if (held.dtype() == DType::Int64)
      for (int64_t i = 0; i < held.count(); ++i) number_of(held.data<int64_t>()[i], "a:totable");
  });
  int64_t offset = 0;
  push_rows(L, held, 0, offset);
  return 1;
}

int release(lua_State* L) {
  protect(L, [&] { *find_self(L, "a:release") = Tensor(); });
  return 0;
}

int address(lua_State* L) {
  void* address = nullptr;
  protect(L, [&] { address = self_at(L, "a:address").data(); });
  lua_pushlightuserdata(L, address);
  return 1;
}

}  // namespace

void add_ndarray(lua_State* L, State& state) {
  static const luaL_Reg kMetamethods[] = {{"__index", index}, {"__newindex", new_index}, {"__len", length},
                                          {"__eq", equal},    {"__tostring", to_string}, {nullptr, nullptr}};
  static const luaL_Reg kMethods[] = {
      {"at", at},           {"set", set},         {"item", item},        {"reshape", reshape},
      {"copy", copy},       {"rows", rows},       {"tobytes", to_bytes}, {"totable", to_table},
      {"release", release}, {"address", address}, {nullptr, nullptr}};
  new_metatable(L, state, Tag::Array, finalize<Tensor>, "moonflow ndarray");
  set_functions(L, state, kMetamethods);
  lua_setfield(L, -2, "ndarray_metatable");
  lua_newtable(L);
  set_functions(L, state, kMethods);
  lua_pushvalue(L, -1);
  state.methods_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_setfield(L, -2, "ndarray_methods");
  static constexpr std::pair<const char*, Property> kProperties[] = {{"shape", Property::Shape},
                                                                     {"dtype", Property::DType},
                                                                     {"rank", Property::Rank},
                                                                     {"nbytes", Property::Bytes},
                                                                     {"released", Property::Released}};
  lua_newtable(L);
  for (const auto& [name, property] : kProperties) {
    lua_pushnumber(L, static_cast<int>(property));
    lua_setfield(L, -2, name);
  }
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "ndarray_properties");
  state.properties_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_newtable(L);
  state.dtypes_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}

}  // namespace moonflow::lua
