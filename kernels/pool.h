// The sizes of a pooling, for all devices (pool_sizes.cpp).
#pragma once

#include "kernels/window.h"

namespace moonflow {

struct Pool {
  ImageFormat format;
  ImageSize image;
  ImageSize out;
  Windows windows;
};

// Checks the attributes of a pooling of x; all ops of pooling have them.
Pool pool_of(const Attrs& attrs, const Shape& x);

// The ops, told apart by what they compute.
enum class PoolKind {
  Max,          // (x) -> out
  Average,      // (x) -> out
  MaxGrad,      // (dy, x) -> dx, which may lie over x
  AverageGrad,  // (dy) -> dx
};

// Whether a maximum gives way to a value: a number to a greater one, and NaN to any number, so that NaN is the maximum
// of a window that holds nothing else.
template <class T>
constexpr bool gives_way(T maximum, T value) {
  return value > maximum || (maximum != maximum && value == value);
}

// Whether 2x2 windows tile the image.
bool pools_by_two(const Pool& pool);
bool pools_by_two(const Attrs& attrs, const Shape& x);

}  // namespace moonflow
