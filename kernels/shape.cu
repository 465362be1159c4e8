// Orders and repetitions on CUDA: box copies. Views are the memory of their input and never launched.
#include "kernels/cuda/box.h"

namespace moonflow::cuda {

void add_shape(Kernels& kernels) {
  kernels["transpose"] = copy_kernel(transpose_box);
  kernels["reverse"] = copy_kernel(reverse_box);
  kernels["broadcast_to"] = copy_kernel(broadcast_box);
  kernels["tile"] = copy_kernel(tile_box);
}

}  // namespace moonflow::cuda
