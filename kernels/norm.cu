// Batch normalisation on CUDA: a fold over each channel, then a pass over the elements.
//
// Statistics are taken in one pass, of the distances d from the first element of the channel, in double:
//   mean = first + sum(d) / n,  variance = sum(d^2) / n - (sum(d) / n)^2
// The first element is one of the n, so the square of its distance from the mean is at most n variances, and the
// difference costs at most log2(n) + 1 of the 53 bits, however far the mean is from zero.
#include <cmath>

#include "kernels/cuda/channels.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/norm_kernels.h"

namespace moonflow::cuda {
namespace {

using cpu::Tail;

struct Sums {
  double first, second;
};

// A fold of two sums.
struct FoldSums {
  using Acc = Sums;
  MOONFLOW_DEVICE Sums start() const { return {0, 0}; }
  MOONFLOW_DEVICE Sums merge(Sums a, Sums b) const { return {a.first + b.first, a.second + b.second}; }
};

// y = (x - mean) * scale + beta. Forward and gradient agree on where a relu cuts, since both ask this.
template <class T>
struct Normalised {
  T mean, inv_std, scale, beta;
  MOONFLOW_DEVICE T h(T x) const { return (x - mean) * inv_std; }
  MOONFLOW_DEVICE T operator()(T x) const { return (x - mean) * scale + beta; }
};

// The parameters of a batch normalisation by the statistics of a batch. Without a relu the gradient has no beta.
template <class T>
struct Parameters {
  const T *mean, *inv_std, *gamma, *beta;
  MOONFLOW_DEVICE Normalised<T> of(int64_t channel) const {
    return {mean[channel], inv_std[channel], gamma[channel] * inv_std[channel], beta ? beta[channel] : T(0)};
  }
};

// ---- by the statistics of the batch --------------------------------------------------------------------------

template <class T>
struct Statistics : FoldSums {
  const T* x;
  T *mean, *inv_std;
  int64_t inner, places;
  double epsilon;

  Statistics(const T* x, T* mean, T* inv_std, const Channels& channels, double epsilon)
      : x(x), mean(mean), inv_std(inv_std), inner(channels.inner), places(channels.places), epsilon(epsilon) {}
  MOONFLOW_DEVICE double own(int64_t channel) const { return x[channel * inner]; }
  MOONFLOW_DEVICE Sums fold(Sums acc, double first, int64_t, int64_t at) const {
    const double distance = x[at] - first;
    return {acc.first + distance, acc.second + distance * distance};
  }
  MOONFLOW_DEVICE void finish(int64_t channel, Sums sums) const {
    const double n = static_cast<double>(places), off = sums.first / n, variance = sums.second / n - off * off;
    mean[channel] = static_cast<T>(own(channel) + off);
    inv_std[channel] = static_cast<T>(1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon));
  }
};

template <class T, Tail kTail>
struct Normalise {
  Channels channels;
  Parameters<T> parameters;
  const T *x, *addend;
  T* y;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    T value = parameters.of(channels.of(i))(x[i]);
    if (kTail == Tail::AddRelu) value += addend[i];
    y[i] = kTail == Tail::None || value > 0 ? value : T(0);
  }
};

// The gradient of what batch_norm_train gives, behind a relu where there is one. Where something was added before the
// relu, its gradient is an output of its own, `dsum`.
template <class T, Tail kTail>
struct Arriving {
  const T *dy, *y;
  T* dsum;
  MOONFLOW_DEVICE T first(const Normalised<T>& normalised, T x, int64_t i) const {
    if (kTail == Tail::None) return dy[i];
    if (kTail == Tail::Relu) return normalised(x) > 0 ? dy[i] : T(0);
    return dsum[i] = y[i] > 0 ? dy[i] : T(0);
  }
  MOONFLOW_DEVICE T again(const Normalised<T>& normalised, T x, int64_t i) const {
    return kTail == Tail::AddRelu ? dsum[i] : first(normalised, x, i);
  }
};

// With h = (x - mean) * inv_std, n values a channel, and a = gamma * inv_std:
//   dx = a * (d - mean(d) - h * mean(d * h)) + dmean / n - dinv_std * inv_std^2 * h / n
// of which this takes the sums, and leaves dx = a * d + first + second * h.
template <class T, Tail kTail>
struct GradSums : FoldSums {
  const T* x;
  Parameters<T> parameters;
  Arriving<T, kTail> arriving;
  const T *dmean, *dinv_std;  // may be absent
  T *dgamma, *dbeta;
  Sums* rest;
  int64_t places;

