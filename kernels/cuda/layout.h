// Values from one layout of the CUDA device into another.
#pragma once

#include "engine/device.h"

namespace moonflow::cuda {

// Of `type` between rows and channels last.
Launch reorder(const TensorType& type, const Layout& from, const Layout& to);

}  // namespace moonflow::cuda
