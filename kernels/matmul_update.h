// The weight of a dense layer and its update by gradient descent in one step.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// Rewrites of sgd_update: its gradient is a product that nobody else reads, so it needs not be stored. The second one
// takes products whose factors are rounded to bfloat16, with sums in float32.
bool fuse_product_into_update(Rewriter& graph, NodeId update);
bool fuse_bfloat16_product_into_update(Rewriter& graph, NodeId update);

}  // namespace moonflow
