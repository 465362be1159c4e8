// Elementary functions of one number. Those of float32 have no branch, no call and no table, so a loop over them is
// compiled for whatever registers the loop is, and an element has the same value in a vector as at the end of a row.
// Those of float64 are the math library's. A card takes its own exponential and reciprocal.
//
// Errors of a processor against float64, in units of the last place (tests/kernels/elementary_test.cpp): exp 1.1,
// expm1 1.6, log 1.0, log1p 1.5, sin and cos 1.6, tan 3.6, atan 1.8, atan2 1.8, asin 2.4, acos 2.3, sinh 2.4, cosh 1.5,
// asinh 2.0, acosh 2.3, atanh 2.4, tanh 1.6, sigmoid 2.9, softplus 1.9, erf 2.7, erfc 7.1, the normal distribution 7.1
// and its density 2.1. A NaN gives a NaN, infinities give the limits, a zero keeps its sign where 0 goes to 0, and
// results below the normal range are rounded like all others.
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

// 2^exponent, for the exponents of normal numbers. Of others it is nonsense, which must not overflow.
MOONFLOW_BOTH inline float power_of_two(int32_t exponent) {
  return float_of(static_cast<int32_t>(static_cast<uint32_t>(exponent + 127) << 23));
}

// exp(x + low) = (1 + rest) 2^exponent, for a `low` that is small beside 1: what is left of an x that has more digits
// than a float. With n the integer nearest to x / ln 2 and r = x - n ln 2, rest is exp(r) - 1, a polynomial.
struct Exponential {
  float rest;
  int32_t exponent;
};
MOONFLOW_BOTH inline Exponential exponential(float x, float low) {
  x = x > 91.0f ? 91.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer, and leaves that integer in the lowest bits
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = ((x - n * kLn2High) - n * kLn2Low) + low;
  // Minimax on [-ln 2 / 2, ln 2 / 2], relative error 3e-9.
  const float p = polynomial({0.49999994f, 0.166665196f, 0.041668389f, 0.0083687678f, 0.00138149306f}, r);
  return {(p * r) * r + r, bits_of(shifted) - bits_of(kShift)};
}

// The power of two is applied in two halves, so that results beyond the normal range come out as infinity, denormal or
// zero.
MOONFLOW_BOTH inline float whole(Exponential e) {
  const int32_t half = e.exponent >> 1;
  return (e.rest + 1.0f) * power_of_two(half) * power_of_two(e.exponent - half);
}

MOONFLOW_BOTH inline float exp(float x) {
#ifdef __CUDA_ARCH__  // which has an instruction for powers of two: half of the work, and within 1 unit too
  return ::expf(x);
#else
  return whole(exponential(x, 0));
#endif
}
MOONFLOW_BOTH inline double exp(double x) { return std::exp(x); }

// The one is taken away before the parts are put together; from 2^25 on it is beyond the last place.
MOONFLOW_BOTH inline float less_one(Exponential e) {
  const float scale = power_of_two(e.exponent < -126 ? -126 : e.exponent > 25 ? 25 : e.exponent);
  const float y = e.rest * scale + (scale - 1.0f);
  return e.exponent > 24 ? whole(e) : y;
}
MOONFLOW_BOTH inline float expm1(float x) {
  const float y = less_one(exponential(x, 0));
  return x == 0 ? x : y;
}
MOONFLOW_BOTH inline double expm1(double x) { return std::expm1(x); }

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

// The logarithm of 1 + x as it was rounded, and what that has lost of x. What is too small to add is its own result.
MOONFLOW_BOTH inline float log1p(float x) {
  const float sum = 1.0f + x, lost = (x - (sum - 1.0f)) / sum;
  const float y = log(sum) + (sum > 0 && x < std::numeric_limits<float>::infinity() ? lost : 0.0f);
  return std::fabs(x) < 0x1p-25f ? x : y;
}
MOONFLOW_BOTH inline double log1p(double x) { return std::log1p(x); }

// log(1 + exp(x)), whose exponential never overflows.
template <class T>
MOONFLOW_BOTH T softplus(T x) { return (x > 0 ? x : T(0)) + log1p(exp(-std::fabs(x))); }

// ---- angles ----------------------------------------------------------------------------------------------------

// x = quarter * pi / 2 + rest. The multiple is taken away in double precision: pi / 2 is in two parts, the first of so
// few digits that its products are exact up to kFarAngle. Beyond, sin, cos and tan here are wrong.
struct Angle {
  float rest;
  int32_t quarter;
};
constexpr float kFarAngle = 0x1p20f;
MOONFLOW_BOTH inline Angle angle(float x) {
  constexpr double kShift = 0x1.8p52;  // as above
  const double wide = x, shifted = wide * 0.63661977236758134 + kShift;
  const double n = shifted - kShift;
  const double rest = (wide - n * 1.57079632673412561) - n * 6.07710050650619225e-11;
  return {static_cast<float>(rest), static_cast<int32_t>(__builtin_bit_cast(int64_t, shifted))};
}

