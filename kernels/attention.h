// The inputs and sizes of attention, for all devices.
#pragma once

#include <algorithm>
#include <array>

#include "engine/op.h"

namespace moonflow::attention {

// The inputs that forward and backward begin with, and those that backward has besides.
enum Input { kQuery, kKey, kValue, kMask, kKept, kInputCount };
enum GradInput { kDOut = kInputCount, kOut, kLogSum, kDLogSum };

struct Sizes {
  int64_t batch, heads, queries, keys, width, value_width;

  Sizes(const Shape& query, const Shape& value)
      : batch(query[0]), heads(query[2]), queries(query[1]), keys(value[1]), width(query[3]), value_width(value[3]) {}
  Shape scores() const { return {batch, heads, queries, keys}; }
  // Of one of the products over all heads.
  double flops() const {
    return 2.0 * static_cast<double>(batch * heads * queries) *
           static_cast<double>(keys * std::max(width, value_width));
  }
};

// How far apart neighbours lie in a mask along batch, heads, queries and keys: 0 where it is repeated.
using MaskSteps = std::array<int64_t, 4>;

inline MaskSteps steps_of_mask(const Shape& mask) {
  MaskSteps steps{};
  int64_t step = 1;
  for (int axis = 4; axis-- > 0;) {
    const int own = axis - 4 + mask.rank();
    const int64_t size = own < 0 ? 1 : mask[own];
    steps[axis] = size == 1 ? 0 : step;
    step *= size;
  }
  return steps;
}

}  // namespace moonflow::attention
