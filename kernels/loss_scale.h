// The rule of a dynamic loss scale, on every device.
#pragma once

#include <cstdint>
#include <limits>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow {

// Neither an infinity nor a NaN: the difference would be a NaN.
template <class T>
MOONFLOW_BOTH bool is_finite(T x) {
  return x - x == T(0);
}

struct DynamicLossScale {
  explicit DynamicLossScale(const Attrs& attrs)
      : increment_period(attrs.integer("increment_period")), multiplier(attrs.number("multiplier")) {}

  MOONFLOW_BOTH void operator()(float& scale, int64_t& good_steps, float finite) const {
    if (finite == 0) {
      const double lower = scale / multiplier;
      scale = lower < 1 ? 1.0f : static_cast<float>(lower);
      good_steps = 0;
    } else if (++good_steps >= increment_period) {
      const double higher = scale * multiplier, most = std::numeric_limits<float>::max();
      scale = static_cast<float>(higher < most ? higher : most);
      good_steps = 0;
    }
  }

  int64_t increment_period;
  double multiplier;
};

}  // namespace moonflow
