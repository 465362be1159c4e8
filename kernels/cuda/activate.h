// An activation behind what a library has stored. Libraries have some of their own, which make 0 of a NaN: ours let it
// through, as a product's and a convolution's own kernels do.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/elements.h"

namespace moonflow::cuda {

template <class T>
struct Activate {
  Activation activation;
  T* y;
  MOONFLOW_DEVICE void operator()(int64_t i) const { y[i] = T(activated(activation, Computed<T>(y[i]))); }
};

inline void activate(Stream& stream, Activation activation, DType dtype, int64_t count, void* y) {
  if (activation == Activation::None) return;
  visit_fractions(dtype, [&](auto zero) {
    using T = decltype(zero);
    for_each(stream, count, Activate<T>{activation, static_cast<T*>(y)});
  });
}

}  // namespace moonflow::cuda