  MOONFLOW_DEVICE Normalised<T> own(int64_t channel) const { return parameters.of(channel); }
  MOONFLOW_DEVICE Sums fold(Sums acc, const Normalised<T>& normalised, int64_t, int64_t at) const {
    const T d = arriving.first(normalised, x[at], at);
    return {acc.first + d, acc.second + d * normalised.h(x[at])};
  }
  MOONFLOW_DEVICE void finish(int64_t channel, Sums sums) const {
    const double n = static_cast<double>(places), inv_std = parameters.inv_std[channel];
    const double slope = parameters.gamma[channel] * inv_std;
    dbeta[channel] = static_cast<T>(sums.first);
    dgamma[channel] = static_cast<T>(sums.second);
    rest[channel] = {-slope * sums.first / n + (dmean ? dmean[channel] / n : 0),
                     -slope * sums.second / n - (dinv_std ? dinv_std[channel] * inv_std * inv_std / n : 0)};
  }
};

template <class T, Tail kTail>
struct Grad {
  Channels channels;
  const T* x;
  Parameters<T> parameters;
  Arriving<T, kTail> arriving;
  const Sums* rest;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const int64_t channel = channels.of(i);
    const Normalised<T> normalised = parameters.of(channel);
    const T d = arriving.again(normalised, x[i], i), h = normalised.h(x[i]);
    dx[i] = normalised.scale * d + static_cast<T>(rest[channel].first) + static_cast<T>(rest[channel].second) * h;
  }
};

// ---- by given statistics -------------------------------------------------------------------------------------

template <class T>
MOONFLOW_DEVICE T inverse_deviation(T variance, double epsilon) {
  return static_cast<T>(1) / std::sqrt(variance + static_cast<T>(epsilon));
}

template <class T>
struct InferNorm {
  Channels channels;
  const T *x, *gamma, *beta, *mean, *variance;
  T* y;
  double epsilon;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const int64_t channel = channels.of(i);
    const T scale = gamma[channel] * inverse_deviation(variance[channel], epsilon);
    y[i] = (x[i] - mean[channel]) * scale + beta[channel];
  }
};

// With s = 1 / sqrt(variance + epsilon), h = (x - mean) * s:
//   dgamma = sum(dy * h), dbeta = sum(dy), dmean = -gamma * s * dbeta, dvariance = -gamma * s^2 * dgamma / 2
template <class T>
struct InferGradSums : FoldSums {
  const T *dy, *x, *gamma, *mean, *variance;
  T *dgamma, *dbeta, *dmean, *dvariance;
  double epsilon;

  MOONFLOW_DEVICE Normalised<T> own(int64_t channel) const {
    return {mean[channel], inverse_deviation(variance[channel], epsilon), T(0), T(0)};
  }
  MOONFLOW_DEVICE Sums fold(Sums acc, const Normalised<T>& normalised, int64_t, int64_t at) const {
    return {acc.first + dy[at], acc.second + dy[at] * normalised.h(x[at])};
  }
  MOONFLOW_DEVICE void finish(int64_t channel, Sums sums) const {
    const double inv_std = own(channel).inv_std, slope = gamma[channel] * inv_std;
    dbeta[channel] = static_cast<T>(sums.first);
    dgamma[channel] = static_cast<T>(sums.second);
    dmean[channel] = static_cast<T>(-slope * sums.first);
    dvariance[channel] = static_cast<T>(-slope * inv_std * sums.second / 2);
  }
};

// dx = dy * gamma * s
template <class T>
struct InferGrad {
  Channels channels;
  const T *dy, *gamma, *variance;
  T* dx;
  double epsilon;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const int64_t channel = channels.of(i);
    dx[i] = dy[i] * (gamma[channel] * inverse_deviation(variance[channel], epsilon));
  }
};

// ---- running statistics --------------------------------------------------------------------------------------

template <class T>
struct MoveStatistics {
  const FaultNote* note;
  T *moving_mean, *moving_variance;
  const T *mean, *inv_std;
  double momentum, epsilon, n;
  MOONFLOW_DEVICE void operator()(int64_t channel) const {
    if (note->found) return;
    const double square = 1 / (double{inv_std[channel]} * inv_std[channel]) - epsilon;
    const double unbiased = (square < 0 ? 0 : square) * n / (n > 2 ? n - 1 : 1);
    moving_mean[channel] = static_cast<T>(moving_mean[channel] * momentum + mean[channel] * (1 - momentum));
    moving_variance[channel] = static_cast<T>(moving_variance[channel] * momentum + unbiased * (1 - momentum));
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <Tail kTail>
Launch prepare_train(KernelCall& call) {
  const Channels channels(call, 0);
  const FoldShape shape(channels.groups());
  const double epsilon = call.attrs.number("epsilon");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    call.scratch_bytes = shape.scratch_bytes<Statistics<T>>();
    return [=](const LaunchCall& at) {
      const T *x = at.input<T>(0), *addend = kTail == Tail::AddRelu ? at.input<T>(3) : nullptr;
      T *mean = at.output<T>(1), *inv_std = at.output<T>(2);
      fold(at.stream, shape, Statistics<T>(x, mean, inv_std, channels, epsilon), at.scratch);
      const Parameters<T> parameters{mean, inv_std, at.input<T>(1), at.input<T>(2)};
      for_each(at.stream, channels.count(), Normalise<T, kTail>{channels, parameters, x, addend, at.output<T>(0)});
    };
  });
}

