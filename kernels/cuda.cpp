#include "kernels/cuda.h"

#include "kernels/cuda/module.h"

namespace moonflow {
namespace {

const cuda::Module& module() {
  return static_cast<const cuda::Module&>(
      open_module({"CUDA module", "libmoonflow_cuda.so", "MOONFLOW_CUDA_MODULE", "moonflow_cuda_module",
                   cuda::kModuleVersion, "build with -DMOONFLOW_CUDA=ON where there is a CUDA toolkit"}));
}

}  // namespace

CudaProbe probe_cuda() {
  try {
    return module().probe();
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

std::unique_ptr<Device> open_cuda_device(int index) {
  const CudaProbe probe = module().probe();
  const int count = static_cast<int>(probe.cards.size());
  require(count > 0, ErrorCode::Unsupported, probe.reason);
  require(index >= 0 && index < count, ErrorCode::OutOfRange, "there is no gpu ", index, ": this machine has ",
          count == 1 ? "one, gpu 0" : text("gpu 0 to ", count - 1));
  return module().open(index);
}

}  // namespace moonflow
