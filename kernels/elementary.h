// Elementary functions of one number. Those of float32 have no branch, no call and no table, so a loop over them is
// compiled for whatever registers the loop is, and an element has the same value in a vector as at the end of a row.
// Those of float64 are the math library's.
//
// Errors against float64, in units of the last place (tests/kernels/elementary_test.cpp): exp 1.1, log 1.0, tanh 1.6,
// sigmoid 2.9, erf 2.7, the normal distribution 7.1 and its density 2.1. A NaN gives a NaN, infinities give the limits,
// and results below the normal range are rounded like all others.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#ifdef __CUDACC__
#define MOONFLOW_BOTH __host__ __device__
#else
#define MOONFLOW_BOTH
#endif

namespace moonflow::elementary {

MOONFLOW_BOTH inline int32_t bits_of(float x) { return __builtin_bit_cast(int32_t, x); }
MOONFLOW_BOTH inline float float_of(int32_t bits) { return __builtin_bit_cast(float, bits); }

// A polynomial, coefficients from the constant on, by Horner's rule.
template <int kTerms>
MOONFLOW_BOTH inline float polynomial(const float (&terms)[kTerms], float x) {
  float sum = terms[kTerms - 1];
#ifndef __CUDACC__  // which unrolls it without being told
#pragma GCC unroll 16
#endif
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * x + terms[i];
  return sum;
}

// ln 2 in two parts: the products of the high one with exponents are exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// exp(x + low) for a `low` that is small beside 1: what is left of an exponent that has more digits than a float.
// With n the integer nearest to x / ln 2 and r = x - n ln 2, exp(x) = 2^n exp(r), and exp(r) is a polynomial. The power
// of two is applied in two halves, so that results beyond the normal range come out as infinity, denormal or zero.
MOONFLOW_BOTH inline float exp_of_sum(float x, float low) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer, and leaves that integer in the lowest bits
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = ((x - n * kLn2High) - n * kLn2Low) + low;
  // Minimax on [-ln 2 / 2, ln 2 / 2], relative error 3e-9.
  const float p = polynomial({0.49999994f, 0.166665196f, 0.041668389f, 0.0083687678f, 0.00138149306f}, r);
  const float y = ((p * r) * r + r) + 1.0f;
  const int32_t k = bits_of(shifted) - bits_of(kShift), half = k >> 1;
  // Of a NaN the exponents are nonsense that must not overflow; y is NaN already.
  const auto power_of_two = [](int32_t exponent) {
    return float_of(static_cast<int32_t>(static_cast<uint32_t>(exponent + 127) << 23));
  };
  return y * power_of_two(half) * power_of_two(k - half);
}

MOONFLOW_BOTH inline float exp(float x) { return exp_of_sum(x, 0); }
MOONFLOW_BOTH inline double exp(double x) { return std::exp(x); }

// x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and log(1 + f) = f - f^2 / 2 + f^3 p(f).
MOONFLOW_BOTH inline float log(float x) {
  constexpr int32_t kSqrtHalfBits = 0x3f3504f3;
  const bool denormal = x < std::numeric_limits<float>::min();
  // Unsigned, since the bits of a negative x, whose logarithm is NaN below, would overflow.
  const int32_t bits = static_cast<int32_t>(static_cast<uint32_t>(bits_of(denormal ? x * 0x1p23f : x)) - kSqrtHalfBits);
  const float n = static_cast<float>((bits >> 23) - (denormal ? 23 : 0));
  const float f = float_of((bits & 0x7fffff) + kSqrtHalfBits) - 1.0f;
  // Minimax, relative to the whole below 1e-9.
  const float p = polynomial({0.333333105f, -0.249999866f, 0.200022265f, -0.166692495f, 0.142186671f, -0.123843521f,
                              0.118728913f, -0.117898092f, 0.0691563562f},
                             f);
  const float square = f * f;
  const float rest = square * (f * p) + n * kLn2Low;
  float y = n * kLn2High + (f - (0.5f * square - rest));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  y = x < kInfinity ? y : x;
  return x > 0 ? y : x == 0 ? -kInfinity : std::numeric_limits<float>::quiet_NaN();
}
MOONFLOW_BOTH inline double log(double x) { return std::log(x); }

