#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {

Kernels make_kernels() {
  Kernels kernels;
  add_attention(kernels);
  add_bias(kernels);
  add_binary(kernels);
  add_classifier(kernels);
  add_conv(kernels);
  add_conv_norm(kernels);
  add_conv_pool(kernels);
  add_cross_entropy(kernels);
  add_ctc(kernels);
  add_cumsum(kernels);
  add_dense_back(kernels);
  add_dense_update(kernels);
  add_elementwise(kernels);
  add_fill(kernels);
  add_fourier(kernels);
  add_grid_sample(kernels);
  add_index(kernels);
  add_l2_normalize(kernels);
  add_layer_norm(kernels);
  add_loss(kernels);
  add_loss_scale(kernels);
  add_matmul(kernels);
  add_moments(kernels);
  add_norm(kernels);
  add_pool(kernels);
  add_quantized_conv(kernels);
  add_random(kernels);
  add_reduce(kernels);
  add_resample(kernels);
  add_resample_axis(kernels);
  add_rows_update(kernels);
  add_scatter(kernels);
  add_schedule(kernels);
  add_shape(kernels);
  add_slice(kernels);
  add_softmax(kernels);
  add_sort(kernels);
  add_update(kernels);
  return kernels;
}

}  // namespace moonflow::cuda
