// Softmax and its logarithm on CUDA: a warp for each lane, which stays in the cache between its passes.
#include <cmath>
#include <limits>

#include "kernels/cuda/block.h"
#include "kernels/cuda/kernels.h"
#include "kernels/elementary.h"
#include "kernels/lanes.h"

namespace moonflow::cuda {
namespace {

constexpr int kWarps = 8;  // of a block

// Calls the lane's functor for each lane, in all threads of the warp that has it.
template <class F>
struct ForEachLane {
  static constexpr int kThreads = kWarps * kWarp;
  F f;
  Lanes lanes;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t lane = block.index() * kWarps + block.thread() / kWarp;
    if (lane < lanes.count) f(block, lanes.start(lane), lanes.n, lanes.stride);
  }
};

// The sum of f(i) over the places of a lane, in double as on the CPU; the same in all threads.
template <class Block, class F>
MOONFLOW_DEVICE double sum_over(const Block& block, int64_t n, F f) {
  double sum = 0;
  for (int64_t i = block.thread() % kWarp; i < n; i += kWarp) sum += f(i);
  return over_warp(block, sum, Sum());
}

template <class Block, class T>
MOONFLOW_DEVICE T largest_of(const Block& block, const T* x, int64_t n, int64_t stride) {
  T top = -std::numeric_limits<T>::infinity();
  for (int64_t i = block.thread() % kWarp; i < n; i += kWarp) top = Largest()(top, x[i * stride]);
  return over_warp(block, top, Largest());
}

template <class T>
struct Softmax {
  const T* logits;
  T* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t start, int64_t n, int64_t stride) const {
    const T* const x = logits + start;
    const T top = largest_of(block, x, n, stride);
    const double sum = sum_over(block, n, [=](int64_t i) { return elementary::exp(x[i * stride] - top); });
    const T scale = static_cast<T>(1 / sum);
    for (int64_t i = block.thread() % kWarp; i < n; i += kWarp)
      out[start + i * stride] = elementary::exp(x[i * stride] - top) * scale;
  }
};

template <class T>
struct LogSoftmax {
  const T* logits;
  T* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t start, int64_t n, int64_t stride) const {
    const T* const x = logits + start;
    const T top = largest_of(block, x, n, stride);
    const double sum = sum_over(block, n, [=](int64_t i) { return elementary::exp(x[i * stride] - top); });
    const T log_sum = static_cast<T>(std::log(sum));
    for (int64_t i = block.thread() % kWarp; i < n; i += kWarp)
      out[start + i * stride] = x[i * stride] - top - log_sum;
  }
};

template <class T>
struct SoftmaxGrad {
  const T *dy, *y;
  T* dx;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t start, int64_t n, int64_t stride) const {
    const T *const dy_lane = dy + start, *const y_lane = y + start;
    const double dot = sum_over(block, n, [=](int64_t i) { return double{dy_lane[i * stride]} * y_lane[i * stride]; });
    for (int64_t i = block.thread() % kWarp; i < n; i += kWarp)
      dx[start + i * stride] = y_lane[i * stride] * (dy_lane[i * stride] - static_cast<T>(dot));
  }
};

template <class T>
struct LogSoftmaxGrad {
  const T *dy, *y;
  T* dx;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t start, int64_t n, int64_t stride) const {
    const T *const dy_lane = dy + start, *const y_lane = y + start;
    const T mass = static_cast<T>(sum_over(block, n, [=](int64_t i) { return double{dy_lane[i * stride]}; }));
    for (int64_t i = block.thread() % kWarp; i < n; i += kWarp)
      dx[start + i * stride] = dy_lane[i * stride] - elementary::exp(y_lane[i * stride]) * mass;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class F>
void for_each_lane(Stream& stream, const Lanes& lanes, const F& f) {
  if (lanes.count * lanes.n > 0) launch(stream, (lanes.count + kWarps - 1) / kWarps, ForEachLane<F>{f, lanes});
}

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
