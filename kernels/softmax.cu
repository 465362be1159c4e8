// Softmax and its logarithm on CUDA: a team of threads for each lane, which stays in the cache between its passes.
#include <cmath>

#include "kernels/cuda/exponentials.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct Softmax {
  const T* logits;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const T* const x = logits + start;
    const T top = largest_of(team, x, n, stride);
    const double sum = sum_of_exponentials(team, x, n, stride, top);
    const T scale = static_cast<T>(1 / sum);
    for (int64_t i = team.thread(); i < n; i += team.size())
      out[start + i * stride] = elementary::exp(x[i * stride] - top) * scale;
  }
};

template <class T>
struct LogSoftmax {
  const T* logits;
  T* out;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const T* const x = logits + start;
    const T top = largest_of(team, x, n, stride);
    const double sum = sum_of_exponentials(team, x, n, stride, top);
    const T log_sum = static_cast<T>(std::log(sum));
    for (int64_t i = team.thread(); i < n; i += team.size()) out[start + i * stride] = x[i * stride] - top - log_sum;
  }
};

template <class T>
struct SoftmaxGrad {
  const T *dy, *y;
  T* dx;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const T *const dy_lane = dy + start, *const y_lane = y + start;
    const double dot = team.sum(n, [=](int64_t i) { return double{dy_lane[i * stride]} * y_lane[i * stride]; });
    for (int64_t i = team.thread(); i < n; i += team.size())
      dx[start + i * stride] = y_lane[i * stride] * (dy_lane[i * stride] - static_cast<T>(dot));
  }
};

template <class T>
struct LogSoftmaxGrad {
  const T *dy, *y;
  T* dx;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const T *const dy_lane = dy + start, *const y_lane = y + start;
    const T mass = static_cast<T>(team.sum(n, [=](int64_t i) { return double{dy_lane[i * stride]}; }));
    for (int64_t i = team.thread(); i < n; i += team.size())
      dx[start + i * stride] = dy_lane[i * stride] - elementary::exp(y_lane[i * stride]) * mass;
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
