// A weight that is used several times: its gradients as one product.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// A rewrite of add: a sum of products a^T b, which is that of all a and all b, joined.
bool join_products(Rewriter& graph, NodeId sum);

}  // namespace moonflow
