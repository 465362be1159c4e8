// Softmax and its logarithm on CUDA: a team of threads for each lane, which stays in registers or at least in the cache
// between its passes.
#include <cmath>

#include "kernels/cuda/exponentials.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct Softmax {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T* logits;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const auto x = team.values(logits + start, n, stride);
    const auto e = exponentials_of(x, largest_of<T>(x));
    const T scale = static_cast<T>(1 / e.sum());
    e.map([=](T value) { return value * scale; }).write(out + start);
  }
};

template <class T>
struct LogSoftmax {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T* logits;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const auto x = team.values(logits + start, n, stride);
    const T top = largest_of<T>(x);
    const T log_sum = static_cast<T>(std::log(exponentials_of(x, top).sum()));
    x.map([=](T value) { return value - top - log_sum; }).write(out + start);
  }
};

template <class T>
struct SoftmaxGrad {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T *dy, *y;
  T* dx;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const auto ds = team.values(dy + start, n, stride), ys = team.values(y + start, n, stride);
    const T dot = static_cast<T>(ds.sum([](T d, T of) { return d * of; }, ys));
    ds.map([=](T d, T of) { return of * (d - dot); }, ys).write(dx + start);
  }
};

template <class T>
struct LogSoftmaxGrad {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T *dy, *y;
  T* dx;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const auto ds = team.values(dy + start, n, stride), ys = team.values(y + start, n, stride);
    const T mass = static_cast<T>(ds.sum());
    ds.map([=](T d, T of) { return d - elementary::exp(of) * mass; }, ys).write(dx + start);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <template <class> class F>
Kernel unary() {
  return {[](KernelCall& call) {
    const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& at) { for_each_lane(at.stream, lanes, F<T>{at.input<T>(0), at.output<T>(0)}); };
    });
  }};
}

template <template <class> class F>
Kernel gradient() {
  return {[](KernelCall& call) {
    const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& at) {
        for_each_lane(at.stream, lanes, F<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0)});
      };
    });
  }};
}

}  // namespace

void add_softmax(Kernels& kernels) {
  kernels["softmax"] = {unary<Softmax>()};
  kernels["log_softmax"] = {unary<LogSoftmax>()};
  kernels["softmax_grad"] = {gradient<SoftmaxGrad>()};
  kernels["log_softmax_grad"] = {gradient<LogSoftmaxGrad>()};
}

}  // namespace moonflow::cuda
