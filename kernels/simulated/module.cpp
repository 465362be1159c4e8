// The door of libmoonflow_cuda_simulated.so, which stands in for libmoonflow_cuda.so where MOONFLOW_CUDA_MODULE names
// it: scripts are then placed on cards that there are not. It shows one thing more, for tests.
#include "kernels/cuda/module.h"

#include <atomic>

#include "kernels/build.h"
#include "kernels/simulated/device.h"

namespace moonflow::cuda {
namespace {

constexpr int kCards = 2;

std::atomic<const char*> ended_by{nullptr};  // the context, of which a process has one

CudaProbe probe() {
  const simulated::Options options;
  const Properties card = simulated::SimulatedRuntime::properties(options);
  return {std::vector<CudaCard>(kCards, {card.name, card.memory_bytes, card.capability}), ""};
}

std::unique_ptr<Device> open(int) {
  simulated::Options options;
  options.ended_by = &ended_by;
  return make_simulated_device(options);
}

constexpr Module kModule = {{kModuleVersion, kBuild}, probe, open};

}  // namespace
}  // namespace moonflow::cuda

const moonflow::cuda::Module* moonflow_cuda_module() { return &moonflow::cuda::kModule; }

// As when a kernel of somebody else in this process writes where it must not: all that is under way is lost.
extern "C" __attribute__((visibility("default"))) void moonflow_end_simulated_context() {
  moonflow::cuda::ended_by = "CUDA error 700 (cudaErrorIllegalAddress): an illegal memory access was encountered";
}
