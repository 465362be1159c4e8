// The compiler: graph in, plan out. Runs on the tracing thread.
#pragma once

#include "engine/plan.h"

namespace moonflow {

// `job` names the plan in messages. Throws the first fault found, with op and site: a missing kernel, a refused dtype.
std::shared_ptr<Plan> compile(const Graph& graph, const std::string& job, const std::shared_ptr<Device>& device,
                              Variables& variables);

}  // namespace moonflow
