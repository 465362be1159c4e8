// The card that most CUDA tests run on: simulated in cuda_tests, the machine's own in gpu_tests.
#pragma once

#include <memory>

#include "engine/device.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_given_card();

// As long as this lives, kernels have no more shared memory for a block than on cards of capability 7.5, which is the
// least. A real card has what it has.
struct SmallBlocks {
  SmallBlocks();
  ~SmallBlocks();
};

// Lets a kernel on the stream find a fault, as a loss does that is given a label outside the classes.
void find_fault(Device& card, Stream& stream);

}  // namespace moonflow::cuda
