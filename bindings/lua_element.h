// Single elements of arrays, between C++ and Lua numbers.
#pragma once

#include <cmath>
#include <limits>

#include "bindings/lua_glue.h"

namespace moonflow::lua {

// Does the dtype hold the number as it is, or as the nearest one of floats?
template <class T>
bool is_element(double number) {
  if constexpr (kFloating<T>) {
    return true;
  } else {
    // The upper bound is one past the largest value, since that one is exact as a double for every integer type.
    constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
    constexpr double kEnd = static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2.0;
    return number >= kLow && number < kEnd && number == std::trunc(number);
  }
}

// The number as an element; one that the dtype cannot hold is an error, never a wrapped value.
template <class T>
T element_of(double number) {
  if constexpr (!kFloating<T>) {
    require(is_element<T>(number), ErrorCode::OutOfRange, "the number ", number, " is no ", DTypeOf<T>::value, " (",
            +std::numeric_limits<T>::min(), " to ", +std::numeric_limits<T>::max(), ", without a fraction)");
  }
  return static_cast<T>(number);
}

// The element at `index` of the stack: a number, a boolean as 1 or 0, or a 64-bit integer cdata. For phase 2.
template <class T>
T element_at(lua_State* L, int index) {
  const int type = lua_type(L, index);
  if (type == LUA_TNUMBER) return element_of<T>(lua_tonumber(L, index));
  if (type == LUA_TBOOLEAN) return static_cast<T>(lua_toboolean(L, index));
  int64_t integer = 0;
  if (!find_integer(L, index, integer)) fail(ErrorCode::InvalidArgument, "expected a number, got ", describe(L, index));
  if constexpr (std::is_same_v<T, int64_t>) return integer;
  return element_of<T>(static_cast<double>(integer));
}

// The element as a Lua number. An int64 beyond 2^53 is an error that names `accessor`.
template <class T>
double number_of(T element, const char* accessor) {
  if constexpr (std::is_same_v<T, int64_t>) {
    require(element >= -kExact && element <= kExact, ErrorCode::OutOfRange, accessor, ": the element ", element,
            " is beyond 2^53, where Lua numbers are not exact; a:ptr() and a:tobytes() give it whole");
  }
  return static_cast<double>(element);
}

// Writes the number at `index` as an element of the dtype. For phase 2.
inline void store_number_at(lua_State* L, int index, DType dtype, void* to) {
  visit_stored(dtype, [&](auto like) { *static_cast<decltype(like)*>(to) = element_at<decltype(like)>(L, index); });
}

// An array without axes of that number.
inline Tensor scalar_at(lua_State* L, int index, DType dtype, const std::shared_ptr<HostMemory>& memory) {
  Tensor array = Tensor::allocate({dtype, Shape()}, memory);
  store_number_at(L, index, dtype, array.data<char>());
  return array;
}

// Is a Lua number given for an input without axes? It stands for an array of itself.
inline bool is_scalar_at(lua_State* L, int index, const TensorType& wanted) {
  return lua_type(L, index) == LUA_TNUMBER && wanted.shape.rank() == 0;
}

inline double load_number(const Tensor& array, int64_t element, const char* accessor) {
  return visit_stored(array.dtype(),
                      [&](auto like) { return number_of(array.data<decltype(like)>()[element], accessor); });
}

}  // namespace moonflow::lua
