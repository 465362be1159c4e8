// Elementary functions of one number. They have no branch, no call and no table, so a loop over them is compiled for
// whatever registers the loop is, and an element has the same value in a vector as at the end of a row. The math
// library has the sines of far angles. A card takes its own exponential and reciprocal.
//
// Errors of a processor against wider numbers, in units of the last place (tests/kernels/elementary_test.cpp), of
// float32 and of float64: exp 1.1 and 1.1 (0.6 of normal numbers), expm1 1.6 and 1.6, log 1.0 and 0.9, log1p 1.5 and
// 1.6, sin and cos 1.6 and 1.6, tan 3.6 and 3.2, atan 1.8 and 1.6, atan2 1.8, asin 2.4 and 2.4, acos 2.3 and 2.3, sinh
// 2.4 and 2.4, cosh 1.5 and 1.3, asinh 2.0 and 2.1, acosh 2.3 and 2.3, atanh 2.4 and 2.4, tanh 1.6 and 2.8, sigmoid 2.9
// and 2.8, softplus 1.9 and 2.0, erf 2.7 and 1.7, erfc 7.1 and 4.7, the normal distribution 7.1 and 6.2 and its density
// 2.1 and 2.0. A NaN gives a NaN, infinities give the limits, a zero keeps its sign where 0 goes to 0, and results
// below the normal range are rounded like all others.
#pragma once

#include "kernels/elementary_parts.h"

namespace moonflow::elementary {

// The power of two is applied in two halves, so that results beyond the normal range come out as infinity, denormal or
// zero.
template <class T>
MOONFLOW_BOTH T whole(Exponential<T> e) {
  const auto half = half_of(e.exponent);
  return factor_of(e) * power_of_two(half) * power_of_two(e.exponent - half);
}

template <class T>
MOONFLOW_BOTH T exp(T x) {
#ifdef __CUDA_ARCH__  // which has an instruction for powers of two: half of the work, and within 1 unit too
  if constexpr (std::is_same_v<T, float>)
    return ::expf(x);
  else
    return ::exp(x);
#else
  return whole(exponential(x, T(0)));
#endif
}

// The one is taken away before the parts are put together, and what is above the largest power of two multiplied last.
template <class T>
MOONFLOW_BOTH T less_one(Exponential<T> e) {
  using Exponent = decltype(e.exponent);
  constexpr Exponent kLeast = std::numeric_limits<T>::min_exponent - 1,
                     kMost = std::numeric_limits<T>::max_exponent - 1;
  const Exponent most = e.exponent > kMost ? kMost : e.exponent;
  const T scale = power_of_two(most < kLeast ? kLeast : most);
  return (e.rest * scale + (scale - 1)) * power_of_two(e.exponent - most);
}
template <class T>
MOONFLOW_BOTH T expm1(T x) {
  const T y = less_one(exponential(x, T(0)));
  return x == 0 ? x : y;
}

// With the limits of a logarithm in the place of what is none of a finite x.
template <class T>
MOONFLOW_BOTH T log_or_limit(T x, T y) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  y = x < kInfinity ? y : x;
  return x > 0 ? y : x == 0 ? -kInfinity : std::numeric_limits<T>::quiet_NaN();
}
template <class T>
MOONFLOW_BOTH T log(T x) {
  return log_or_limit(x, finite_log(x));
}

// To base 2 and 10 the exponent is taken as it is, not as a multiple of ln 2 that is divided again: so the logarithms
// of whole powers are whole, those of 2 at once, and those of 10 since the error before the last sum is a fifth of the
// last place. Products of the high part with exponents are exact.
MOONFLOW_BOTH inline double log2(double x) {
  const Octave o = octave(x);
  const double y = o.rest - (o.half_square - o.curve);
  return log_or_limit(x, o.exponent + (y * 0x1.777d0ffda0d24p-56 + y * 0x1.71547652b82fep+0));
}
MOONFLOW_BOTH inline double log10(double x) {
  constexpr double kLog2High = 0x1.34413509ep-2, kLog2Low = 0x1.79fef311f12b3p-38;
  const Octave o = octave(x);
  const double y = o.rest - (o.half_square - o.curve);
  return log_or_limit(
      x, o.exponent * kLog2High + (o.exponent * kLog2Low + (y * 0x1.95355baaafad3p-57 + y * 0x1.bcb7b1526e50ep-2)));
}

// The logarithm of 1 + x as it was rounded, and what that has lost of x. What is too small to add is its own result.
template <class T>
MOONFLOW_BOTH T log1p(T x) {
  const T sum = 1 + x, lost = (x - (sum - 1)) / sum;
  const T y = log(sum) + (sum > 0 && x < std::numeric_limits<T>::infinity() ? lost : T(0));
  return std::fabs(x) < std::numeric_limits<T>::epsilon() / 4 ? x : y;
}

// log(1 + exp(x)), whose exponential never overflows.
template <class T>
MOONFLOW_BOTH T softplus(T x) { return (x > 0 ? x : T(0)) + log1p(exp(-std::fabs(x))); }