// Near 0 an odd polynomial, elsewhere 1 - 2 / (exp(2 |x|) + 1).
MOONFLOW_BOTH inline float tanh(float x) {
  const float size = std::fabs(x), square = x * x;
  const float p = polynomial({-0.333332837f, 0.133314922f, -0.053743545f, 0.0206507575f, -0.00571725378f}, square);
  const float near = x + x * (square * p);
  const float far = std::copysign(1.0f - 2.0f / (exp(2.0f * size) + 1.0f), x);
  return size < 0.625f ? near : far;
}
MOONFLOW_BOTH inline double tanh(double x) { return std::tanh(x); }

// The exponential never overflows, and what is near 0 keeps its digits.
MOONFLOW_BOTH inline float sigmoid(float x) {
  const float e = exp(-std::fabs(x)), y = 1.0f / (1.0f + e);
  return x >= 0 ? y : e * y;
}
MOONFLOW_BOTH inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// erfc(z) * exp(z^2) for z >= 0: t v(t) with t = 1 / (1 + 0.4 z); minimax up to z = 10.2, relative error 6e-8.
MOONFLOW_BOTH inline float scaled_erfc(float z) {
  const float t = 1.0f / (1.0f + 0.4f * z);
  return t * polynomial({0.225636959f, 0.226397023f, 0.202213958f, 0.192127675f, 0.0827034116f, 0.0837326273f,
                         0.0876573473f, -0.142081827f, 0.0416128933f},
                        t);
}

// Near 0 an odd polynomial, elsewhere 1 - erfc(|x|).
MOONFLOW_BOTH inline float erf(float x) {
  const float size = std::fabs(x), square = x * x;
  const float near = x * polynomial({1.12837911f, -0.37612626f, 0.112835854f, -0.0268538129f, 0.00518833054f,
                                     -0.00080102263f, 7.85398952e-05f},
                                    square);
  const float z = size > 10.0f ? 10.0f : size;
  const float far = std::copysign(1.0f - exp(-z * z) * scaled_erfc(z), x);
  return size < 1.0f ? near : far;
}
MOONFLOW_BOTH inline double erf(double x) { return std::erf(x); }

// The standard normal distribution at x: how much of it lies below x, and its density there.
template <class T>
struct Normal {
  T cumulative, density;
};

constexpr double kSqrtHalf = 0.70710678118654752, kOneOverSqrtTwoPi = 0.39894228040143268;

// Near 0 an odd polynomial beside one half. Elsewhere from the tail, whose exponential would show what a float loses of
// the square of x; so x is split in two, of which the first has few enough digits that its square is exact.
MOONFLOW_BOTH inline Normal<float> normal(float x) {
  const float size = std::fabs(x) > 15.0f ? 15.0f : std::fabs(x);
  const float high = float_of(bits_of(size) & ~0xfff);
  const float e = exp_of_sum(-0.5f * (high * high), -0.5f * ((size - high) * (size + high)));
  const float tail = 0.5f * e * scaled_erfc(size * static_cast<float>(kSqrtHalf));
  const float far = x >= 0 ? 1.0f - tail : tail;
  const float p = polynomial({0.398942292f, -0.0664902627f, 0.00997226778f, -0.00118136371f, 0.000103237035f}, x * x);
  return {size < 0.7f ? 0.5f + x * p : far, e * static_cast<float>(kOneOverSqrtTwoPi)};
}
MOONFLOW_BOTH inline Normal<double> normal(double x) {
  return {0.5 * std::erfc(-x * kSqrtHalf), kOneOverSqrtTwoPi * std::exp(-0.5 * x * x)};
}

}  // namespace moonflow::elementary
