#include "kernels/cuda/cards.h"

#include <cuda_runtime_api.h>

namespace moonflow::cuda {
namespace {

std::string version_text(int version) { return text(version / 1000, ".", version % 1000 / 10); }

// Whatever the runtime says, it is no card for us. What people can do about it differs.
std::string reason_of(cudaError_t status) {
  int driver = 0;  // stays so without one
  cudaDriverGetVersion(&driver);
  const std::string said = text(" (CUDA error ", static_cast<int>(status), ": ", cudaGetErrorString(status), ")");
  switch (status) {
    case cudaErrorStubLibrary:
      return "the loader finds the CUDA toolkit's stub in place of the driver's libcuda.so.1; take the folder of stubs "
             "out "
             "of LD_LIBRARY_PATH" +
             said;
    case cudaErrorInsufficientDriver:
      if (driver == 0) return "no NVIDIA driver is installed" + said;
      return text("the NVIDIA driver serves CUDA ", version_text(driver), " and this module wants ",
                  version_text(CUDART_VERSION), "; update the driver") +
             said;
    case cudaSuccess:
      return "the NVIDIA driver finds no card";
    case cudaErrorNoDevice:
      return "the NVIDIA driver finds no card; nvidia-smi lists them, and CUDA_VISIBLE_DEVICES may hide them" + said;
    default:
      return "the NVIDIA driver does not start; see what nvidia-smi says" + said;
  }
}

}  // namespace

CudaProbe probe_cards() {
  CudaProbe probe;
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  for (int i = 0; i < count && status == cudaSuccess; ++i) {
    cudaDeviceProp card;
    status = cudaGetDeviceProperties(&card, i);
    if (status == cudaSuccess)
      probe.cards.push_back({card.name, static_cast<int64_t>(card.totalGlobalMem), card.major * 10 + card.minor});
  }
  if (status != cudaSuccess) probe.cards.clear();
  if (probe.cards.empty()) probe.reason = reason_of(status);
  cudaGetLastError();  // it would come up again at this thread's next call
  return probe;
}

}  // namespace moonflow::cuda
