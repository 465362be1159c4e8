// What softmax, the cross entropies and attention do with one row of logits. The loops vectorise inside cpu::widest.
// Sums are kept in double, so float32 results do not depend on how long a row is; exponentials, which are all positive,
// are first summed in T a few at a time, since widening each would take half as long as it does to make them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/simd.h"
#include "kernels/elementary.h"

namespace moonflow::cpu {

// The largest of n values; minus infinity where there is none. A NaN is passed over.
template <class T>
T largest(const T* x, int64_t n) {
  T top = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

constexpr int64_t kSummedTogether = 128;

// y = exp(x - top), and the sum of it. y may be x.
template <class T>
double exponentials(const T* x, int64_t n, T top, T* y) {
  double sum = 0;
  for (int64_t first = 0; first < n; first += kSummedTogether) {
    const int64_t last = first + kSummedTogether < n ? first + kSummedTogether : n;
    T part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = first; i < last; ++i) {
      const T e = elementary::exp(x[i] - top);
      y[i] = e;
      part += e;
    }
    sum += part;
  }
  return sum;
}

// The sum alone.
template <class T>
double sum_of_exponentials(const T* x, int64_t n, T top) {
  double sum = 0;
  for (int64_t first = 0; first < n; first += kSummedTogether) {
    const int64_t last = first + kSummedTogether < n ? first + kSummedTogether : n;
    T part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = first; i < last; ++i) part += elementary::exp(x[i] - top);
    sum += part;
  }
  return sum;
}

template <class T>
double dot(const T* x, const T* y, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * double{y[i]};
  return sum;
}

// Short rows leave registers half empty, and the largest value, the sum and the logarithm of each are single numbers.
// So up to kTogether rows go side by side, place by place: of 21 classes that takes a quarter of the time. What becomes
// of a row does not depend on those beside it.
constexpr int64_t kShort = 32;

// Do so many rows of n places go that way? Fewer than four are done sooner one by one.
inline bool are_short_rows(int64_t rows, int64_t n) { return rows >= 4 && n > 0 && n < kShort; }

struct ShortRows {
  float y[kShort * kTogether];  // exp(x - top) of place i of row j at i * kTogether + j
  float top[kTogether], sum[kTogether];

  // `count` rows, at most kTogether, of n places, less than kShort. They are read before anything is written, so
  // results may lie where they do.
  ShortRows(const float* x, int64_t count, int64_t n) {
    for (int64_t j = 0; j < kTogether; ++j) {
      const float* row = x + (j < count ? j : 0) * n;
      for (int64_t i = 0; i < n; ++i) y[i * kTogether + j] = row[i];
      top[j] = -std::numeric_limits<float>::infinity();
      sum[j] = 0;
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < kTogether; ++j) {
        const float value = y[i * kTogether + j];
        top[j] = value > top[j] ? value : top[j];
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < kTogether; ++j) {
        const float e = elementary::exp(y[i * kTogether + j] - top[j]);
        y[i * kTogether + j] = e;
        sum[j] += e;
      }
    }
  }

  // Multiplies each row by a number of its own, and puts it where it belongs.
  void scale_into(const float (&scale)[kTogether], int64_t count, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < kTogether; ++j) y[i * kTogether + j] *= scale[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t i = 0; i < n; ++i) out[j * n + i] = y[i * kTogether + j];
    }
  }
};

// The same with labels: the losses, and their gradients for the logits.
struct ShortLosses {
  ShortRows rows;
  float scale[kTogether], loss[kTogether];

  ShortLosses(const float* logits, const int64_t* labels, int64_t count, int64_t classes)
      : rows(logits, count, classes) {
    float at_label[kTogether] = {};
    for (int64_t j = 0; j < count; ++j) at_label[j] = logits[j * classes + labels[j]] - rows.top[j];
    for (int64_t j = 0; j < kTogether; ++j) {
      scale[j] = 1 / rows.sum[j];  // that make probabilities
      loss[j] = elementary::log(rows.sum[j]) - at_label[j];
    }
  }

  // Each times the gradient of its loss, `dy`, or `seed` where that is nullptr.
  void gradients_into(const int64_t* labels, const float* dy, float seed, int64_t count, int64_t classes,
                      float* dlogits) {
    rows.scale_into(scale, count, classes, dlogits);
    for (int64_t j = 0; j < count; ++j, dlogits += classes) {
      const float down = dy ? dy[j] : seed;
      dlogits[labels[j]] -= 1;
      for (int64_t i = 0; i < classes; ++i) dlogits[i] *= down;
    }
  }
};

}  // namespace moonflow::cpu
