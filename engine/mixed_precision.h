// Automatic mixed precision: ops that are faster in bfloat16 compute in it, and everything else stays as it was traced.
#pragma once

#include "engine/graph.h"

namespace moonflow {

// The same graph, where each op that computes in bfloat16, and for which that pays on `device`, is given bfloat16, and
// ops that follow are too, so that a value that is stored as bfloat16 stays it along a chain. Feeds, variables and taps
// keep their types, and so do gradients that reach an update: products give float32 where nobody wants less. What the
// ops say of themselves (OpDef::bfloat16) is all that this knows of them. Without dead nodes.
Graph with_mixed_precision(const Graph& graph, const Device& device);

}  // namespace moonflow
