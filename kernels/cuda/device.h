// The CUDA device of the engine: written once, over a runtime that is CUDA's own or the simulated one. Also what our
// CUDA code needs of one of its streams.
#pragma once

#include <memory>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/runtime.h"

namespace moonflow::cuda {

// MOONFLOW_CUDA_GRAPH=0 in the environment makes a device that records nothing and waits for each launch, so that the
// step that fails is the one that is blamed. MOONFLOW_CUDA_BRANCHES=0 makes one whose plans keep to one branch, and
// MOONFLOW_CUDA_SMALL_IN_TF32=0 one where mixed precision is narrow in plans of any size.
std::unique_ptr<Device> make_device(std::unique_ptr<Runtime> runtime, Kernels kernels);

// Of a device, or a stream, that make_device has given.
Runtime& runtime(Device& device);
StreamHandle native(Stream& stream);
// Before launches of a kernel on the current card that have so many bytes of shared memory for a block: throws where
// the card has fewer.
void allow_shared(const void* kernel, int64_t bytes);
// So many blocks as a launch takes them: throws where they are more than a card starts at once.
unsigned checked_blocks(int64_t blocks);
// After each launch on the stream, by us or by a library: throws when it was refused.
void check_launch(Stream& stream);

}  // namespace moonflow::cuda
