// The optimizers' rules for one element of a variable. A rule holds what it needs of the attributes; step<T,
// Wide>(inputs) gives what one variable's elements have in common in a launch: its numbers (learning rate, step) are in
// `inputs` too, combined in Wide and taken in the variable's own precision T. The CPU loops and the CUDA kernels share
// them.
//
// `inputs` are those of one variable: what is written comes first, then what is not, the gradient at kGradient. The last
// is a factor of the gradient that a run gives, or none. Where it is 0 the rule is not to be followed at all.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow::update {

MOONFLOW_BOTH inline float learning_rate(const void* const* inputs, int i) {
  return *static_cast<const float*>(inputs[i]);
}

// What the run gives to multiply the gradient by; 0: there is nothing to learn from it.
MOONFLOW_BOTH inline float factor(const void* const* inputs, int i) {
  return inputs[i] ? *static_cast<const float*>(inputs[i]) : 1.0f;
}
template <class Rule>
MOONFLOW_BOTH bool changes(const void* const* inputs) {
  return factor(inputs, Rule::kInputs - 1) != 0;
}

struct Descent {
  static constexpr int kInputs = 4, kWritten = 1, kGradient = 1;
  explicit Descent(const Attrs& attrs) : scale(attrs.number("gradient_scale")) {}

  template <class T>
  struct Step {
    T rate, factor;
    MOONFLOW_BOTH void operator()(T& w, T g) const { w -= rate * (g * factor); }
  };
  template <class T, class Wide>
  MOONFLOW_BOTH Step<T> step(const void* const* inputs) const {
    return {static_cast<T>(learning_rate(inputs, 2)),
            static_cast<T>(static_cast<Wide>(scale) * static_cast<Wide>(factor(inputs, 3)))};
  }

  double scale;
};

// With Nesterov's momentum a variable moves to where the momentum will have taken it after the next step, as far as is
// known.
template <bool nesterov>
struct Momentum {
  static constexpr int kInputs = 5, kWritten = 2, kGradient = 2;
  explicit Momentum(const Attrs& attrs) : beta(attrs.number("beta")), scale(attrs.number("gradient_scale")) {}

  template <class T>
  struct Step {
    T rate, keep, factor;
    MOONFLOW_BOTH void operator()(T& w, T& m, T g) const {
      m = keep * m - rate * (g * factor);
      w += nesterov ? keep * m - rate * (g * factor) : m;
    }
  };
  template <class T, class Wide>
  MOONFLOW_BOTH Step<T> step(const void* const* inputs) const {
    return {static_cast<T>(learning_rate(inputs, 3)), static_cast<T>(beta),
            static_cast<T>(static_cast<Wide>(scale) * static_cast<Wide>(factor(inputs, 4)))};
  }

  double beta, scale;
};

struct Adam {
  static constexpr int kInputs = 7, kWritten = 3, kGradient = 3;
  explicit Adam(const Attrs& attrs)
      : beta1(attrs.number("beta1")),
        beta2(attrs.number("beta2")),
        epsilon(attrs.number("epsilon")),
        weight_decay(attrs.number("weight_decay")),
        scale(attrs.number("gradient_scale")),
        log_beta1(std::log(beta1)),
        log_beta2(std::log(beta2)),
        bias_correction(attrs.flag("bias_correction")) {}

  template <class T>
  struct Step {
    T rate, decay, factor, keep1, keep2, rest1, rest2, little;
    MOONFLOW_BOTH void operator()(T& w, T& m, T& v, T gradient) const {
      const T g = gradient * factor;
      m = keep1 * m + rest1 * g;
      v = keep2 * v + rest2 * g * g;
      w -= rate * m / (std::sqrt(v) + little) + decay * w;
    }
  };
  template <class T, class Wide>
  MOONFLOW_BOTH Step<T> step(const void* const* inputs) const {
    const Wide given = static_cast<Wide>(learning_rate(inputs, 4));
    Wide rate = given;
    if (bias_correction) {
      // 1 - beta ^ (step + 1), without the loss of digits where that power is near 1.
      const double steps = static_cast<double>(*static_cast<const int64_t*>(inputs[5])) + 1;
      rate *= std::sqrt(-std::expm1(static_cast<Wide>(steps * log_beta2))) /
              -std::expm1(static_cast<Wide>(steps * log_beta1));
    }
    return {static_cast<T>(rate),
            static_cast<T>(given * static_cast<Wide>(weight_decay)),
            static_cast<T>(static_cast<Wide>(scale) * static_cast<Wide>(factor(inputs, 6))),
            static_cast<T>(beta1),
            static_cast<T>(beta2),
            static_cast<T>(1 - beta1),
            static_cast<T>(1 - beta2),
            static_cast<T>(epsilon)};
  }

