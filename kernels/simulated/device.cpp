#include "kernels/simulated/device.h"

#include <cstdlib>
#include <string_view>

#include "kernels/cuda/obstacles.h"
#include "kernels/simulated/chain.h"

namespace moonflow::cuda {

std::unique_ptr<Device> make_simulated_device(const simulated::Options& options) {
  auto runtime = std::make_unique<simulated::SimulatedRuntime>(options);
  Kernels kernels = make_kernels();
  simulated::add_chain(kernels);
  const char* const compiler = std::getenv("MOONFLOW_SIMULATED_COMPILER");
  if (compiler == nullptr || std::string_view(compiler) != "0")
    return make_device(std::move(runtime), std::move(kernels));
  return make_device(
      std::move(runtime), std::move(kernels),
      {{"element_chain", [] { return "needs libnvrtc.so.13, which did not open: MOONFLOW_SIMULATED_COMPILER=0"; }}});
}

simulated::SimulatedRuntime& simulated_runtime(Device& device) {
  return static_cast<simulated::SimulatedRuntime&>(runtime(device));
}

}  // namespace moonflow::cuda