// Of an angle between -pi / 4 and pi / 4: minimax, relative errors 4e-9 and 1e-10.
MOONFLOW_BOTH inline float sin_near(float x) {
  const float square = x * x;
  return std::copysign(x + x * (square * polynomial({-0.166666552f, 0.00833215844f, -0.00019514958f}, square)), x);
}
MOONFLOW_BOTH inline float cos_near(float x) {
  const float square = x * x;
  const float p = polynomial({0.0416666456f, -0.0013887313f, 2.44327857e-05f}, square);
  return (square * square) * p + (1.0f - 0.5f * square);
}

MOONFLOW_BOTH inline float sin_of(Angle a) {
  const float sine = sin_near(a.rest), cosine = cos_near(a.rest);
  const float y = (a.quarter & 1) != 0 ? cosine : sine;
  return (a.quarter & 2) != 0 ? -y : y;
}
MOONFLOW_BOTH inline float sin(float x) { return sin_of(angle(x)); }
MOONFLOW_BOTH inline float cos(float x) {
  const Angle a = angle(x);
  return sin_of({a.rest, a.quarter + 1});
}
MOONFLOW_BOTH inline float tan(float x) {
  const Angle a = angle(x);
  const float sine = sin_near(a.rest), cosine = cos_near(a.rest);
  const bool turned = (a.quarter & 1) != 0;
  return (turned ? -cosine : sine) / (turned ? sine : cosine);
}

constexpr float kHalfPi = 1.57079637f, kHalfPiRest = -4.37113883e-8f;  // rounded, and what that has lost

// Of a number from 0 to 1: minimax, relative error 3e-9.
MOONFLOW_BOTH inline float atan_near(float x) {
  const float square = x * x;
  const float p = polynomial({-0.333332986f, 0.199985489f, -0.142642409f, 0.109521821f, -0.0840343982f, 0.0579574332f,
                              -0.031177694f, 0.0109145287f, -0.00179360528f},
                             square);
  return x + x * (square * p);
}
MOONFLOW_BOTH inline float atan(float x) {
  const float size = std::fabs(x);
  const bool steep = size > 1.0f;
  const float y = atan_near(steep ? 1.0f / size : size);
  return std::copysign(steep ? (kHalfPi - y) + kHalfPiRest : y, x);
}
MOONFLOW_BOTH inline double atan(double x) { return std::atan(x); }

// The angle of the point that lies so far up and so far across.
MOONFLOW_BOTH inline float atan2(float up, float across) {
  const float height = std::fabs(up), width = std::fabs(across);
  const bool steep = height > width;
  const float less = steep ? width : height, more = steep ? height : width;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float slope = more == 0 ? less : less == kInfinity && more == kInfinity ? 1.0f : less / more;
  float y = atan_near(slope);
  y = steep ? (kHalfPi - y) + kHalfPiRest : y;
  y = bits_of(across) < 0 ? (2.0f * kHalfPi - y) + 2.0f * kHalfPiRest : y;
  return std::copysign(y, up);
}
MOONFLOW_BOTH inline double atan2(double up, double across) { return std::atan2(up, across); }

MOONFLOW_BOTH inline float asin(float x) { return atan2(x, std::sqrt((1.0f - x) * (1.0f + x))); }
MOONFLOW_BOTH inline double asin(double x) { return std::asin(x); }
MOONFLOW_BOTH inline float acos(float x) { return atan2(std::sqrt((1.0f - x) * (1.0f + x)), x); }
MOONFLOW_BOTH inline double acos(double x) { return std::acos(x); }

// ---- hyperbolic ------------------------------------------------------------------------------------------------

// From exp(|x|) - 1, which keeps what is near 0. Half of exp(|x|) overflows later than the whole.
MOONFLOW_BOTH inline float sinh(float x) {
  const Exponential e = exponential(std::fabs(x), 0);
  const float above = less_one(e), y = 0.5f * (above + above / (above + 1.0f));
  return std::copysign(e.exponent > 24 ? whole({e.rest, e.exponent - 1}) : y, x);
}
MOONFLOW_BOTH inline double sinh(double x) { return std::sinh(x); }
MOONFLOW_BOTH inline float cosh(float x) {
  const Exponential e = exponential(std::fabs(x), 0);
  const float half = whole({e.rest, e.exponent - 1});
  return half + 0.25f / half;
}
MOONFLOW_BOTH inline double cosh(double x) { return std::cosh(x); }

