// The discrete Fourier transform on every device: X[k] = sum over n of x[n] * exp(-2 pi i k n / size), in passes over
// all numbers, one for each factor of the size, which leave them in order (T. G. Stockham, "High-speed convolution and
// correlation", AFIPS 1966).
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow {

template <class T>
struct Complex {
  T real, imaginary;
};

// exp(-2 pi i at / size). Whole quarters of a turn are exact, since what is left is taken from the nearest of these.
MOONFLOW_BOTH inline Complex<double> turned(int64_t at, int64_t size) {
  constexpr double kQuarter = 1.57079632679489661923;
  const int64_t in_turn = at % size;
  const int64_t quarter = (8 * in_turn + size) / (2 * size);
  const double angle = kQuarter * static_cast<double>(4 * in_turn - quarter * size) / static_cast<double>(size);
  Complex<double> result{cos(angle), -sin(angle)};
  for (int64_t i = 0; i < quarter % 4; ++i) result = {result.imaginary, -result.real};
  return result;
}

// A pass of a transform of `size` numbers goes from `stride` transforms of size / stride numbers each, side by side, to
// factor * stride: number (p * factor + k) * stride + q of what it gives is
//   sum over i < factor of x[(p + i * groups) * stride + q] * exp(-2 pi i k (p + i * groups) * stride / size)
struct FourierPass {
  int64_t factor, stride, groups;  // factor * stride * groups is the size
};
// Fours first, then the other factors as they grow.
std::vector<FourierPass> fourier_passes(int64_t size);
constexpr int64_t kLargestFactor = 61;  // of those whose terms are few enough to sum up in a pass without more ado

// What the ops weigh frequencies with, those of numbers that are real.
struct FourierWeights {
  double edge = 1, middle = 1;  // of 0 and of size / 2; of the others

  MOONFLOW_BOTH double of(int64_t frequency, int64_t size) const {
    return frequency == 0 || 2 * frequency == size ? edge : middle;
  }
};

// One op with its sizes: numbers of a row as they come and go, where a complex one counts as two.
struct FourierCall {
  enum class Kind { Complex, OfReal, ToReal };
  Kind kind = Kind::Complex;
  int64_t rows = 0, size = 0, from = 0, to = 0;
  bool inverse = false;  // of Complex: with exp(+...)
  double scale = 1;      // of Complex
  FourierWeights weights;
};
FourierCall fourier_call(const KernelCall& call, FourierCall::Kind kind);

}  // namespace moonflow
