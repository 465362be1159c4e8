// What our CUDA code asks of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/device.h"

namespace moonflow::cuda {

cudaStream_t native(Stream& stream);
// Throws when the last launch of this thread was refused.
void check_launch();

}  // namespace moonflow::cuda
