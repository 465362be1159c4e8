// A tensor seen along one axis.
#pragma once

#include "engine/tensor.h"

namespace moonflow {

// `count` lanes of n values each, `stride` elements apart.
struct Lanes {
  int64_t count, n, stride;

  Lanes(const Shape& shape, int64_t axis_attr) {
    const int axis = wrap_axis(axis_attr, shape.rank());
    n = shape[axis];
    stride = shape.count(axis + 1, shape.rank());
    count = shape.count(0, axis) * stride;
  }
  constexpr int64_t start(int64_t lane) const { return lane / stride * stride * n + lane % stride; }
};

}  // namespace moonflow
