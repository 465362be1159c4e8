// The gradients of a convolution in TF32 by kernels of our own, where they are shorter than what the library has: of a
// few channels over a batch of small images, whose channels come last. An empty launch where the library is to be
// asked.
#pragma once

#include "kernels/cuda/convolution.h"

namespace moonflow::cuda {

// For a call of kind InputGrad. It takes no scratch.
ConvolutionLaunch input_gradient(Device& device, const ConvolutionCall& call);

// For a call of kind FilterGrad. `in_rows`: the result is in the order of NCHW. Says how much scratch a launch needs.
ConvolutionLaunch filter_gradient(Device& device, const ConvolutionCall& call, bool in_rows, int64_t& scratch_bytes);

}  // namespace moonflow::cuda
