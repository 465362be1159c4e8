// Ways between the narrow dtypes and float32 for whole arrays, and with them the kernel of every op that knows neither
// bfloat16 nor float16.
#pragma once

#include <functional>

#include "engine/op.h"

namespace moonflow::cpu {

// On all threads that pay. The arrays do not overlap.
void widen(const BFloat16* from, float* to, int64_t count);

// Of `kernel`, which knows no narrow dtype, one that does: what is narrow is widened into scratch, computed in float32,
// and rounded at the end. `is_written` tells the inputs that it changes in place; none where it is empty.
Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written);

}  // namespace moonflow::cpu
