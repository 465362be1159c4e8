// Chains of element-wise ops on a card, compiled while a script runs; the simulated device has none.
#pragma once

#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {

void add_chain(Kernels& kernels);

}  // namespace moonflow::cuda
