// What softmax and the cross entropies do with one lane of logits.
#pragma once

#include <limits>

#include "kernels/cuda/teams.h"
#include "kernels/elementary.h"

namespace moonflow::cuda {

// The largest of a lane's values; minus infinity where there is none. A NaN wins, and then all results are NaN.
template <class T, class Values>
MOONFLOW_DEVICE T largest_of(const Values& x) {
  return x.over(-std::numeric_limits<T>::infinity(), Largest());
}

// exp(x - top)
template <class T, class Values>
MOONFLOW_DEVICE auto exponentials_of(const Values& x, T top) {
  return x.map([=](T value) { return elementary::exp(value - top); });
}

}  // namespace moonflow::cuda
