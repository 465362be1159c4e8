// A CUDA device made of nothing but the host: the device, its kernels and its schedules are those of the card.
#pragma once

#include <memory>

#include "engine/device.h"
#include "kernels/simulated/runtime.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_simulated_device(const simulated::Options& options = {});
simulated::SimulatedRuntime& simulated_runtime(Device& device);

}  // namespace moonflow::cuda
