// What other families know of cutting and joining.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// A rewrite of add: a sum of what pads have made of all parts of a value, which is the parts joined.
bool join_slices(Rewriter& graph, NodeId sum);

}  // namespace moonflow
