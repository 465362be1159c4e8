// The update of a table by the rows that a step has picked from it, where its gradient would be zeros but for these.
#pragma once

#include "engine/rewriter.h"
#include "kernels/types.h"

namespace moonflow {

// The inputs of such an op are those that its rule has for one variable (kernels/update_rules.h), with a row of dy for
// each pick in place of the gradient, and then these.
template <class Rule>
struct RowsInput {
  enum { kIndices = Rule::kInputs, kOrder };
};

// A rewrite of an update by a rule that leaves elements without a gradient as they are: sgd_update becomes
// rows_sgd_update. Its gradient, the input of this number, is then neither stored nor read.
template <int gradient>
bool fuse_rows_into_update(Rewriter& graph, NodeId update);

}  // namespace moonflow
