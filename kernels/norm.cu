// Batch normalisation on CUDA: two sums for each channel, then a pass over the elements. What is narrow is
// computed in float32, as are its statistics and parameters.
//
// Statistics are taken in one pass, of the distances d from the first element of the channel, in double:
//   mean = first + sum(d) / n,  variance = sum(d^2) / n - (sum(d) / n)^2
// The first element is one of the n, so the square of its distance from the mean is at most n variances, and the
// difference costs at most log2(n) + 1 of the 53 bits, however far the mean is from zero. Runs of some elements are
// added in the precision of the values, of the distances from the run's first element, which costs as few of their bits
// for the same reason, and moved to the channel's:
//   sum(d) = s + k t,  sum(d^2) = q + 2 t s + k t^2   for k elements with sums s, q, that begin t from the first
#include <cmath>

#include "kernels/activation.h"
#include "kernels/cuda/channels.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/kernels.h"
#include "kernels/norm.h"

namespace moonflow::cuda {
namespace {

// y = (x - mean) * scale + beta. Forward and gradient agree on where a relu cuts, since both ask this.
template <class Number>
struct Normalised {
  Number mean, inv_std, scale, beta;
  MOONFLOW_DEVICE Number operator()(Number x) const { return (x - mean) * scale + beta; }
};

// Without a relu a gradient has no beta. Given statistics are mean and variance, which has an epsilon.
template <class Number>
struct Parameters {
  const Number *mean, *inv_std, *gamma, *beta;
  const Number* variance = nullptr;
  double epsilon = 0;

  MOONFLOW_DEVICE Normalised<Number> of(int64_t channel) const {
    const Number spread = variance ? Number(1) / std::sqrt(variance[channel] + static_cast<Number>(epsilon))
                                   : inv_std[channel];
    return {mean[channel], spread, gamma[channel] * spread, beta ? beta[channel] : Number(0)};
  }
};

// ---- by the statistics of the batch --------------------------------------------------------------------------

template <class T>
struct Statistics {
  using Number = Computed<T>;
  using Own = Number;  // the channel's first element
  static constexpr int kN = kPack<T>, kChunk = 2 * kPacksAtOnce<T>;
  struct Read {
    Loaded<T, kN> xs[kChunk];
  };
  const T* x;
  Number *mean, *inv_std;
  int64_t inner, places;
  double epsilon;

  bool aligned() const {
    return is_aligned<T, kN>(x);
  }
  MOONFLOW_DEVICE Number own(int64_t channel) const { return Number(x[channel * inner]); }

  template <class Chunk>
  MOONFLOW_DEVICE Read load(const Chunk& chunk) const {
    Read loaded{};
    chunk.load(x, loaded.xs);
    return loaded;
  }
  template <int kLanes, class Chunk>
  MOONFLOW_DEVICE void fold(Sums (&sums)[kLanes], const Number (&own)[kLanes], const Chunk& chunk,
                            const Read& loaded) const {
    if (chunk.full)
      run<true>(sums, own, chunk, loaded.xs);
    else
      run<false>(sums, own, chunk, loaded.xs);
  }
  MOONFLOW_DEVICE void finish(int64_t channel, Sums sums) const {
    const double n = static_cast<double>(places), off = sums.first / n, variance = sums.second / n - off * off;
    mean[channel] = static_cast<Number>(double{own(channel)} + off);
    inv_std[channel] = static_cast<Number>(1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon));
  }

 private:
  template <bool kFull, int kLanes, class Chunk>
  MOONFLOW_DEVICE static void run(Sums (&sums)[kLanes], const Number (&own)[kLanes], const Chunk& chunk,
                                  const Loaded<T, kN> (&xs)[kChunk]) {
    const Pack<T, kN> start = xs[0].pack();
    Number sum[kLanes] = {}, squares[kLanes] = {};
    int count[kLanes] = {};
    MOONFLOW_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const Pack<T, kN> pack = xs[i].pack();
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v) {
        const int lane = v % kLanes;
        const bool there = kFull || v < chunk.valid(i);
        const Number distance = there ? Number(pack.values[v]) - Number(start.values[lane]) : Number(0);
        sum[lane] += distance;
        squares[lane] += distance * distance;
        count[lane] += there;
      }
    }
    MOONFLOW_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) {
      const double off = double{Number(start.values[lane])} - own[lane], far = count[lane] * off;
      sums[lane].first += sum[lane] + far;
      sums[lane].second += squares[lane] + off * (2.0 * sum[lane] + far);
    }
  }
};

