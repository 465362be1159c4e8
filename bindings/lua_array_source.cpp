// Fresh arrays: core.array from nested tables, numbers, bytes or another array; core.empty; core.zeros; core.format.
#include <cstring>

#include "bindings/format.h"
#include "bindings/lua_element.h"
#include "bindings/lua_module.h"
#include "bindings/stored.h"

namespace moonflow::lua {

namespace {

// The shape of a nested list, judged by the first element of each level.
Shape shape_of_lists(lua_State* L, int index) {
  Shape shape;
  const int top = lua_gettop(L);
  lua_pushvalue(L, index);
  while (lua_type(L, -1) == LUA_TTABLE) {
    require(shape.rank() < Shape::kMaxRank, ErrorCode::InvalidArgument, "lists are nested more than ", Shape::kMaxRank,
            " deep");
    const size_t size = lua_objlen(L, -1);
    shape.push_back(static_cast<int64_t>(size));
    if (size == 0) break;
    lua_rawgeti(L, -1, 1);
  }
  lua_settop(L, top);
  return shape;
}

// Copies the list on the top of the stack, whose shape is the rest of `shape` from `axis` on.
template <class T>
void read_list(lua_State* L, const Shape& shape, int axis, T*& out) {
  const bool is_list = lua_type(L, -1) == LUA_TTABLE;
  if (!is_list)
    fail(ErrorCode::ShapeMismatch, "the lists are ragged: expected a list on axis ", axis, ", got ", describe(L, -1));
  const auto size = static_cast<int64_t>(lua_objlen(L, -1));
  require(size == shape[axis], ErrorCode::ShapeMismatch, "the lists are ragged: a list on axis ", axis, " has ", size,
          " elements, the first one has ", shape[axis]);
  for (int64_t i = 1; i <= size; ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    if (axis + 1 < shape.rank()) {
      read_list(L, shape, axis + 1, out);
    } else {
      require(lua_type(L, -1) != LUA_TTABLE, ErrorCode::ShapeMismatch,
              "the lists are ragged: expected a number on axis ", axis, ", got a list");
      *out++ = prefixing([&] { return element_at<T>(L, -1); }, "entry ", i, " of a list on axis ", axis);
    }
    lua_pop(L, 1);
  }
  if (const std::string flaw = flaw_of_list(L, -1, size); !flaw.empty())
    fail(ErrorCode::InvalidArgument, "a list on axis ", axis, flaw);
}

Tensor from_lists(lua_State* L, DType dtype, const std::optional<Shape>& wanted) {
  const Shape shape = shape_of_lists(L, 1);
  if (wanted)
    require(shape.count() == wanted->count(), ErrorCode::ShapeMismatch, "shape ", *wanted, " has ", wanted->count(),
            " elements, the lists have ", shape.count());
  const Tensor array = Tensor::allocate({dtype, shape}, state_of(L).memory);
  lua_pushvalue(L, 1);
  visit_stored(dtype, [&](auto like) {
    auto* out = array.data<decltype(like)>();
    read_list(L, shape, 0, out);
  });
  lua_pop(L, 1);
  return wanted ? array.reshaped(*wanted) : array;
}

Tensor from_bytes(lua_State* L, const std::optional<DType>& dtype, const std::optional<Shape>& shape) {
  const std::string_view bytes = string_at(L, 1, "source");
  require(dtype && shape, ErrorCode::InvalidArgument, "bytes need a dtype and a shape to become an ndarray");
  const TensorType type{*dtype, *shape};
  require(static_cast<uint64_t>(type.bytes()) == bytes.size(), ErrorCode::ShapeMismatch, type, " needs ", type.bytes(),
          " bytes, got ", bytes.size());
  Tensor array = Tensor::allocate(type, state_of(L).memory);
  std::memcpy(array.data(), bytes.data(), bytes.size());
  return array;
}

Tensor from_array(lua_State* L, const std::optional<DType>& dtype, const std::optional<Shape>& shape) {
  const Tensor& source = array_at(L, 1, "source");
  require(!dtype || *dtype == source.dtype(), ErrorCode::DtypeMismatch, "source is ", source.type(), ", not ",
          dtype ? name(*dtype) : "", "; a:astype() converts");
  return (shape ? source.reshaped(*shape) : source).copy(state_of(L).memory);
}

Tensor from_number(lua_State* L, DType dtype, const std::optional<Shape>& shape) {
  const Tensor array = scalar_at(L, 1, dtype, state_of(L).memory);
  return shape ? array.reshaped(*shape) : array;
}

int make_array(lua_State* L) {
  lua_settop(L, 3);
  Tensor& array = push_array(L);
  protect_allocating(L, [&] {
    lua_settop(L, 4);  // a first attempt may have left something
    std::optional<DType> dtype;
    if (!lua_isnil(L, 2)) dtype = dtype_at(L, 2, "dtype");
    std::optional<Shape> shape;
    if (!lua_isnil(L, 3)) shape = shape_at(L, 3, "shape");
    switch (lua_type(L, 1)) {
      case LUA_TTABLE:
        array = from_lists(L, dtype.value_or(DType::Float32), shape);
        return;
      case LUA_TSTRING:
        array = from_bytes(L, dtype, shape);
        return;
      case LUA_TUSERDATA:
        array = from_array(L, dtype, shape);
        return;
      default:
        array = from_number(L, dtype.value_or(DType::Float32), shape);
    }
  });
  return 1;
}

// core.widened(bytes, stored, shape): the int32 of whole numbers that are stored as "int16" or "uint16".
int widened(lua_State* L) {
  lua_settop(L, 3);
  Tensor& array = push_array(L);
  protect_allocating(L, [&] {
    const std::string_view bytes = string_at(L, 1, "bytes"), name = string_at(L, 2, "stored");
    const Shape shape = shape_at(L, 3, "shape");
    require(static_cast<uint64_t>(shape.count()) == bytes.size() / 2 && bytes.size() % 2 == 0, ErrorCode::ShapeMismatch,
            name, " ", shape, " needs ", 2 * shape.count(), " bytes, got ", bytes.size());
    const Stored& stored = *stored_in_npy(name == "int16" ? "i2" : "u2");
    array = Tensor::allocate({stored.dtype, shape}, state_of(L).memory);
    MemorySource source(bytes, "bytes");
    read_stored(source, stored, false, array);
  });
  return 1;
}

// core.empty(dtype, shape, called): `called` is what errors name.
int make_fresh(lua_State* L, decltype(Tensor::zeros)& make) {
  lua_settop(L, 3);
  Tensor& array = push_array(L);
  protect_allocating(L, [&] {
    const DType dtype = dtype_at(L, 1, "dtype");
    blaming(std::string(optional_string_at(L, 3, "called")), "", [&] {
      array = make({dtype, shape_at(L, 2, "shape")}, state_of(L).memory);
    });
  });
  return 1;
}

int make_empty(lua_State* L) { return make_fresh(L, Tensor::allocate); }
int make_zeros(lua_State* L) { return make_fresh(L, Tensor::zeros); }

FormatOptions format_options_at(lua_State* L, int index) {
  FormatOptions options;
  if (lua_isnoneornil(L, index)) return options;
  table_at(L, index, "options");
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    const std::string_view key = string_at(L, -2, "name of an option");
    if (key == "precision")
      options.precision = static_cast<int>(integer_at(L, -1, "precision", 0, 100));
    else if (key == "threshold")
      options.threshold = integer_at(L, -1, "threshold", 0, int64_t{1} << 40);
    else if (key == "edgeitems")
      options.edge_items = integer_at(L, -1, "edgeitems", 1, int64_t{1} << 30);
    else if (key == "linewidth")
      options.line_width = integer_at(L, -1, "linewidth", 1, int64_t{1} << 30);
    else if (key == "suppress")
      options.suppress = flag_at(L, -1, "suppress");
    else
      fail(ErrorCode::InvalidArgument, "format has no option '", key,
           "'; there are precision, threshold, edgeitems, linewidth, suppress");
    lua_pop(L, 1);
  }
  return options;
}

int format_array(lua_State* L) {
  lua_settop(L, 2);
  std::string& text = push_box<std::string>(L);
  protect(L, [&] {
    const FormatOptions options = format_options_at(L, 2);
    text = format(array_at(L, 1, "array"), options);
  });
  push_string(L, text);
  return 1;
}

// What ipairs would leave out of a list without a word, as the end of a message; nil where that is nothing.
int list_flaw(lua_State* L) {
  lua_settop(L, 1);
  std::string& flaw = push_box<std::string>(L);
  protect(L, [&] {
    table_at(L, 1, "list");
    flaw = flaw_of_list(L, 1, entries_at(L, 1));
  });
  if (flaw.empty())
    lua_pushnil(L);
  else
    push_string(L, flaw);
  return 1;
}

}  // namespace

void add_array_sources(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {{"array", make_array},    {"empty", make_empty},    {"zeros", make_zeros},
                                        {"format", format_array}, {"list_flaw", list_flaw}, {"widened", widened},
                                        {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
