// The rates of the schedules at a step, in float64, made from the attributes of their ops. The CPU and CUDA share them.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow::schedules {

constexpr double kPi = 3.14159265358979324;

// How much of `steps` is over, at most all.
MOONFLOW_BOTH inline double part_of(int64_t step, int64_t steps) {
  return static_cast<double>(step < steps ? step : steps) / static_cast<double>(steps);
}

struct Cosine {
  explicit Cosine(const Attrs& attrs)
      : base(attrs.number("base_lr")), alpha(attrs.number("alpha")), steps(attrs.integer("steps")) {}
  MOONFLOW_BOTH double operator()(int64_t step) const {
    return base * ((1 - alpha) * 0.5 * (1 + std::cos(kPi * part_of(step, steps))) + alpha);
  }
  double base, alpha;
  int64_t steps;
};

struct LinearCosine {
  explicit LinearCosine(const Attrs& attrs)
      : base(attrs.number("base_lr")),
        periods(attrs.number("num_periods")),
        alpha(attrs.number("alpha")),
        beta(attrs.number("beta")),
        steps(attrs.integer("steps")) {}
  MOONFLOW_BOTH double operator()(int64_t step) const {
    const double part = part_of(step, steps);
    return base * ((alpha + 1 - part) * 0.5 * (1 + std::cos(2 * kPi * periods * part)) + beta);
  }
  double base, periods, alpha, beta;
  int64_t steps;
};

struct Decay {
  explicit Decay(const Attrs& attrs)
      : base(attrs.number("base_lr")),
        rate(attrs.number("decay_rate")),
        steps(static_cast<double>(attrs.integer("steps"))),
        staircase(attrs.flag("staircase")) {}
  // How often the decay has been applied: in whole steps with staircase, else continuously.
  MOONFLOW_BOTH double count(int64_t step) const {
    const double count = static_cast<double>(step) / steps;
    return staircase ? std::floor(count) : count;
  }
  double base, rate, steps;
  bool staircase;
};

struct Exponential : Decay {
  using Decay::Decay;
  MOONFLOW_BOTH double operator()(int64_t step) const { return base * std::pow(rate, count(step)); }
};

struct InverseTime : Decay {
  using Decay::Decay;
  MOONFLOW_BOTH double operator()(int64_t step) const { return base / (1 + rate * count(step)); }
};

struct NaturalExp : Decay {
  using Decay::Decay;
  MOONFLOW_BOTH double operator()(int64_t step) const { return base * std::exp(-rate * count(step)); }
};

// With cycle, each time the end is reached the decay starts again over one length more.
struct Polynomial {
  explicit Polynomial(const Attrs& attrs)
      : base(attrs.number("base_lr")),
        end(attrs.number("end_learning_rate")),
        power(attrs.number("power")),
        steps(static_cast<double>(attrs.integer("steps"))),
        cycle(attrs.flag("cycle")) {}
  MOONFLOW_BOTH double operator()(int64_t step) const {
    const double t = static_cast<double>(step), cycles = std::ceil(t / steps);
    const double length = cycle && cycles > 1 ? steps * cycles : steps;
    return (base - end) * std::pow(1 - (t < length ? t : length) / length, power) + end;
  }
  double base, end, power, steps;
  bool cycle;
};

// While step < steps a warm-up overrides the rate of the schedule; after that the schedule goes on with the step
// itself. It rises from a share of the base rate, or stays there.
struct Warmup {
  Warmup(const Attrs& attrs, bool rises)
      : steps(attrs.integer("steps")),
        start(attrs.number(rises ? "start_multiplier" : "multiplier")),
        base(attrs.number("base_lr")),
        rises(rises) {}
  MOONFLOW_BOTH float operator()(int64_t step, float rate) const {
    if (step >= steps) return rate;
    const double share = rises ? start + (1 - start) * part_of(step, steps) : start;
    return static_cast<float>(base * share);
  }
  int64_t steps;
  double start, base;
  bool rises;
};

// values[i] of the first i with step <= boundaries[i], else the last.
struct Pieces {
  Ints boundaries;
  Floats values;
};

inline Pieces constant_pieces(const Attrs& attrs) { return {attrs.ints("boundaries"), attrs.floats("values")}; }

inline Pieces scaled_pieces(const Attrs& attrs) {
  const double rate = attrs.number("base_lr");
  Floats values{rate};
  for (const double scale : attrs.floats("scale")) values.push_back(rate * scale);
  return {attrs.ints("boundaries"), values};
}

}  // namespace moonflow::schedules
