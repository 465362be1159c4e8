// The losses that go element by element on CUDA.
#include "kernels/loss.h"

#include "kernels/cuda/block.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct SigmoidCrossEntropy {
  const T *labels, *logits;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    out[i] = loss::sigmoid_cross_entropy(labels[i], logits[i]);
  }
};

template <class T>
struct SigmoidCrossEntropyGrad {
  const T *dy, *labels, *logits;
  T* dlogits;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    dlogits[i] = dy[i] * loss::sigmoid_cross_entropy_slope(labels[i], logits[i]);
  }
};

template <class T>
struct SmoothL1 {
  const T *prediction, *label;
  T* out;
  T knee;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    out[i] = loss::smooth_l1(prediction[i] - label[i], knee);
  }
};

template <class T>
struct SmoothL1Grad {
  const T *dy, *prediction, *label;
  T* dprediction;
  T knee;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    dprediction[i] = dy[i] * loss::smooth_l1_slope(prediction[i] - label[i], knee);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// `launch_values` gets the launch's arguments, the number of elements, and the floating type as a zero.
template <class LaunchValues>
CudaKernel elementwise(LaunchValues launch_values) {
  return {{[=](KernelCall& call) {
    const int64_t count = call.outputs[0].count();
    return visit_floating(call.outputs[0].dtype, [&](auto zero) -> Launch {
      return [=](const LaunchCall& at) { launch_values(at, count, zero); };
    });
  }}};
}

template <template <class> class Loss>
Launch prepare_smooth_l1(KernelCall& call) {
  const int64_t count = call.outputs[0].count();
  const double beta = call.attrs.number("beta");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      if constexpr (std::is_same_v<Loss<T>, SmoothL1<T>>)
        for_each(at.stream, count, Loss<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0), static_cast<T>(beta)});
      else
        for_each(at.stream, count,
                 Loss<T>{at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0), static_cast<T>(beta)});
    };
  });
}

}  // namespace

void add_loss(Kernels& kernels) {
  kernels["sigmoid_cross_entropy_with_logits"] = elementwise([](const LaunchCall& at, int64_t count, auto zero) {
    using T = decltype(zero);
    for_each(at.stream, count, SigmoidCrossEntropy<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0)});
  });
  kernels["sigmoid_cross_entropy_grad"] = elementwise([](const LaunchCall& at, int64_t count, auto zero) {
    using T = decltype(zero);
    const SigmoidCrossEntropyGrad<T> f{at.input<T>(0), at.input<T>(1), at.input<T>(2), at.output<T>(0)};
    for_each(at.stream, count, f);
  });
  kernels["smooth_l1_loss"] = {{prepare_smooth_l1<SmoothL1>}};
  kernels["smooth_l1_loss_grad"] = {{prepare_smooth_l1<SmoothL1Grad>}};
}

}  // namespace moonflow::cuda
