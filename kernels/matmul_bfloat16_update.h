// The weight of a dense layer and its update by gradient descent in one step, in mixed precision.
#pragma once

#include "engine/plan.h"

namespace moonflow {

// A rewrite of sgd_update: its gradient is a product in bfloat16 that nobody else reads, so it needs not be stored.
bool fuse_bfloat16_update(Rewriter& graph, NodeId update);

}  // namespace moonflow
