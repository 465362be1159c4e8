#include "kernels/cuda/runtime.h"

namespace moonflow::cuda {

void check_launch() {
  const cudaError_t status = cudaGetLastError();
  require(status == cudaSuccess, ErrorCode::Internal, "the launch was refused: ", cudaGetErrorString(status));
}

}  // namespace moonflow::cuda
