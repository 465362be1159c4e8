#include "kernels/simulated/device.h"

#include "kernels/cuda/device.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_simulated_device(const simulated::Options& options) {
  return make_device(std::make_unique<simulated::SimulatedRuntime>(options), make_kernels());
}

simulated::SimulatedRuntime& simulated_runtime(Device& device) {
  return static_cast<simulated::SimulatedRuntime&>(runtime(device));
}

}  // namespace moonflow::cuda