// What follows the normalisation, or the sum.
template <Tail kTail>
constexpr Activation kActivation = kTail == Tail::None    ? Activation::None
                                   : kTail == Tail::Relu6 ? Activation::Relu6
                                                          : Activation::Relu;

template <class T, Tail kTail>
struct Normalise {
  using Number = Computed<T>;
  using Own = Normalised<Number>;
  static constexpr int kN = kPack<T>, kChunk = kPacksAtOnce<T>;
  struct Read {
    Loaded<T, kN> xs[kChunk], addends[kTail == Tail::AddRelu ? kChunk : 1];
  };
  Parameters<Number> parameters;
  const T *x, *addend;
  T* y;

  bool aligned() const {
    return is_aligned<T, kN>(x) && is_aligned<T, kN>(y) && (kTail != Tail::AddRelu || is_aligned<T, kN>(addend));
  }
  MOONFLOW_DEVICE Own own(int64_t channel) const { return parameters.of(channel); }

  template <class Chunk>
  MOONFLOW_DEVICE Read load(const Chunk& chunk) const {
    Read loaded{};
    chunk.load(x, loaded.xs);
    if constexpr (kTail == Tail::AddRelu) chunk.load(addend, loaded.addends);
    return loaded;
  }
  template <int kLanes, class Chunk>
  MOONFLOW_DEVICE void map(const Own (&own)[kLanes], const Chunk& chunk, const Read& loaded) const {
    Pack<T, kN> ys[kChunk];
    MOONFLOW_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const Pack<T, kN> xs = loaded.xs[i].pack(), addends = loaded.addends[kTail == Tail::AddRelu ? i : 0].pack();
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v) {
        Number value = own[v % kLanes](Number(xs.values[v]));
        if constexpr (kTail == Tail::AddRelu) value += Number(addends.values[v]);
        ys[i].values[v] = static_cast<T>(activated(kActivation<kTail>, value));
      }
    }
    chunk.store(ys, y);
  }
};

// The sums of d and d * (x - mean), where d arrives at what the normalisation gives: of dy what a relu lets through,
// which is asked of x. Where something was added before the relu, y is asked, d is an output of its own, and what
// arrives may be the sum of two gradients.
template <class T, Tail kTail>
struct GradSums {
  using Number = Computed<T>;
  using Own = Normalised<Number>;
  static constexpr int kN = kPack<T>, kChunk = kPacksAtOnce<T>;
  struct Read {
    static constexpr int kAdded = kTail == Tail::AddRelu ? kChunk : 1;
    Loaded<T, kN> xs[kChunk], ds[kChunk], ys[kAdded], more[kAdded];
  };
  const T *x, *dy, *y, *more_dy;  // the last may be absent
  T* dsum;
  Parameters<Number> parameters;

  bool aligned() const {
    const bool added = kTail != Tail::AddRelu ||
                       (is_aligned<T, kN>(y) && is_aligned<T, kN>(dsum) && is_aligned<T, kN>(more_dy));
    return added && is_aligned<T, kN>(x) && is_aligned<T, kN>(dy);
  }
  MOONFLOW_DEVICE Own own(int64_t channel) const { return parameters.of(channel); }

