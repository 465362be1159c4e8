// Chains of element-wise ops on a card, compiled while a script runs.
#pragma once

#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {

// For a card of this capability.
void add_chain(Kernels& kernels, int capability);

}  // namespace moonflow::cuda
