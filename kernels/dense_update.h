// The updates of a training step by gradient descent in one step, with dense layers whose gradients are never stored.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// Whether `update`, an sgd_update, is left to the rewrite below, and whether its gradient is too.
bool joins_descent(const Rewriter& graph, NodeId update);
bool brings_layer(const Rewriter& graph, NodeId update);
// A rewrite of sgd_update, for when the others have been tried: takes all updates of its step with it.
bool fuse_descent(Rewriter& graph, NodeId update);

}  // namespace moonflow
