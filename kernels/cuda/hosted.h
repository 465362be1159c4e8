// Kernels of ops that are the host's work whatever the device of their job: what they are given goes to memory of the
// host and what they give comes from there, in the order of the stream, which nobody waits for.
#pragma once

#include "engine/op.h"

namespace moonflow::cuda {

// Of an op that is `on_host`. Where its own kernel fails the run does, as after a fault.
Kernel hosted(const OpDef& op);

}  // namespace moonflow::cuda
