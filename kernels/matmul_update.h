// The weight of a dense layer and its update by gradient descent in one step.
#pragma once

#include "engine/plan.h"

namespace moonflow {

// A rewrite of sgd_update: its gradient is a product that nobody else reads, so it needs not be stored.
bool fuse_product_into_update(Rewriter& graph, NodeId update);

}  // namespace moonflow
