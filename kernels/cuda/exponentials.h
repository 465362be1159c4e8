// What softmax and the cross entropies do with one lane of logits.
#pragma once

#include <limits>

#include "kernels/cuda/teams.h"
#include "kernels/elementary.h"

namespace moonflow::cuda {

// The largest of n values; minus infinity where there is none. A NaN wins, and then all results are NaN.
template <class Team, class T>
MOONFLOW_DEVICE T largest_of(const Team& team, const T* x, int64_t n, int64_t stride) {
  T top = -std::numeric_limits<T>::infinity();
  for (int64_t i = team.thread(); i < n; i += team.size()) top = Largest()(top, x[i * stride]);
  return team.over(top, Largest());
}

template <class Team, class T>
MOONFLOW_DEVICE double sum_of_exponentials(const Team& team, const T* x, int64_t n, int64_t stride, T top) {
  return team.sum(n, [=](int64_t i) { return elementary::exp(x[i * stride] - top); });
}

}  // namespace moonflow::cuda