template <class T>
MOONFLOW_BOTH T sin_of(Angle<T> a) {
  const T sine = sin_near(a.rest), cosine = cos_near(a.rest);
  const T y = (a.quarter & 1) != 0 ? cosine : sine;
  return (a.quarter & 2) != 0 ? -y : y;
}
template <class T>
MOONFLOW_BOTH T sin(T x) {
  return sin_of(angle(x));
}
template <class T>
MOONFLOW_BOTH T cos(T x) {
  const Angle<T> a = angle(x);
  return sin_of(Angle<T>{a.rest, a.quarter + 1});
}
template <class T>
MOONFLOW_BOTH T tan(T x) {
  const Angle<T> a = angle(x);
  const T sine = sin_near(a.rest), cosine = cos_near(a.rest);
  const bool turned = (a.quarter & 1) != 0;
  return (turned ? -cosine : sine) / (turned ? sine : cosine);
}

// pi / 2 rounded, and what that has lost.
template <class T>
constexpr T kHalfPi = static_cast<T>(1.5707963267948966);
template <class T>
constexpr T kHalfPiRest = std::is_same_v<T, float> ? -4.37113883e-8 : 6.123233995736766e-17;

template <class T>
MOONFLOW_BOTH T atan(T x) {
  const T size = std::fabs(x);
  const bool steep = size > 1;
  const T y = atan_near(steep ? 1 / size : size);
  return std::copysign(steep ? (kHalfPi<T> - y) + kHalfPiRest<T> : y, x);
}

// The angle of the point that lies so far up and so far across.
template <class T>
MOONFLOW_BOTH T atan2(T up, T across) {
  const T height = std::fabs(up), width = std::fabs(across);
  const bool steep = height > width;
  const T less = steep ? width : height, more = steep ? height : width;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const T slope = more == 0 ? less : less == kInfinity && more == kInfinity ? T(1) : less / more;
  T y = atan_near(slope);
  y = steep ? (kHalfPi<T> - y) + kHalfPiRest<T> : y;
  y = bits_of(across) < 0 ? (2 * kHalfPi<T> - y) + 2 * kHalfPiRest<T> : y;
  return std::copysign(y, up);
}

template <class T>
MOONFLOW_BOTH T asin(T x) {
  return atan2(x, std::sqrt((1 - x) * (1 + x)));
}
template <class T>
MOONFLOW_BOTH T acos(T x) {
  return atan2(std::sqrt((1 - x) * (1 + x)), x);
}

// ---- hyperbolic ------------------------------------------------------------------------------------------------

// From exp(|x|) - 1, which keeps what is near 0. Half of exp(|x|) overflows later than the whole.
template <class T>
MOONFLOW_BOTH T sinh(T x) {
  const Exponential<T> e = exponential(std::fabs(x), T(0));
  const T above = less_one(e), y = T(0.5) * (above + above / (above + 1));
  return std::copysign(
      e.exponent > std::numeric_limits<T>::digits ? whole(Exponential<T>{e.rest, e.exponent - 1, e.lost}) : y, x);
}
template <class T>
MOONFLOW_BOTH T cosh(T x) {
  const Exponential<T> e = exponential(std::fabs(x), T(0));
  const T half = whole(Exponential<T>{e.rest, e.exponent - 1, e.lost});
  return half + T(0.25) / half;
}

// Far from 0 the square would overflow, and log(2 x) is as good.
template <class T>
constexpr T kFarFromZero = std::is_same_v<T, float> ? 0x1p13 : 0x1p28;
template <class T>
constexpr T kLn2 = static_cast<T>(0.69314718055994531);
template <class T>
MOONFLOW_BOTH T asinh(T x) {
  const T size = std::fabs(x), square = size * size;
  const T y = log1p(size + square / (1 + std::sqrt(1 + square)));
  return std::copysign(size > kFarFromZero<T> ? log(size) + kLn2<T> : y, x);
}
template <class T>
MOONFLOW_BOTH T acosh(T x) {
  const T above = x - 1, y = log1p(above + std::sqrt(above * (above + 2)));
  return x > kFarFromZero<T> ? log(x) + kLn2<T> : x >= 1 ? y : std::numeric_limits<T>::quiet_NaN();
}
template <class T>
MOONFLOW_BOTH T atanh(T x) {
  const T size = std::fabs(x);
  return std::copysign(T(0.5) * log1p(2 * size / (1 - size)), x);
}

// ---- curves like an S ------------------------------------------------------------------------------------------

// 1 / x for an x between 1/2 and 2^120, which a card divides by in three instructions in place of ten.
MOONFLOW_BOTH inline double reciprocal(double x) { return 1.0 / x; }
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
MOONFLOW_BOTH inline double tanh(double x) {
  const double size = std::fabs(x), above = less_one(exponential(size > 20.0 ? 40.0 : 2.0 * size, 0.0));
  return std::copysign(above / (above + 2.0), x);
}

