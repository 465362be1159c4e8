// The CUDA runtime of a card. The driver is reached through it alone, so that a machine without one only hears why.
#pragma once

#include <driver_types.h>

#include <memory>

#include "kernels/cuda.h"
#include "kernels/cuda/runtime.h"

namespace moonflow::cuda {

// Throws what CUDA says of a call, and what to do where that has ended the context.
void check(cudaError_t status);

CudaProbe probe_cards();

// `index` is that of a card of probe_cards.
std::unique_ptr<Runtime> make_cudart(int index);

}  // namespace moonflow::cuda
