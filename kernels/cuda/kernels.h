// The CUDA kernels by the name of their op. One function per family, each in the .cu file of its name.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "engine/op.h"

namespace moonflow::cuda {

struct CudaKernel : Kernel {
  // It knows bfloat16 and float16. Others are given them widened to float32, and what they give is rounded.
  bool narrow = false;
  bool is_widened = false;  // it has been, on its first use
};
using Kernels = std::map<std::string, CudaKernel, std::less<>>;

// All of them.
Kernels make_kernels();

// The kernels of a device, every one of which takes the narrow dtypes. Any thread may ask.
class KernelTable {
 public:
  explicit KernelTable(Kernels kernels) : kernels_(std::move(kernels)) {}
  const Kernel& of(const OpDef& op) const;  // an empty one where there is none
  bool computes_narrow(const OpDef& op) const;  // it was made for that, and is not only widened

 private:
  CudaKernel* find(const OpDef& op) const;

  mutable std::mutex mutex_;
  mutable Kernels kernels_;  // each is widened, or made of the host's, when its op is first seen
};

void add_attention(Kernels& kernels);
void add_bias(Kernels& kernels);
void add_binary(Kernels& kernels);
void add_classifier(Kernels& kernels);
void add_conv(Kernels& kernels);
void add_conv_norm(Kernels& kernels);
void add_conv_pool(Kernels& kernels);
void add_cross_entropy(Kernels& kernels);
void add_ctc(Kernels& kernels);
void add_cumsum(Kernels& kernels);
void add_dense_back(Kernels& kernels);
void add_dense_update(Kernels& kernels);
void add_elementwise(Kernels& kernels);
void add_fill(Kernels& kernels);
void add_fourier(Kernels& kernels);
void add_grid_sample(Kernels& kernels);
void add_index(Kernels& kernels);
void add_l2_normalize(Kernels& kernels);
void add_layer_norm(Kernels& kernels);
void add_loss(Kernels& kernels);
void add_loss_scale(Kernels& kernels);
void add_matmul(Kernels& kernels);
void add_moments(Kernels& kernels);
void add_norm(Kernels& kernels);
void add_pool(Kernels& kernels);
void add_quantized_conv(Kernels& kernels);
void add_random(Kernels& kernels);
void add_reduce(Kernels& kernels);
void add_resample(Kernels& kernels);
void add_resample_axis(Kernels& kernels);
void add_rows_update(Kernels& kernels);
void add_scatter(Kernels& kernels);
void add_schedule(Kernels& kernels);
void add_shape(Kernels& kernels);
void add_slice(Kernels& kernels);
void add_softmax(Kernels& kernels);
void add_sort(Kernels& kernels);
void add_update(Kernels& kernels);

}  // namespace moonflow::cuda