template <Tail kTail>
Launch prepare_train_grad(KernelCall& call) {
  constexpr bool kFused = kTail != Tail::None, kAdded = kTail == Tail::AddRelu;
  const Channels channels(call, 0);
  const FoldShape shape(channels.groups());
  const bool has_dmean = !kFused && call.has(5), has_dinv_std = !kFused && call.has(6);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const int64_t rest_bytes = channels.channels * static_cast<int64_t>(sizeof(Sums));
    call.scratch_bytes = rest_bytes + shape.scratch_bytes<GradSums<T, kTail>>();
    return [=](const LaunchCall& at) {
      const T* x = at.input<T>(0);
      const Parameters<T> parameters{at.input<T>(kFused ? 3 : 2), at.input<T>(kFused ? 4 : 3), at.input<T>(1),
                                     kFused ? at.input<T>(2) : nullptr};
      const Arriving<T, kTail> arriving{at.input<T>(kFused ? 5 : 4), kAdded ? at.input<T>(6) : nullptr,
                                        kAdded ? at.output<T>(3) : nullptr};
      const T *dmean = has_dmean ? at.input<T>(5) : nullptr, *dinv_std = has_dinv_std ? at.input<T>(6) : nullptr;
      Sums* const rest = static_cast<Sums*>(at.scratch);
      const GradSums<T, kTail> sums{
          {}, x, parameters, arriving, dmean, dinv_std, at.output<T>(1), at.output<T>(2), rest, channels.places};
      fold(at.stream, shape, sums, static_cast<char*>(at.scratch) + rest_bytes);
      for_each(at.stream, channels.count(), Grad<T, kTail>{channels, x, parameters, arriving, rest, at.output<T>(0)});
    };
  });
}

Launch prepare_infer(KernelCall& call) {
  const Channels channels(call, 0);
  const double epsilon = call.attrs.number("epsilon");
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      for_each(at.stream, channels.count(),
               InferNorm<T>{channels, at.input<T>(0), at.input<T>(1), at.input<T>(2), at.input<T>(3), at.input<T>(4),
                            at.output<T>(0), epsilon});
    };
  });
}

Launch prepare_infer_grad(KernelCall& call) {
  const Channels channels(call, 1);
  const FoldShape shape(channels.groups());
  const double epsilon = call.attrs.number("epsilon");
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    call.scratch_bytes = shape.scratch_bytes<InferGradSums<T>>();
    return [=](const LaunchCall& at) {
      const T *dy = at.input<T>(0), *gamma = at.input<T>(2), *variance = at.input<T>(4);
      const InferGradSums<T> sums{{},
                                  dy,
                                  at.input<T>(1),
                                  gamma,
                                  at.input<T>(3),
                                  variance,
                                  at.output<T>(1),
                                  at.output<T>(2),
                                  at.output<T>(3),
                                  at.output<T>(4),
                                  epsilon};
      fold(at.stream, shape, sums, at.scratch);
      for_each(at.stream, channels.count(), InferGrad<T>{channels, dy, gamma, variance, at.output<T>(0), epsilon});
    };
  });
}

Launch prepare_moving_statistics(KernelCall& call) {
  const int64_t channels = call.inputs[0].count();
  const double momentum = call.attrs.number("momentum"), epsilon = call.attrs.number("epsilon");
  const double n = static_cast<double>(call.attrs.integer("count"));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      for_each(at.stream, channels,
               MoveStatistics<T>{fault_note(at.stream), static_cast<T*>(at.inputs[0]), static_cast<T*>(at.inputs[1]),
                                 at.input<T>(2), at.input<T>(3), momentum, epsilon, n});
    };
  });
}

CudaKernel along_channels(Launch (*prepare)(KernelCall&)) {
  return {{prepare, [](LayoutCall& call) { keep_channels_last(call, call.attrs.integer("axis")); }}};
}

}  // namespace

void add_norm(Kernels& kernels) {
  kernels["batch_norm_train"] = along_channels(prepare_train<Tail::None>);
  kernels["batch_norm_relu"] = along_channels(prepare_train<Tail::Relu>);
  kernels["batch_norm_add_relu"] = along_channels(prepare_train<Tail::AddRelu>);
  kernels["batch_norm_train_grad"] = along_channels(prepare_train_grad<Tail::None>);
  kernels["batch_norm_relu_grad"] = along_channels(prepare_train_grad<Tail::Relu>);
  kernels["batch_norm_add_relu_grad"] = along_channels(prepare_train_grad<Tail::AddRelu>);
  kernels["batch_norm_infer"] = along_channels(prepare_infer);
  kernels["batch_norm_infer_grad"] = along_channels(prepare_infer_grad);
  kernels["moving_statistics_update"] = {{prepare_moving_statistics}};
}

}  // namespace moonflow::cuda
