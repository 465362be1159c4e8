// Where the elements of a strided value are: axes as plain data, which a kernel can take along.
#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/cuda/divisor.h"

namespace moonflow::cuda {

// At most kMost axes, outermost first; element `index` of their product lies at offset_of(index).
template <int kMost>
struct Axes {
  int rank = 0;
  LongDivisor sizes[kMost];
  int64_t steps[kMost] = {};

  void append(int64_t size, int64_t step) {
    sizes[rank] = LongDivisor(size);
    steps[rank++] = step;
  }
  MOONFLOW_BOTH int64_t offset_of(int64_t index) const {
    int64_t offset = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      int64_t place;
      index = sizes[axis].quotient(index, place);
      offset += place * steps[axis];
    }
    return rank > 0 ? offset + index * steps[0] : offset;
  }
};

}  // namespace moonflow::cuda
