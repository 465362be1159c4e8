// Two dense layers of a few rows in one step.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// A rewrite of dense: the layer before it, when nobody else reads what is between them.
bool fuse_dense_pair(Rewriter& graph, NodeId dense);

}  // namespace moonflow
