// Layer normalisation on CUDA: a team of threads for each row. Every variance is taken in two passes over the row, as
// the mean of squared distances from the mean, with sums in double as on the CPU. Distances are taken from the mean as
// it is stored, and what that was rounded by is taken off their squares.
#include <cmath>
#include <limits>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/teams.h"

namespace moonflow::cuda {
namespace {

// A parameter with a value for each place of a row.
template <class T>
struct WholeRow {
  const T* values;
  MOONFLOW_DEVICE T at(int64_t i) const { return values[i]; }
  template <class Held>
  MOONFLOW_DEVICE Pack<T, kHeldTogether> pack(const Held& held) const {
    return held.read(values);
  }
};

// A parameter that repeats every `period` values of a row; where there is none, one value.
template <class T>
struct Repeated {
  const T* values;
  LongDivisor period;
  T otherwise;
  MOONFLOW_DEVICE T at(int64_t i) const {
    if (values == nullptr) return otherwise;
    int64_t place;
    period.quotient(i, place);
    return values[place];
  }
  template <class Held>
  MOONFLOW_DEVICE Pack<T, kHeldTogether> pack(const Held& held) const {
    Pack<T, kHeldTogether> pack;
    MOONFLOW_UNROLL
    for (int v = 0; v < kHeldTogether; ++v) pack.values[v] = at(held.at(v));
    return pack;
  }
};

// The mean. Of rows that are held some neighbours are added in T, where values far from zero lose their digits; their
// distances from what that gives do not.
template <class T, class Team, class Values>
MOONFLOW_DEVICE double mean_of(const Team&, const Values& values, int64_t n) {
  const double count = static_cast<double>(n), mean = values.sum() / count;
  if constexpr (Team::kHeld > 0) {
    const T near = static_cast<T>(mean);
    const double off = values.sum([=](T value) { return value - near; }) / count;
    if (off - off == 0) return near + off;  // unless something is infinite
  }
  return mean;
}

// The sum of squares. Of rows that are held they are in T, unless that has no room for them.
template <class T, class Team, class Values>
MOONFLOW_DEVICE double squares_of(const Team&, const Values& values, int64_t n) {
  if constexpr (Team::kHeld > 0) {
    const double sum = values.sum([](T value) { return value * value; });
    const double least = static_cast<double>(n) * std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
    if (sum > least && sum <= std::numeric_limits<double>::max()) return sum;
  }
  return values.sum([](T value) { return double{value} * value; });
}

template <class T, class Parameter>
struct LayerNorm {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T* x;
  Parameter gamma, beta;
  T *y, *mean, *inv_std;
  double epsilon;
  bool centred;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const auto values = team.values(x + start, n, 1);
    const double count = static_cast<double>(n), centre = centred ? mean_of<T>(team, values, n) : 0;
    const T m = static_cast<T>(centre);
    const auto distances = values.map([=](T value) { return value - m; });
    const double squares = squares_of<T>(team, distances, n);
    const double variance = squares / count - (centre - m) * (centre - m);
    const T s = static_cast<T>(1 / std::sqrt((variance < 0 ? 0 : variance) + epsilon));
    if (team.thread() == 0) {
      mean[row] = m;
      inv_std[row] = s;
    }
    distances.map([=](T distance, T scale, T shift) { return distance * s * scale + shift; }, gamma, beta)
        .write(y + start);
  }
};

// With h = (x - mean) * inv_std, g = dy * gamma, n values a row:
//   dx = inv_std * (g - mean(g) - h * mean(g * h)) + dmean / n - dinv_std * inv_std^2 * h / n
// About 0 the mean depends on nothing: without mean(g) and dmean.
template <class T, class Parameter>
struct LayerNormGrad {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T *x, *mean, *inv_std, *dy;
  Parameter gamma;
  const T *dmean, *dinv_std;  // may be absent
  T* dx;
  bool centred;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, int64_t start, int64_t n, int64_t) const {
    const auto values = team.values(x + start, n, 1), ds = team.values(dy + start, n, 1);
    const T m = mean[row], s = inv_std[row];
    const double count = static_cast<double>(n);
    const auto h = values.map([=](T value) { return (value - m) * s; });
    const auto g = ds.map([](T d, T scale) { return d * scale; }, gamma);
    const double sum = centred ? g.sum() : 0, along_h = g.sum([](T of, T at) { return of * at; }, h);
    const T constant = static_cast<T>(-s * sum / count + (dmean ? dmean[row] / count : 0));
    const T along = static_cast<T>(-s * along_h / count - (dinv_std ? dinv_std[row] * s * s / count : 0));
    g.map([=](T of, T at) { return s * of + constant + along * at; }, h).write(dx + start);
  }
};

struct Sums {
  double dgamma, dbeta;
};

