// The last layer of a classifier, its loss and the way back through both, in one step.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

namespace classifier {
// The inputs of dense_softmax_cross_entropy.
enum Input { kX, kWeight, kLabels, kBias, kY, kMask, kDy };

// The matmul dlogits weight: the gradient of the layer's input. kNone where nobody wants it.
NodeId product_back(const Rewriter& graph, ValueId dlogits, ValueId weight);
}  // namespace classifier

// A rewrite of the softmax cross entropies with their gradients, whose logits come from a small dense layer and are
// read by nothing else, though they may be tapped. Where launches are what costs.
bool fuse_classifier(Rewriter& graph, NodeId loss);
// A rewrite of dense, where they are not and there are few classes.
bool fuse_classifier_rows(Rewriter& graph, NodeId dense);

// The CPU's kernel for few classes by integer labels; empty for what it is not made for.
Launch prepare_classifier_rows(KernelCall& call);

}  // namespace moonflow