  template <class Chunk>
  MOONFLOW_DEVICE Read load(const Chunk& chunk) const {
    Read loaded{};
    chunk.load(x, loaded.xs);
    chunk.load(dy, loaded.ds);
    if constexpr (kTail == Tail::AddRelu) {
      chunk.load(y, loaded.ys);
      if (more_dy) chunk.load(more_dy, loaded.more);
    }
    return loaded;
  }
  template <int kLanes, class Chunk>
  MOONFLOW_DEVICE void fold(Sums (&sums)[kLanes], const Own (&own)[kLanes], const Chunk& chunk,
                            const Read& loaded) const {
    Pack<T, kN> dsums[kChunk];
    Number first[kLanes] = {}, second[kLanes] = {};
    MOONFLOW_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      constexpr bool kAdded = kTail == Tail::AddRelu;
      const Pack<T, kN> xs = loaded.xs[i].pack(), ds = loaded.ds[i].pack(), ys = loaded.ys[kAdded ? i : 0].pack(),
                        more = loaded.more[kAdded ? i : 0].pack();
      const int there = chunk.full ? kN : chunk.valid(i);
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v) {
        const Own& normalised = own[v % kLanes];
        const Number value = Number(xs.values[v]);
        Number d = Number(ds.values[v]);
        if constexpr (kAdded) {
          if (more_dy) d += Number(more.values[v]);
          if (!passes(kActivation<kTail>, Number(ys.values[v]))) d = 0;
          dsums[i].values[v] = T(d);
        }
        if (v >= there || (!kAdded && !passes(kActivation<kTail>, normalised(value)))) d = 0;
        first[v % kLanes] += d;
        second[v % kLanes] += d * (value - normalised.mean);
      }
    }
    if constexpr (kTail == Tail::AddRelu) chunk.store(dsums, dsum);
    MOONFLOW_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] = sums[lane] + Sums{first[lane], second[lane]};
  }
};

// With h = (x - mean) * inv_std, n values a channel, and a = gamma * inv_std:
//   dx = a * (d - mean(d) - h * mean(d * h)) + dmean / n - dinv_std * inv_std^2 * h / n
// of which this takes the sums, and leaves dx = a * d + first + second * (x - mean).
template <class T, Tail kTail>
struct TrainGradSums : GradSums<T, kTail> {
  using Number = Computed<T>;
  const Number *dmean, *dinv_std;  // may be absent
  Number *dgamma, *dbeta;
  Sums* rest;
  int64_t places;

  MOONFLOW_DEVICE void finish(int64_t channel, Sums sums) const {
    const double n = static_cast<double>(places), inv_std = this->parameters.inv_std[channel];
    const double slope = this->parameters.gamma[channel] * inv_std;
    const double along_h = sums.second * inv_std;
    dbeta[channel] = static_cast<Number>(sums.first);
    dgamma[channel] = static_cast<Number>(along_h);
    rest[channel] = {-slope * sums.first / n + (dmean ? dmean[channel] / n : 0),
                     (-slope * along_h / n - (dinv_std ? dinv_std[channel] * inv_std * inv_std / n : 0)) * inv_std};
  }
};

template <class T, Tail kTail>
struct TrainGrad {
  using Number = Computed<T>;
  struct Own {
    Normalised<Number> normalised;
    Number constant, slope;
  };
  static constexpr int kN = kPack<T>, kChunk = kPacksAtOnce<T>;
  struct Read {
    Loaded<T, kN> xs[kChunk], ds[kChunk];
  };
  const T *x, *d;  // behind a sum d is what has passed the relu already
  Parameters<Number> parameters;
  const Sums* rest;
  T* dx;

  bool aligned() const {
    return is_aligned<T, kN>(x) && is_aligned<T, kN>(d) && is_aligned<T, kN>(dx);
  }
  MOONFLOW_DEVICE Own own(int64_t channel) const {
    const Sums of = rest[channel];
    return {parameters.of(channel), static_cast<Number>(of.first), static_cast<Number>(of.second)};
  }

  template <class Chunk>
  MOONFLOW_DEVICE Read load(const Chunk& chunk) const {
    Read loaded{};
    chunk.load(x, loaded.xs);
    chunk.load(d, loaded.ds);
    return loaded;
  }
  template <int kLanes, class Chunk>
  MOONFLOW_DEVICE void map(const Own (&own)[kLanes], const Chunk& chunk, const Read& loaded) const {
    Pack<T, kN> dxs[kChunk];
    MOONFLOW_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const Pack<T, kN> xs = loaded.xs[i].pack(), ds = loaded.ds[i].pack();
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v) {
        const Own& of = own[v % kLanes];
        const Number value = Number(xs.values[v]);
        Number arriving = Number(ds.values[v]);
        if (kTail != Tail::AddRelu && !passes(kActivation<kTail>, of.normalised(value))) arriving = 0;
        dxs[i].values[v] = static_cast<T>(of.normalised.scale * arriving + of.constant +
                                          of.slope * (value - of.normalised.mean));
      }
    }
    chunk.store(dxs, dx);
  }
};

// ---- by given statistics -------------------------------------------------------------------------------------

