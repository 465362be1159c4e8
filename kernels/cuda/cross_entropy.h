// The softmax cross entropy of one row of logits with its gradient, for a team of threads. The logits are anywhere, and
// the gradient may take their place. What a row has beside them can be asked for before they are there.
#pragma once

#include <cmath>

#include "kernels/cuda/exponentials.h"
#include "kernels/cuda/indices.h"

namespace moonflow::cuda {

// The gradient of each row's loss: a value, or where that is nullptr one number for all.
template <class T>
struct RowGradient {
  const T* dy;
  T seed;
  MOONFLOW_DEVICE T of(int64_t row) const { return dy ? dy[row] : seed; }
};

// With classes for labels. A bad one is noted, and its row left as it is.
template <class T>
struct SparseRowLoss {
  Indices labels;
  RowGradient<T> dy;
  T* out;
  struct Own {
    int64_t label;
    T down;
  };
  template <class Team>
  MOONFLOW_DEVICE Own own(const Team& team, int64_t row) const {
    return {labels.checked(team.block, row), dy.of(row)};
  }
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, const T* x, T* dx, int64_t n) const {
    (*this)(team, row, own(team, row), x, dx, n);
  }
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, const Own& own, const T* x, T* dx, int64_t n) const {
    const auto logits = team.values(x, n, 1);
    const int64_t label = own.label;
    if (label < 0) return;
    const T top = largest_of<T>(logits), down = own.down;
    // The thread that writes at the label reads there first.
    const bool has_label = logits.has(label);
    const T at_label = has_label ? logits.own(label) - top : T(0);
    const auto e = exponentials_of(logits, top);
    const double sum = e.sum();
    const T scale = static_cast<T>(1 / sum);
    e.map(
         [=](T value, bool is_label) {
           const T prob = value * scale;
           return (is_label ? prob - 1 : prob) * down;
         },
         Chosen{label})
        .write(dx);
    if (has_label) out[row] = static_cast<T>(std::log(sum) - at_label);
  }
};

// What a label has of the loss beside the logarithm of the sum of all exponentials, which are of the distances from the
// top: neither is negative, so nothing cancels. A label of zero takes no part, also where the logit is minus infinity.
template <class T>
struct BelowTop {
  T top;
  MOONFLOW_DEVICE T operator()(T label, T logit) const { return label != 0 ? label * (top - logit) : T(0); }
};

// With a distribution for each row.
template <class T>
struct DenseRowLoss {
  const T* labels;
  int64_t classes;
  RowGradient<T> dy;
  T* out;
  struct Own {
    T down;
  };
  template <class Team>
  MOONFLOW_DEVICE Own own(const Team&, int64_t row) const {
    return {dy.of(row)};
  }
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, const T* x, T* dx, int64_t n) const {
    (*this)(team, row, own(team, row), x, dx, n);
  }
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t row, const Own& own, const T* x, T* dx, int64_t n) const {
    const auto logits = team.values(x, n, 1), label = team.values(labels + row * classes, n, 1);
    const T top = largest_of<T>(logits), down = own.down;
    const double below = label.sum(BelowTop<T>{top}, logits), mass = label.sum();
    const auto e = exponentials_of(logits, top);
    const double sum = e.sum(), loss = mass * std::log(sum) + below;
    const T scale = static_cast<T>(mass / sum);
    e.map([=](T value, T of) { return down * (value * scale - of); }, label).write(dx);
    if (team.thread() == 0) out[row] = static_cast<T>(loss);
  }
};

}  // namespace moonflow::cuda
