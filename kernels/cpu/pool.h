// The ways of the CPU to compute a pooling: loops, and a kernel for gradients of windows of 2x2.
#pragma once

#include "kernels/pool.h"

namespace moonflow::cpu {

// For both floating dtypes and any sizes, in any layout with a channel form. `relu` is for MaxGrad: nothing passes
// where the maximum is not positive.
Launch pool_loops(const Pool& pool, PoolKind kind, bool relu, KernelCall& call);

// MaxGrad where 2 x 2 windows tile the image and the channels are innermost. float32.
bool pools_by_two(const Pool& pool, const ChannelForm& form);
Launch max_grad_by_two(const Pool& pool, const ChannelForm& form, bool relu);

}  // namespace moonflow::cpu