// With s = 1 / sqrt(variance + epsilon), h = (x - mean) * s:
//   dgamma = sum(dy * h), dbeta = sum(dy), dmean = -gamma * s * dbeta, dvariance = -gamma * s^2 * dgamma / 2
template <class T>
struct InferGradSums : GradSums<T, Tail::None> {
  using Number = Computed<T>;
  Number *dgamma, *dbeta, *dmean, *dvariance;

  MOONFLOW_DEVICE void finish(int64_t channel, Sums sums) const {
    const double inv_std = this->own(channel).inv_std, slope = this->parameters.gamma[channel] * inv_std;
    const double along_h = sums.second * inv_std;
    dbeta[channel] = static_cast<Number>(sums.first);
    dgamma[channel] = static_cast<Number>(along_h);
    dmean[channel] = static_cast<Number>(-slope * sums.first);
    dvariance[channel] = static_cast<Number>(-slope * inv_std * along_h / 2);
  }
};

// dx = dy * gamma * s
template <class T>
struct InferGrad {
  using Number = Computed<T>;
  using Own = Number;
  static constexpr int kN = kPack<T>, kChunk = kPacksAtOnce<T>;
  struct Read {
    Loaded<T, kN> ds[kChunk];
  };
  const T* dy;
  Parameters<Number> parameters;
  T* dx;

  bool aligned() const {
    return is_aligned<T, kN>(dy) && is_aligned<T, kN>(dx);
  }
  MOONFLOW_DEVICE Number own(int64_t channel) const { return parameters.of(channel).scale; }

  template <class Chunk>
  MOONFLOW_DEVICE Read load(const Chunk& chunk) const {
    Read loaded{};
    chunk.load(dy, loaded.ds);
    return loaded;
  }
  template <int kLanes, class Chunk>
  MOONFLOW_DEVICE void map(const Number (&own)[kLanes], const Chunk& chunk, const Read& loaded) const {
    Pack<T, kN> dxs[kChunk];
    MOONFLOW_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const Pack<T, kN> ds = loaded.ds[i].pack();
      MOONFLOW_UNROLL
      for (int v = 0; v < kN; ++v) dxs[i].values[v] = static_cast<T>(Number(ds.values[v]) * own[v % kLanes]);
    }
    chunk.store(dxs, dx);
  }
};

// ---- running statistics --------------------------------------------------------------------------------------

template <class T>
struct MoveStatistics {
  const FaultNote* note;
  T *moving_mean, *moving_variance;
  const T *mean, *inv_std;
  const float* finite;
  double momentum, epsilon, n;
  MOONFLOW_DEVICE void operator()(int64_t channel) const {
    if (note->found || (finite && *finite == 0)) return;
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
  const double epsilon = call.attrs.number("epsilon");
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Number = Computed<T>;
    const auto folds = fold_tiling<kPack<T>>(channels), maps = map_tiling<kPack<T>>(channels);
    call.scratch_bytes = fold_scratch_bytes(folds);
    return [=](const LaunchCall& at) {
      const T *x = at.input<T>(0), *addend = kTail == Tail::AddRelu ? at.input<T>(3) : nullptr;
      Number *mean = at.output<Number>(1), *inv_std = at.output<Number>(2);
      fold_channels(at.stream, folds, Statistics<T>{x, mean, inv_std, channels.inner, channels.places, epsilon},
                    at.scratch);
      const Parameters<Number> parameters{mean, inv_std, at.input<Number>(1), at.input<Number>(2)};
      map_channels(at.stream, maps, Normalise<T, kTail>{parameters, x, addend, at.output<T>(0)});
    };
  });
}

