// Kernels for the narrow dtypes made of kernels that do not know them, on any device.
#pragma once

#include <functional>

#include "engine/op.h"

namespace moonflow {

// One array into another; they do not overlap.
struct Conversion {
  const void* from;
  void* to;
  int64_t count;
};

// How a device converts arrays between a narrow dtype and float32.
struct Conversions {
  using Convert = void (*)(Stream& stream, const Conversion* arrays, int count);
  Convert widen, round;
};
using ConversionsOf = Conversions (*)(DType narrow);

// Of `kernel`, which knows no narrow dtype, one that does: what is narrow is widened into scratch, computed in float32,
// and rounded at the end. `is_written` tells the inputs that it changes in place; none where it is empty.
Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written, ConversionsOf conversions);

}  // namespace moonflow
