// The door of libmoonflow_cuda.so.
#include "kernels/cuda/module.h"

#include "kernels/build.h"
#include "kernels/cuda/chain.h"
#include "kernels/cuda/compiler.h"
#include "kernels/cuda/cudart.h"
#include "kernels/cuda/obstacles.h"

namespace moonflow::cuda {
namespace {

std::unique_ptr<Device> open(int index) {
  std::unique_ptr<Runtime> runtime = make_cudart(index);
  Kernels kernels = make_kernels();
  const int capability = runtime->properties().capability;
  add_chain(kernels, capability);
  return make_device(std::move(runtime), std::move(kernels),
                     {{"element_chain", [capability] { return obstacle_to_compiling(capability); }}});
}

constexpr Module kModule = {{kModuleVersion, kBuild}, probe_cards, open};

}  // namespace
}  // namespace moonflow::cuda

const moonflow::cuda::Module* moonflow_cuda_module() { return &moonflow::cuda::kModule; }
