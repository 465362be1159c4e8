// Ways between bfloat16 and float32 for whole arrays, and with them the kernel of every op that knows no bfloat16.
#pragma once

#include <functional>

#include "engine/op.h"

namespace moonflow::cpu {

// On all threads that pay. The arrays do not overlap.
void widen(const BFloat16* from, float* to, int64_t count);
void round(const float* from, BFloat16* to, int64_t count);

// Of `kernel`, which knows no bfloat16, one that does: what is bfloat16 is widened into scratch, computed in float32,
// and rounded at the end. `is_written` tells the inputs that it changes in place; none where it is empty.
Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written);

}  // namespace moonflow::cpu
