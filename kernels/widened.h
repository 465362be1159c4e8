// Kernels for bfloat16 made of kernels that do not know it, on any device.
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

// How a device converts arrays between bfloat16 and float32.
struct Conversions {
  using Convert = void (*)(Stream& stream, const Conversion* arrays, int count);
  Convert widen, round;
};

// Of `kernel`, which knows no bfloat16, one that does: what is bfloat16 is widened into scratch, computed in float32,
// and rounded at the end. `is_written` tells the inputs that it changes in place; none where it is empty.
Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written, Conversions conversions);

}  // namespace moonflow