  double beta1, beta2, epsilon, weight_decay, scale, log_beta1, log_beta2;
  bool bias_correction;
};

// The centered form has another input, the mean gradient.
template <bool centered>
struct Rmsprop {
  static constexpr int kInputs = 6, kWritten = centered ? 3 : 2, kGradient = 3;
  explicit Rmsprop(const Attrs& attrs)
      : decay_rate(attrs.number("decay_rate")),
        epsilon(attrs.number("epsilon")),
        scale(attrs.number("gradient_scale")) {}

  template <class T>
  struct Step {
    T rate, keep, rest, factor, little;
    MOONFLOW_BOTH void operator()(T& w, T& s, T gradient) const {
      const T g = gradient * factor;
      s = keep * s + rest * g * g;
      w -= rate * g / std::sqrt(s + little);
    }
    MOONFLOW_BOTH void operator()(T& w, T& s, T& mean, T gradient) const {
      const T g = gradient * factor;
      s = keep * s + rest * g * g;
      mean = keep * mean + rest * g;
      const T variance = s - mean * mean;  // of gradients that hardly change only roundings are left, of either sign
      w -= rate * g / std::sqrt((variance > 0 ? variance : T(0)) + little);
    }
  };
  template <class T, class Wide>
  MOONFLOW_BOTH Step<T> step(const void* const* inputs) const {
    return {static_cast<T>(learning_rate(inputs, 4)), static_cast<T>(decay_rate), static_cast<T>(1 - decay_rate),
            static_cast<T>(static_cast<Wide>(scale) * static_cast<Wide>(factor(inputs, 5))), static_cast<T>(epsilon)};
  }

  double decay_rate, epsilon, scale;
};

struct Adagrad {
  static constexpr int kInputs = 5, kWritten = 2, kGradient = 2;
  explicit Adagrad(const Attrs& attrs) : epsilon(attrs.number("epsilon")), scale(attrs.number("gradient_scale")) {}

  template <class T>
  struct Step {
    T rate, factor, little;
    MOONFLOW_BOTH void operator()(T& w, T& s, T gradient) const {
      const T g = gradient * factor;
      s += g * g;
      w -= rate * g / (std::sqrt(s) + little);
    }
  };
  template <class T, class Wide>
  MOONFLOW_BOTH Step<T> step(const void* const* inputs) const {
    return {static_cast<T>(learning_rate(inputs, 3)),
            static_cast<T>(static_cast<Wide>(scale) * static_cast<Wide>(factor(inputs, 4))), static_cast<T>(epsilon)};
  }

  double epsilon, scale;
};

// What becomes of a gradient before its update.
template <class T>
struct Prepare {
  T scale, l1, l2;
  explicit Prepare(const Attrs& attrs)
      : scale(static_cast<T>(attrs.number("scale"))),
        l1(static_cast<T>(attrs.number("l1"))),
        l2(static_cast<T>(attrs.number("l2"))) {}
  // With a factor of the gradient that the run gives, or none.
  MOONFLOW_BOTH Prepare times(const float* factor) const {
    Prepare result = *this;
    if (factor) result.scale *= static_cast<T>(*factor);
    return result;
  }
  MOONFLOW_BOTH T operator()(T g, T w) const {
    const T sign = static_cast<T>((w > 0) - (w < 0));
    return g * scale + l1 * sign + l2 * w;
  }
};

}  // namespace moonflow::update
