// What softmax, the cross entropies and attention do with one row of logits. The loops vectorise inside cpu::widest.
// Sums are kept in double, so float32 results do not depend on how long a row is; exponentials, which are all positive,
// are first summed in T a few at a time, since widening each would take half as long as it does to make them.
#pragma once

#include <cstdint>
#include <limits>

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

}  // namespace moonflow::cpu
