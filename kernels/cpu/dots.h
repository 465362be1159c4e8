// Products a b^T of float32 or float64 matrices whose rows are long and few: registers go along the rows of both, so
// nothing is packed, and each element of the result is the sum of one register's lanes.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

using FourLanes = Register<4>::Vector;

// Folds the lanes down to four, the upper half onto the lower.
inline FourLanes folded(const Register<4>::Vector& x) { return x; }
inline FourLanes folded(const Register<8>::Vector& x) {
  return FourLanes(__builtin_shufflevector(x, x, 0, 1, 2, 3)) + FourLanes(__builtin_shufflevector(x, x, 4, 5, 6, 7));
}
inline FourLanes folded(const Register<16>::Vector& x) {
  using Half = Register<8>::Vector;
  const Half half = Half(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)) +
                    Half(__builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
  return folded(half);
}

// The sum of each register's lanes, in pairs, so that the error grows with the logarithm of the lanes.
template <class R, int kCount>
inline void sums_of_lanes(const typename R::Vector (&x)[kCount], double* out) {
  for (int i = 0; i < kCount; ++i) {
    double lanes[R::kWidth];
    Doubles<R::kWidth>::at(lanes) = x[i];
#pragma GCC unroll 4
    for (int half = R::kWidth / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    out[i] = lanes[0];
  }
}
template <class R, int kCount>
inline void sums_of_lanes(const typename R::Vector (&x)[kCount], float* out) {
  int i = 0;
#pragma GCC unroll 8
  for (; i + 4 <= kCount; i += 4) {
    const FourLanes a = folded(x[i]), b = folded(x[i + 1]), c = folded(x[i + 2]), d = folded(x[i + 3]);
    const FourLanes ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const FourLanes cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    Register<4>::at(out + i) =
        __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  }
#pragma GCC unroll 4
  for (; i < kCount; ++i) {
    const FourLanes a = folded(x[i]);
    out[i] = (a[0] + a[2]) + (a[1] + a[3]);
  }
}

// out[i * kColumns + j] = sum over k of a[i, k] * b[j, k], rows `a_row` and `b_row` apart. Each is summed in kChains
// registers by turns, where that many are needed to hide the latency of one; the order of its terms is the same for any
// kRows and kColumns.
template <class R, int kRows, int kColumns, int kChains>
inline void dots(int64_t inner, const typename R::Element* a, int64_t a_row, const typename R::Element* b,
                 int64_t b_row, typename R::Element* out) {
  using Vector = typename R::Vector;
  constexpr int kWidth = R::kWidth;
  Vector sums[kChains][kRows * kColumns] = {};
  const auto add = [&](Vector(&to)[kRows * kColumns], int64_t k) {
    Vector left[kRows];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) left[i] = R::at(a + i * a_row + k);
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) {
      const Vector right = R::at(b + j * b_row + k);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) to[i * kColumns + j] += left[i] * right;
    }
  };
  int64_t k = 0;
  for (; k + kChains * kWidth <= inner; k += kChains * kWidth)
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain) add(sums[chain], k + chain * kWidth);
  for (; k + kWidth <= inner; k += kWidth) add(sums[0], k);
#pragma GCC unroll 32
  for (int e = 0; e < kRows * kColumns; ++e)
#pragma GCC unroll 2
    for (int chain = 1; chain < kChains; ++chain) sums[0][e] += sums[chain][e];
  sums_of_lanes<R, kRows * kColumns>(sums[0], out);
  if (k == inner) return;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kColumns; ++j) {
      typename R::Element rest = 0;
      for (int64_t l = k; l < inner; ++l) rest += a[i * a_row + l] * b[j * b_row + l];
      out[i * kColumns + j] += rest;
    }
  }
}

}  // namespace moonflow::cpu
