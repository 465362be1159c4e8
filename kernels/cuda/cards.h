// What cards the CUDA runtime sees, or why it sees none.
#pragma once

#include "kernels/cuda.h"

namespace moonflow::cuda {

CudaProbe probe_cards();

}  // namespace moonflow::cuda
