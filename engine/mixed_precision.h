// Automatic mixed precision: ops that are faster in a narrow dtype compute in it, and everything else stays as it was
// traced.
#pragma once

#include "engine/graph.h"

namespace moonflow {

// The same graph, where each op that computes in `narrow`, and for which that pays on `device`, is given it, and ops
// that follow are too, so that a value that is stored narrow stays so along a chain. Feeds, variables and taps keep
// their types, and so do gradients that reach an update: products give float32 where nobody wants less. What the ops
// say of themselves (OpDef::narrow) is all that this knows of them. A graph that computes too little for the device to
// gain stays in float32, whose products may then round as much as they would have: it allows TF32. Without dead nodes.
Graph with_mixed_precision(const Graph& graph, DType narrow, Device& device);

// Whether the op of a node keeps the digits of float32, in mixed precision and where TF32 is allowed: its attribute
// "precise" says so.
bool is_precise(const Node& node);

}  // namespace moonflow
