// The last layer of a classifier and its loss in one step.
#pragma once

#include "engine/plan.h"

namespace moonflow {

// A rewrite of dense.
bool fuse_dense_loss(Rewriter& graph, NodeId dense);

void add_dense_loss(Catalog& catalog);

}  // namespace moonflow
