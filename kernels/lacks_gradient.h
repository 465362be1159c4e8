// What stands as the gradient of an op that has one which nobody has written, and that in these words.
#pragma once

#include <vector>

#include "engine/op.h"

namespace moonflow {

// An empty Grad means that nothing passes, as if the gradient were 0. Of a gradient that would be a wrong number
// without a word, so whoever wants to differentiate it is told. A type of its own, so that tests know it.
struct LacksGradient {
  const char* text =
      "a gradient of a gradient goes through it, and it has none of its own; make what it is the gradient of from "
      "simpler ops, or keep that from the loss with flow.stop_gradient";

  std::vector<ValueId> operator()(GradCall&) const { fail(ErrorCode::Unsupported, text); }
};

}  // namespace moonflow
