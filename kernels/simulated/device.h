// A CUDA device made of nothing but the host: the kernels are those of the card, compiled for the processor.
#pragma once

#include <memory>

#include "engine/device.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_simulated_device();

}  // namespace moonflow::cuda
