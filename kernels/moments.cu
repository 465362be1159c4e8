// Mean and variance over any axes on CUDA, with their gradient: two folds, the second of the distances from the mean,
// so no variance comes out negative.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

// The mean in T, and before it is rounded.
template <class T>
struct Mean {
  using Acc = double;
  const T* x;
  T* mean;
  double* exact;
  int64_t count;

  MOONFLOW_DEVICE double start() const { return 0; }
  MOONFLOW_DEVICE int own(int64_t) const { return 0; }
  MOONFLOW_DEVICE double fold(double acc, int, int64_t, int64_t at) const { return acc + x[at]; }
  MOONFLOW_DEVICE double merge(double a, double b) const { return a + b; }
  MOONFLOW_DEVICE void finish(int64_t k, double sum) const {
    exact[k] = sum / static_cast<double>(count);
    mean[k] = static_cast<T>(exact[k]);
  }
};

template <class T>
struct Variance {
  using Acc = double;
  const T* x;
  const double* mean;
  T* variance;
  int64_t count;

  MOONFLOW_DEVICE double start() const { return 0; }
  MOONFLOW_DEVICE double own(int64_t k) const { return mean[k]; }
  MOONFLOW_DEVICE double fold(double acc, double center, int64_t, int64_t at) const {
    return acc + (x[at] - center) * (x[at] - center);
  }
  MOONFLOW_DEVICE double merge(double a, double b) const { return a + b; }
  MOONFLOW_DEVICE void finish(int64_t k, double sum) const {
    variance[k] = static_cast<T>(sum / static_cast<double>(count));
  }
};

template <class T>
struct MomentsGrad {
  FoldShape shape;
  const T *x, *mean, *dmean, *dvariance;  // the latter two may be absent
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t e) const {
    int64_t k;
    const int64_t at = shape.element(e, k);
    const T n = static_cast<T>(shape.count);
    const T constant = dmean ? dmean[k] / n : T(0), slope = dvariance ? 2 * dvariance[k] / n : T(0);
    dx[at] = constant + slope * (x[at] - mean[k]);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

FoldShape shape_of(const KernelCall& call) {
  const Shape& x = call.inputs[0].shape;
  const Ints& axes = call.attrs.ints("axes");
  std::vector<bool> averaged(x.rank(), axes.empty());
  for (const int64_t axis : axes) averaged[wrap_axis(axis, x.rank())] = true;
  return FoldShape(reduce::Groups(x, averaged));
}

Launch prepare_moments(KernelCall& call) {
  const FoldShape shape = shape_of(call);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const int64_t exact_bytes = shape.outputs * static_cast<int64_t>(sizeof(double));
    call.scratch_bytes = exact_bytes + shape.scratch_bytes<Mean<T>>();
    return [=](const LaunchCall& at) {
      double* const exact = static_cast<double*>(at.scratch);
      void* const parts = exact + shape.outputs;
      fold(at.stream, shape, Mean<T>{at.input<T>(0), at.output<T>(0), exact, shape.count}, parts);
      fold(at.stream, shape, Variance<T>{at.input<T>(0), exact, at.output<T>(1), shape.count}, parts);
    };
  });
}

Launch prepare_moments_grad(KernelCall& call) {
  const FoldShape shape = shape_of(call);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      for_each(at.stream, shape.outputs * shape.count,
               MomentsGrad<T>{shape, at.input<T>(0), at.input<T>(1), at.input<T>(2), at.input<T>(3), at.output<T>(0)});
    };
  });
}

}  // namespace

void add_moments(Kernels& kernels) {
  kernels["moments"] = {{prepare_moments}};
  kernels["moments_grad"] = {{prepare_moments_grad}};
}

}  // namespace moonflow::cuda