// The sums over everything that shares a parameter.
template <class T>
struct ParameterGrad {
  using Acc = Sums;
  const T *x, *mean, *inv_std, *dy;
  T *dgamma, *dbeta;
  LongDivisor n;  // values of a row

  MOONFLOW_DEVICE Sums start() const { return {0, 0}; }
  MOONFLOW_DEVICE int own(int64_t) const { return 0; }
  MOONFLOW_DEVICE Sums fold(Sums acc, int, int64_t, int64_t at) const {
    const int64_t row = n.quotient(at);
    const double d = dy[at];
    return {acc.dgamma + d * (x[at] - mean[row]) * inv_std[row], acc.dbeta + d};
  }
  MOONFLOW_DEVICE Sums merge(Sums a, Sums b) const { return {a.dgamma + b.dgamma, a.dbeta + b.dbeta}; }
  MOONFLOW_DEVICE void finish(int64_t k, Sums sums) const {
    dgamma[k] = static_cast<T>(sums.dgamma);
    dbeta[k] = static_cast<T>(sums.dbeta);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// The rows of x, whose values are neighbours.
Lanes rows_of(const KernelCall& call) {
  const Shape& x = call.inputs[0].shape;
  const int axis = wrap_axis(call.attrs.integer("begin_norm_axis"), x.rank());
  return Lanes(Shape{x.count(0, axis), x.count(axis, x.rank())}, 1);
}

// Optional input `i` as a parameter; its address comes with the launch.
LongDivisor period_of(const KernelCall& call, int i) { return LongDivisor(call.has(i) ? call.inputs[i].count() : 1); }
bool is_whole_row(const KernelCall& call, int i, const Lanes& rows) {
  return call.has(i) && call.inputs[i].count() == rows.n;
}

Launch prepare_layer_norm(KernelCall& call) {
  const Lanes rows = rows_of(call);
  const double epsilon = call.attrs.number("epsilon");
  const bool centred = call.attrs.flag("centred");
  const bool whole = is_whole_row(call, 1, rows) && is_whole_row(call, 2, rows);
  const LongDivisor scale_period = period_of(call, 1), shift_period = period_of(call, 2);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const auto start = [=](const LaunchCall& at, const auto& gamma, const auto& beta) {
      for_each_lane(at.stream, rows,
                    LayerNorm<T, std::decay_t<decltype(gamma)>>{at.input<T>(0), gamma, beta, at.output<T>(0),
                                                                at.output<T>(1), at.output<T>(2), epsilon, centred});
    };
    if (whole)
      return [=](const LaunchCall& at) { start(at, WholeRow<T>{at.input<T>(1)}, WholeRow<T>{at.input<T>(2)}); };
    return [=](const LaunchCall& at) {
      start(at, Repeated<T>{at.input<T>(1), scale_period, T(1)}, Repeated<T>{at.input<T>(2), shift_period, T(0)});
    };
  });
}

Launch prepare_layer_norm_grad(KernelCall& call) {
  const Lanes rows = rows_of(call);
  const bool centred = call.attrs.flag("centred"), whole = is_whole_row(call, 4, rows);
  const LongDivisor period = period_of(call, 4);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const auto start = [=](const LaunchCall& at, const auto& gamma) {
      for_each_lane(at.stream, rows,
                    LayerNormGrad<T, std::decay_t<decltype(gamma)>>{
                        at.input<T>(0), at.input<T>(1), at.input<T>(2), at.input<T>(3), gamma,
                        centred ? at.input<T>(5) : nullptr, at.input<T>(6), at.output<T>(0), centred});
    };
    if (whole) return [=](const LaunchCall& at) { start(at, WholeRow<T>{at.input<T>(4)}); };
    return [=](const LaunchCall& at) { start(at, Repeated<T>{at.input<T>(4), period, T(1)}); };
  });
}

Launch prepare_parameter_grad(KernelCall& call) {
  const int64_t n = rows_of(call).n, period = call.outputs[0].count();
  const int64_t repeats = call.inputs[0].count() / std::max<int64_t>(period, 1);
  const FoldShape shape(reduce::Groups({repeats, period}, {true, false}));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    call.scratch_bytes = shape.scratch_bytes<ParameterGrad<T>>();
    return [=](const LaunchCall& at) {
      const ParameterGrad<T> f{at.input<T>(0),  at.input<T>(1),  at.input<T>(2), at.input<T>(3),
                               at.output<T>(0), at.output<T>(1), LongDivisor(n)};
      fold(at.stream, shape, f, at.scratch);
    };
  });
}

}  // namespace

void add_layer_norm(Kernels& kernels) {
  kernels["layer_norm_core"] = {{prepare_layer_norm}};
  kernels["layer_norm_grad"] = {{prepare_layer_norm_grad}};
  kernels["layer_norm_parameter_grad"] = {{prepare_parameter_grad}};
}

}  // namespace moonflow::cuda
