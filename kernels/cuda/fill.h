// One value for all elements of an array on the card.
#pragma once

#include "engine/device.h"

namespace moonflow::cuda {

// `value` is one that the dtype has.
void fill(Stream& stream, DType dtype, void* to, int64_t count, double value);

}  // namespace moonflow::cuda
