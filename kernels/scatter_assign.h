// A variable that is given itself with other rows at some places, as what a net remembers of a text word by word is:
// those rows alone are written.
#pragma once

#include "engine/rewriter.h"

namespace moonflow {

// A rewrite of assign, whose value is then neither made nor read. Writers come last, so indices are checked by an op of
// its own: what finds faults must not write.
bool fuse_scatter_into_assign(Rewriter& graph, NodeId assign);

// The ops that it makes.
void add_scatter_assign(Catalog& catalog);

}  // namespace moonflow