// The exponential never overflows, and what is near 0 keeps its digits.
template <class T>
MOONFLOW_BOTH T sigmoid(T x) {
  const T e = exp(-std::fabs(x)), y = reciprocal(1 + e);
  return x >= 0 ? y : e * y;
}

// erfc(z) * exp(z^2) for z >= 0: t v(t) with t = 1 / (1 + 0.4 z), minimax. Of float32 up to z = 10.2, relative error
// 6e-8; of float64 in powers of t - 1/2 and up to 28, 8e-17.
MOONFLOW_BOTH inline float scaled_erfc(float z) {
  const float t = reciprocal(1.0f + 0.4f * z);
  return t * polynomial({0.225636959f, 0.226397023f, 0.202213958f, 0.192127675f, 0.0827034116f, 0.0837326273f,
                         0.0876573473f, -0.142081827f, 0.0416128933f},
                        t);
}
MOONFLOW_BOTH inline double scaled_erfc(double z) {
  const double t = reciprocal(1.0 + 0.4 * z);
  return t * polynomial({0.4216127281222872,    0.6437214795513191,    0.7262625866369559,    0.5480036647873366,
                         0.18151392084433993,   -0.10743096706967217,  -0.12336090936513719,  0.02248746310311816,
                         0.07195583641836843,   -0.011941428307092557, -0.04612292811263515,  0.0160004326886908,
                         0.029891645218499727,  -0.02212552175074347,  -0.015289047352372243, 0.025645877492670964,
                         -9.29953707241704e-05, -0.02293721014808319,  0.013950589487866486,  0.012310330187177119,
                         -0.019595240496543858, 0.0014960548830870496, 0.011807997118280714,  -0.006341790361778292},
                        t - 0.5);
}

// Of a number between -1 and 1.
MOONFLOW_BOTH inline float erf_near(float x) {
  return x * polynomial({1.12837911f, -0.37612626f, 0.112835854f, -0.0268538129f, 0.00518833054f, -0.00080102263f,
                         7.85398952e-05f},
                        x * x);
}
MOONFLOW_BOTH inline double erf_near(double x) {
  return x * polynomial({1.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792,
                         0.0052239776248180145, -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05,
                         1.6461000484121368e-06, -1.6350312701054695e-07, 1.4659775274047436e-08,
                         -1.1372848856791674e-09, 5.957176147748911e-11},
                        x * x);
}

// Elsewhere 1 - erfc(|x|).
template <class T>
MOONFLOW_BOTH T erf(T x) {
  const T size = std::fabs(x), z = size > T(10) ? T(10) : size;
  const T far = std::copysign(T(1) - exp(-z * z) * scaled_erfc(z), x);
  return size < T(1) ? erf_near(x) : far;
}

// The standard normal distribution at x: how much of it lies below x, and its density there.
template <class T>
struct Normal {
  T cumulative, density;
};

constexpr double kSqrtHalf = 0.70710678118654752, kOneOverSqrtTwoPi = 0.39894228040143268;

// exp(-scale size^2), which would show what rounding loses of the square; so size is split in two, of which the first
// has few enough digits that its square is exact. `size` is so large at most that the square times scale is 115, or in
// float64 761.
MOONFLOW_BOTH inline float bell(float size, float scale) {
#ifdef __CUDA_ARCH__  // which has what a product loses in one instruction
  const float square = size * size, e = exp(-scale * square);
  return e - e * (scale * __fmaf_rn(size, size, -square));
#else
  const float high = float_of(bits_of(size) & ~0xfff);
  return whole(exponential_within(-scale * (high * high), -scale * ((size - high) * (size + high))));
#endif
}
MOONFLOW_BOTH inline double bell(double size, double scale) {
  const double high = double_of(static_cast<uint64_t>(bits_of(size)) & ~uint64_t{0x7ffffff});
  return whole(exponential(-scale * (high * high), -scale * ((size - high) * (size + high))));
}

// Near 0 from erf, elsewhere the tail itself.
template <class T>
MOONFLOW_BOTH T erfc(T x) {
  constexpr T kMost = std::is_same_v<T, float> ? T(10.2) : T(27.5);
  const T size = std::fabs(x) > kMost ? kMost : std::fabs(x);
  const T tail = bell(size, T(1)) * scaled_erfc(size);
  return size < T(0.5) ? T(1) - erf_near(x) : x < 0 ? T(2) - tail : tail;
}

// From the tail, which is one half at 0.
template <class T>
MOONFLOW_BOTH Normal<T> normal(T x) {
  constexpr T kMost = std::is_same_v<T, float> ? T(15) : T(39);
  const T size = std::fabs(x) > kMost ? kMost : std::fabs(x);
  const T e = bell(size, T(0.5));
  const T tail = T(0.5) * e * scaled_erfc(size * static_cast<T>(kSqrtHalf));
  return {x >= 0 ? T(1) - tail : tail, e * static_cast<T>(kOneOverSqrtTwoPi)};
}

}  // namespace moonflow::elementary
