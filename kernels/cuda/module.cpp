// The door of libmoonflow_cuda.so.
#include "kernels/cuda/module.h"

#include "kernels/cuda/build.h"
#include "kernels/cuda/chain.h"
#include "kernels/cuda/cudart.h"
#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

std::unique_ptr<Device> open(int index) {
  Kernels kernels = make_kernels();
  add_chain(kernels);
  return make_device(make_cudart(index), std::move(kernels));
}

constexpr Module kModule = {kModuleVersion, kModuleBuild, probe_cards, open};

}  // namespace
}  // namespace moonflow::cuda

const moonflow::cuda::Module* moonflow_cuda_module() { return &moonflow::cuda::kModule; }
