// The last layer of a classifier, its loss and the way back through both, in one step.
#pragma once

#include "engine/plan.h"

namespace moonflow {

// A rewrite of the softmax cross entropies with their gradients, whose logits come from a small dense layer and go
// nowhere else. Where launches are what costs.
bool fuse_classifier(Rewriter& graph, NodeId loss);

}  // namespace moonflow
