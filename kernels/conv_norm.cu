// The filter and the bias of a convolution that a batch norm is folded into, on CUDA. A plan computes them once and
// keeps them, so the kernel is as plain as can be.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct FoldNorm {
  int64_t each;  // elements of a filter
  double epsilon;
  const T *filter, *gamma, *beta, *mean, *variance;
  T *folded, *bias;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const int64_t f = i / each;
    const T scale = static_cast<T>(gamma[f] / std::sqrt(static_cast<double>(variance[f]) + epsilon));
    folded[i] = filter[i] * scale;
    if (i % each == 0) bias[f] = beta[f] - mean[f] * scale;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

Launch prepare_fold(KernelCall& call) {
  const Shape& filter = call.inputs[0].shape;
  const int64_t each = filter.count(1, filter.rank());
  const double epsilon = call.attrs.number("epsilon");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=, count = filter.count()](const LaunchCall& at) {
      for_each(at.stream, count,
               FoldNorm<T>{each, epsilon, at.input<T>(0), at.input<T>(1), at.input<T>(2), at.input<T>(3),
                           at.input<T>(4), at.output<T>(0), at.output<T>(1)});
    };
  });
}

}  // namespace

void add_conv_norm(Kernels& kernels) { kernels["fold_batch_norm"] = {{prepare_fold}}; }

}  // namespace moonflow::cuda
