// The kernel of element_chain where nothing is compiled: the kernels of its ops, one after the other.
#pragma once

#include "kernels/cuda/kernels.h"

namespace moonflow::cuda::simulated {

// Made of the kernels that are there.
void add_chain(Kernels& kernels);

}  // namespace moonflow::cuda::simulated
