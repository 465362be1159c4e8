// CUDA's context: the process' side of a card. There is one, whoever uses it, and a kernel that does wrong ends it for
// all.
#pragma once

namespace moonflow::cuda {

// What there is to do then; it follows the text of what has ended the context.
constexpr const char* kContextIsLost =
    "; this process cannot use the gpu any more: start it anew, or place its jobs with flow.scope.placement(\"cpu\", "
    "\"0:0\")";

}  // namespace moonflow::cuda
