// The door of libmoonflow_cuda_simulated.so, which stands in for libmoonflow_cuda.so where MOONFLOW_CUDA_MODULE names
// it: scripts are then placed on cards that there are not.
#include "kernels/cuda/module.h"

#include "kernels/cuda/build.h"
#include "kernels/simulated/device.h"

namespace moonflow::cuda {
namespace {

constexpr int kCards = 2;

CudaProbe probe() {
  const simulated::Options options;
  const Properties card = simulated::SimulatedRuntime::properties(options);
  return {std::vector<CudaCard>(kCards, {card.name, card.memory_bytes, card.capability}), ""};
}

std::unique_ptr<Device> open(int) { return make_simulated_device(); }

constexpr Module kModule = {kModuleVersion, kModuleBuild, probe, open};

}  // namespace
}  // namespace moonflow::cuda

const moonflow::cuda::Module* moonflow_cuda_module() { return &moonflow::cuda::kModule; }
