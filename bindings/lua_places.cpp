// core.write_places and core.write_rows: elements of an array that are not neighbours, written from those of another.
#include <cstdlib>
#include <cstring>

#include "bindings/lua_module.h"
#include "engine/overlap.h"

namespace moonflow::lua {

namespace {

// The array, or where it shares memory with one that is written while it is read, a copy.
Tensor apart_from(const Tensor& written, const Tensor& array, const State& state) {
  return overlap(range_of(written), range_of(array)) ? array.copy(state.memory) : array;
}

// What a slice picks: along each axis so many places, `steps` apart.
struct Places {
  std::vector<int64_t> starts, steps, sizes;
};

// Writes dense elements from `from` on, which moves on, into the places picked of the `bytes` behind `to`, whose axes
// are those of `shape` from `axis` on. From the axis `whole` on the places are all there are.
void write_places(const Places& places, const Shape& shape, int axis, int whole, const char*& from, char* to,
                  int64_t bytes) {
  if (axis >= whole) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    from += bytes;
    return;
  }
  const int64_t row = bytes / shape[axis];
  to += places.starts[axis] * row;
  if (axis + 1 == whole && places.steps[axis] == 1) {
    std::memcpy(to, from, static_cast<size_t>(places.sizes[axis] * row));
    from += places.sizes[axis] * row;
    return;
  }
  for (int64_t i = 0; i < places.sizes[axis]; ++i, to += places.steps[axis] * row)
    write_places(places, shape, axis + 1, whole, from, to, row);
}

// core.write_places(array, starts, steps, sizes, source): the elements of `source`, of the array's dtype, in order.
int write_all_places(lua_State* L) {
  protect_allocating(L, [&] {
    const Tensor array = array_at(L, 1, "array");
    const Shape& shape = array.shape();
    const Places places{dims_at(L, 2, "starts"), dims_at(L, 3, "steps"), dims_at(L, 4, "sizes")};
    Tensor source = array_at(L, 5, "source");
    const auto rank = static_cast<size_t>(shape.rank());
    require(places.starts.size() == rank && places.steps.size() == rank && places.sizes.size() == rank,
            ErrorCode::InvalidArgument, "starts, steps and sizes are one for each axis of ", shape);
    int64_t count = 1;
    int whole = shape.rank();
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const int64_t start = places.starts[axis], step = places.steps[axis], size = places.sizes[axis];
      const auto is_inside = [&](int64_t place) { return place >= 0 && place < shape[axis]; };
      const bool reaches = size <= 1 || (step != 0 && size - 1 <= (shape[axis] - 1) / std::abs(step));
      require(size == 0 || (size > 0 && reaches && is_inside(start) && is_inside(start + (size - 1) * step)),
              ErrorCode::OutOfRange, "places outside axis ", axis, " of ", shape);
      count *= size;
      if (whole == axis + 1 && start == 0 && step == 1 && size == shape[axis]) whole = axis;
    }
    require(source.dtype() == array.dtype() && source.count() == count, ErrorCode::ShapeMismatch, "there are ", count,
            " places of an array ", array.type(), ", the source is ", source.type());
    if (count == 0) return;
    source = apart_from(array, source, state_of(L));
    const char* from = source.data<char>();
    write_places(places, shape, 0, whole, from, array.data<char>(), array.bytes());
  });
  return 0;
}

// core.write_rows(array, places, source): the rows of `source`, of the array's dtype, one after the other to these
// places, int64. Where a place stands twice, the later row is what remains.
int write_rows(lua_State* L) {
  protect_allocating(L, [&] {
    const Tensor array = array_at(L, 1, "array");
    Tensor places = array_at(L, 2, "places"), source = array_at(L, 3, "source");
    require(array.shape().rank() > 0 && places.dtype() == DType::Int64, ErrorCode::InvalidArgument,
            "rows are those of an array with an axis, and their places int64; got ", array.type(), " and ",
            places.type());
    const int64_t rows = array.shape()[0];
    const int64_t elements = array.shape().count(1, array.shape().rank());
    require(source.dtype() == array.dtype() && source.count() == places.count() * elements, ErrorCode::ShapeMismatch,
            "there are ", places.count(), " places of rows of an array ", array.type(), ", the source is ",
            source.type());
    source = apart_from(array, source, state_of(L));
    places = apart_from(array, places, state_of(L));
    const auto* const place = places.data<int64_t>();
    for (int64_t i = 0; i < places.count(); ++i)
      require(place[i] >= 0 && place[i] < rows, ErrorCode::OutOfRange, "place ", place[i], " of ", rows, " rows");
    if (source.bytes() == 0) return;
    const int64_t bytes = elements * size_of(array.dtype());
    for (int64_t i = 0; i < places.count(); ++i)
      std::memcpy(array.data<char>() + place[i] * bytes, source.data<char>() + i * bytes, static_cast<size_t>(bytes));
  });
  return 0;
}

}  // namespace

void add_places(lua_State* L, State& state) {
  static const luaL_Reg kFunctions[] = {
      {"write_places", write_all_places}, {"write_rows", write_rows}, {nullptr, nullptr}};
  set_functions(L, state, kFunctions);
}

}  // namespace moonflow::lua