// Far from 0 the square would overflow, and log(2 x) is as good.
constexpr float kFarFromZero = 0x1p13f, kLn2 = 0.693147182f;
MOONFLOW_BOTH inline float asinh(float x) {
  const float size = std::fabs(x), square = size * size;
  const float y = log1p(size + square / (1.0f + std::sqrt(1.0f + square)));
  return std::copysign(size > kFarFromZero ? log(size) + kLn2 : y, x);
}
MOONFLOW_BOTH inline double asinh(double x) { return std::asinh(x); }
MOONFLOW_BOTH inline float acosh(float x) {
  const float above = x - 1.0f, y = log1p(above + std::sqrt(above * (above + 2.0f)));
  return x > kFarFromZero ? log(x) + kLn2 : x >= 1 ? y : std::numeric_limits<float>::quiet_NaN();
}
MOONFLOW_BOTH inline double acosh(double x) { return std::acosh(x); }
MOONFLOW_BOTH inline float atanh(float x) {
  const float size = std::fabs(x);
  return std::copysign(0.5f * log1p(2.0f * size / (1.0f - size)), x);
}
MOONFLOW_BOTH inline double atanh(double x) { return std::atanh(x); }

// ---- curves like an S ------------------------------------------------------------------------------------------

// 1 / x for an x between 1/2 and 2^120, which a card divides by in three instructions in place of ten.
MOONFLOW_BOTH inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));  // within 1 unit of the last place
  return y + y * (1.0f - x * y);
#else
  return 1.0f / x;
#endif
}

// Near 0 an odd polynomial, elsewhere 1 - 2 / (exp(2 |x|) + 1).
MOONFLOW_BOTH inline float tanh(float x) {
  const float size = std::fabs(x), square = x * x;
  const float p = polynomial({-0.333332837f, 0.133314922f, -0.053743545f, 0.0206507575f, -0.00571725378f}, square);
  const float near = size + size * (square * p);
  const float far = 1.0f - 2.0f * reciprocal(exp(size > 10.0f ? 20.0f : 2.0f * size) + 1.0f);
  return std::copysign(size < 0.625f ? near : far, x);
}
MOONFLOW_BOTH inline double tanh(double x) { return std::tanh(x); }

// The exponential never overflows, and what is near 0 keeps its digits.
MOONFLOW_BOTH inline float sigmoid(float x) {
  const float e = exp(-std::fabs(x)), y = reciprocal(1.0f + e);
  return x >= 0 ? y : e * y;
}
MOONFLOW_BOTH inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// erfc(z) * exp(z^2) for z >= 0: t v(t) with t = 1 / (1 + 0.4 z); minimax up to z = 10.2, relative error 6e-8.
MOONFLOW_BOTH inline float scaled_erfc(float z) {
  const float t = reciprocal(1.0f + 0.4f * z);
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

// exp(-scale size^2), which would show what a float loses of the square; so size is split in two, of which the first
// has few enough digits that its square is exact.
MOONFLOW_BOTH inline float bell(float size, float scale) {
#ifdef __CUDA_ARCH__  // which has what a product loses in one instruction
  const float square = size * size, e = exp(-scale * square);
  return e - e * (scale * __fmaf_rn(size, size, -square));
#else
  const float high = float_of(bits_of(size) & ~0xfff);
  return whole(exponential(-scale * (high * high), -scale * ((size - high) * (size + high))));
#endif
}

// Near 0 from erf, elsewhere the tail itself.
MOONFLOW_BOTH inline float erfc(float x) {
  const float size = std::fabs(x) > 10.2f ? 10.2f : std::fabs(x);
  const float tail = bell(size, 1.0f) * scaled_erfc(size);
  return size < 0.5f ? 1.0f - erf(x) : x < 0 ? 2.0f - tail : tail;
}
MOONFLOW_BOTH inline double erfc(double x) { return std::erfc(x); }

// Near 0 an odd polynomial beside one half, elsewhere from the tail.
MOONFLOW_BOTH inline Normal<float> normal(float x) {
  const float size = std::fabs(x) > 15.0f ? 15.0f : std::fabs(x);
  const float e = bell(size, 0.5f);
  const float tail = 0.5f * e * scaled_erfc(size * static_cast<float>(kSqrtHalf));
  const float far = x >= 0 ? 1.0f - tail : tail;
  const float p = polynomial({0.398942292f, -0.0664902627f, 0.00997226778f, -0.00118136371f, 0.000103237035f}, x * x);
  return {size < 0.7f ? 0.5f + x * p : far, e * static_cast<float>(kOneOverSqrtTwoPi)};
}
MOONFLOW_BOTH inline Normal<double> normal(double x) {
  return {0.5 * std::erfc(-x * kSqrtHalf), kOneOverSqrtTwoPi * std::exp(-0.5 * x * x)};
}

}  // namespace moonflow::elementary