template <Tail kTail>
Launch prepare_train_grad(KernelCall& call) {
  constexpr bool kFused = kTail != Tail::None, kAdded = kTail == Tail::AddRelu;
  const Channels channels(call, 0);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Number = Computed<T>;
    const auto folds = fold_tiling<kPack<T>>(channels), maps = map_tiling<kPack<T>>(channels);
    const int64_t rest_bytes = channels.channels * static_cast<int64_t>(sizeof(Sums));
    call.scratch_bytes = rest_bytes + fold_scratch_bytes(folds);
    return [=](const LaunchCall& at) {
      const T *x = at.input<T>(0), *dy = at.input<T>(kFused ? 5 : 4);
      const Parameters<Number> parameters{at.input<Number>(kFused ? 3 : 2), at.input<Number>(kFused ? 4 : 3),
                                          at.input<Number>(1), kFused ? at.input<Number>(2) : nullptr};
      T* const dsum = kAdded ? at.output<T>(3) : nullptr;
      Sums* const rest = static_cast<Sums*>(at.scratch);
      const TrainGradSums<T, kTail> sums{
          {x, dy, kAdded ? at.input<T>(6) : nullptr, kAdded ? at.input<T>(7) : nullptr, dsum, parameters},
          kFused ? nullptr : at.input<Number>(5),
          kFused ? nullptr : at.input<Number>(6),
          at.output<Number>(1),
          at.output<Number>(2),
          rest,
          channels.places};
      fold_channels(at.stream, folds, sums, static_cast<char*>(at.scratch) + rest_bytes);
      map_channels(at.stream, maps,
                   TrainGrad<T, kTail>{x, kAdded ? dsum : dy, parameters, rest, at.output<T>(0)});
    };
  });
}

Launch prepare_infer(KernelCall& call) {
  const Channels channels(call, 0);
  const double epsilon = call.attrs.number("epsilon");
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Number = Computed<T>;
    const auto maps = map_tiling<kPack<T>>(channels);
    return [=](const LaunchCall& at) {
      const Parameters<Number> parameters{at.input<Number>(3), nullptr,             at.input<Number>(1),
                                          at.input<Number>(2), at.input<Number>(4), epsilon};
      map_channels(at.stream, maps,
                   Normalise<T, Tail::None>{parameters, at.input<T>(0), nullptr, at.output<T>(0)});
    };
  });
}

Launch prepare_infer_grad(KernelCall& call) {
  const Channels channels(call, 1);
  const double epsilon = call.attrs.number("epsilon");
  return visit_fractions(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    using Number = Computed<T>;
    const auto folds = fold_tiling<kPack<T>>(channels), maps = map_tiling<kPack<T>>(channels);
    call.scratch_bytes = fold_scratch_bytes(folds);
    return [=](const LaunchCall& at) {
      const T *dy = at.input<T>(0), *x = at.input<T>(1);
      const Parameters<Number> parameters{at.input<Number>(3), nullptr,             at.input<Number>(2),
                                          nullptr,             at.input<Number>(4), epsilon};
      const InferGradSums<T> sums{{x, dy, nullptr, nullptr, nullptr, parameters},
                                  at.output<Number>(1),
                                  at.output<Number>(2),
                                  at.output<Number>(3),
                                  at.output<Number>(4)};
      fold_channels(at.stream, folds, sums, at.scratch);
      map_channels(at.stream, maps, InferGrad<T>{dy, parameters, at.output<T>(0)});
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
                                 at.input<T>(2), at.input<T>(3), at.input<float>(4), momentum, epsilon, n});
    };
  });
}

CudaKernel along_channels(Launch (*prepare)(KernelCall&)) {
  return {{prepare, [](LayoutCall& call) { keep_channels_last(call, call.attrs.integer("axis")); }}, true};
}

}  // namespace

void add_norm(Kernels& kernels) {
  kernels["batch_norm_train"] = along_channels(prepare_train<Tail::None>);
  kernels["batch_norm_relu"] = along_channels(prepare_train<Tail::Relu>);
  kernels["batch_norm_relu6"] = along_channels(prepare_train<Tail::Relu6>);
  kernels["batch_norm_add_relu"] = along_channels(prepare_train<Tail::AddRelu>);
  kernels["batch_norm_train_grad"] = along_channels(prepare_train_grad<Tail::None>);
  kernels["batch_norm_relu_grad"] = along_channels(prepare_train_grad<Tail::Relu>);
  kernels["batch_norm_relu6_grad"] = along_channels(prepare_train_grad<Tail::Relu6>);
  kernels["batch_norm_add_relu_grad"] = along_channels(prepare_train_grad<Tail::AddRelu>);
  kernels["batch_norm_infer"] = along_channels(prepare_infer);
  kernels["batch_norm_infer_grad"] = along_channels(prepare_infer_grad);
  kernels["moving_statistics_update"] = {{prepare_moving_statistics}};
}

}  // namespace moonflow::cuda
