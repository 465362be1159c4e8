// The losses that go element by element, for all devices.
#pragma once

#include <cmath>

#include "kernels/elementary.h"

namespace moonflow::loss {

// max(x, 0) - x * label + log(1 + exp(-|x|)), with the first two put together: an infinite logit that has the label it
// asks for costs nothing, and is infinitely wrong with any other.
template <class T>
MOONFLOW_BOTH T sigmoid_cross_entropy(T label, T x) {
  const T wrong = x > 0 ? 1 - label : label;
  const T certain = std::abs(x) * wrong;
  return (wrong == 0 && x == x ? T(0) : certain) + elementary::log1p(elementary::exp(-std::abs(x)));
}

template <class T>
MOONFLOW_BOTH T sigmoid_cross_entropy_slope(T label, T x) {
  return elementary::sigmoid(x) - label;
}

template <class T>
MOONFLOW_BOTH T smooth_l1(T difference, T knee) {
  const T distance = std::abs(difference);
  return distance < knee ? distance * distance / (2 * knee) : distance - knee / 2;
}

// Of no distance it is 0, also where there is no knee, and of a NaN a NaN.
template <class T>
MOONFLOW_BOTH T smooth_l1_slope(T difference, T knee) {
  const T near = difference / knee, far = difference > 0 ? T(1) : difference < 0 ? T(-1) : difference;
  return std::abs(difference) < knee ? near : far;
}

}  // namespace moonflow::loss
