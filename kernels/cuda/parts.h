// Sums of which several blocks have had a part each.
#pragma once

#include "kernels/cuda/elements.h"

namespace moonflow::cuda {

// Adds the parts of sum i in their order, in double, so that no two runs differ; `parts` holds them part by part.
template <class Part, class Out>
struct AddParts {
  const Part* parts;
  Out* out;
  int64_t count, sums;  // of parts, and in each of them
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    double sum = 0;
    for (int64_t part = 0; part < count; ++part) sum += parts[part * sums + i];
    out[i] = Out(static_cast<Computed<Out>>(sum));
  }
};

}  // namespace moonflow::cuda
