// What the elementary functions are made of, for float32 and for float64: an argument taken apart into an integer and a
// rest, and a polynomial of the rest. There is no branch, no call and no table. Integers are as wide as the numbers,
// and those beside float64 are only shifted, added and compared, as processors with AVX2 can: they are not converted,
// and no sign is shifted in.
//
// Polynomials are minimax, found by Remez's algorithm.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#ifdef __CUDACC__
#define MOONFLOW_BOTH __host__ __device__
#else
#define MOONFLOW_BOTH
#endif

namespace moonflow::elementary {

MOONFLOW_BOTH inline int32_t bits_of(float x) { return __builtin_bit_cast(int32_t, x); }
MOONFLOW_BOTH inline float float_of(int32_t bits) { return __builtin_bit_cast(float, bits); }
MOONFLOW_BOTH inline int64_t bits_of(double x) { return __builtin_bit_cast(int64_t, x); }
MOONFLOW_BOTH inline double double_of(uint64_t bits) { return __builtin_bit_cast(double, bits); }

// A polynomial, coefficients from the constant on, by Horner's rule.
template <class T, int kTerms>
MOONFLOW_BOTH inline T polynomial(const T (&terms)[kTerms], T x) {
  T sum = terms[kTerms - 1];
#ifndef __CUDACC__  // which unrolls it without being told
#pragma GCC unroll 24
#endif
  for (int i = kTerms - 2; i >= 0; --i) sum = sum * x + terms[i];
  return sum;
}

// exp(x + low) = (1 + rest) 2^exponent, for a `low` that is small beside 1: what is left of an x that has more digits
// than a float. With n the integer nearest to x / ln 2 and r = x - n ln 2, rest is exp(r) - 1, a polynomial.
template <class T>
struct Exponential {
  T rest;
  decltype(bits_of(T())) exponent;
  T lost = 0;  // by rounding `rest`, of float64; float32 does without
};

// x = quarter * pi / 2 + rest. pi / 2 is in parts, of so few digits that products with them are exact up to
// kFarAngle. Beyond, sin, cos and tan here are wrong.
template <class T>
struct Angle {
  T rest;
  decltype(bits_of(T())) quarter;
};
template <class T>
constexpr T kFarAngle = std::is_same_v<T, float> ? 0x1p20 : 0x1p15;

// ---- of float32 ------------------------------------------------------------------------------------------------

// ln 2 in two parts: the products of the high one with exponents are exact.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// 2^exponent, for the exponents of normal numbers. Of others it is nonsense, which must not overflow.
MOONFLOW_BOTH inline float power_of_two(int32_t exponent) {
  return float_of(static_cast<int32_t>(static_cast<uint32_t>(exponent + 127) << 23));
}
MOONFLOW_BOTH inline int32_t half_of(int32_t exponent) { return exponent >> 1; }

// 1 + rest.
MOONFLOW_BOTH inline float factor_of(Exponential<float> e) { return e.rest + 1.0f; }

// Of an x from -115 to 91.
MOONFLOW_BOTH inline Exponential<float> exponential_within(float x, float low) {
  constexpr float kShift = 0x1.8p23f;  // adding it rounds to an integer, and leaves that integer in the lowest bits
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = ((x - n * kLn2High) - n * kLn2Low) + low;
  // Minimax on [-ln 2 / 2, ln 2 / 2], relative error 3e-9.
  const float p = polynomial({0.49999994f, 0.166665196f, 0.041668389f, 0.0083687678f, 0.00138149306f}, r);
  return {(p * r) * r + r, bits_of(shifted) - bits_of(kShift)};
}
MOONFLOW_BOTH inline Exponential<float> exponential(float x, float low) {
  x = x > 91.0f ? 91.0f : x;
  return exponential_within(x < -104.0f ? -104.0f : x, low);
}

// x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), and log(1 + f) = f - f^2 / 2 + f^3 p(f).
MOONFLOW_BOTH inline float finite_log(float x) {
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
  return n * kLn2High + (f - (0.5f * square - rest));
}

MOONFLOW_BOTH inline Angle<float> angle(float x) {
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

// Of a number from 0 to 1: minimax, relative error 3e-9.
MOONFLOW_BOTH inline float atan_near(float x) {
  const float square = x * x;
  const float p = polynomial({-0.333332986f, 0.199985489f, -0.142642409f, 0.109521821f, -0.0840343982f, 0.0579574332f,
                              -0.031177694f, 0.0109145287f, -0.00179360528f},
                             square);
  return x + x * (square * p);
}

// ---- of float64 ------------------------------------------------------------------------------------------------

MOONFLOW_BOTH inline double power_of_two(int64_t exponent) {
  return double_of(static_cast<uint64_t>(exponent + 1023) << 52);
}
// Rounded down, for the exponents of numbers.
MOONFLOW_BOTH inline int64_t half_of(int64_t exponent) {
  return static_cast<int64_t>(static_cast<uint64_t>(exponent + 0x1000) >> 1) - 0x800;
}

MOONFLOW_BOTH inline double factor_of(Exponential<double> e) {
  const double sum = 1.0 + e.rest;
  return sum + ((e.rest - (sum - 1.0)) + e.lost);
}

MOONFLOW_BOTH inline Exponential<double> exponential(double x, double low) {
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  x = x > 711.0 ? 711.0 : x;
  x = x < -746.0 ? -746.0 : x;
  constexpr double kShift = 0x1.8p52;
  const double shifted = x * 1.4426950408889634 + kShift;
  const double n = shifted - kShift;
  const double most = x - n * kLn2High, least = n * kLn2Low - low, r = most - least;
  // Relative error 4e-18.
  const double p = polynomial({0.5000000000000011, 0.16666666666666413, 0.041666666666530246, 0.008333333333494366,
                               0.0013888888943604388, 0.00019841269506734154, 2.480149312854847e-05,
                               2.7557586287601005e-06, 2.7630236848263495e-07, 2.500007090652112e-08},
                              r);
  const double curved = (p * r) * r + ((most - r) - least), rest = r + curved;
  // Of the lowest bits alone, so that a NaN has an exponent too, which no sum overflows with.
  constexpr int64_t kBits = 0x1fff, kSign = 0x1000;
  return {rest, ((bits_of(shifted) & kBits) ^ kSign) - kSign, curved - (rest - r)};
}

// x = 2^exponent (1 + rest) with 1 + rest between sqrt(1/2) and sqrt(2), and log(1 + rest) = rest - (half_square -
// curve).
struct Octave {
  double exponent, rest, half_square, curve;
};

// With s = f / (2 + f), log(1 + f) is 2 artanh(s) = 2 s + 2/3 s^3 + ...; 2 s is f - s f, and s f is f^2 / 2 - s f^2 /
// 2, so that only what is small beside f is rounded twice.
MOONFLOW_BOTH inline Octave octave(double x) {
  constexpr uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd, kBias = 1024, kMantissa = (uint64_t{1} << 52) - 1;
  const bool denormal = x < std::numeric_limits<double>::min();
  const uint64_t bits = static_cast<uint64_t>(bits_of(denormal ? x * 0x1p54 : x)) - kSqrtHalfBits;
  // The exponent in the lowest bits of 2^52, which is taken away again.
  const double biased = double_of(0x4330000000000000 | (bits + (kBias << 52)) >> 52);
  const double n = biased - (0x1p52 + kBias) - (denormal ? 54.0 : 0.0);
  const double f = double_of((bits & kMantissa) + kSqrtHalfBits) - 1.0;
  const double s = f / (2.0 + f), square = s * s, half_square = 0.5 * f * f;
  // Relative to the whole below 3e-18.
  const double p = polynomial({0.6666666666666734, 0.3999999999941468, 0.285714287423865, 0.22222198573337001,
                               0.18183564316966852, 0.15314050806553206, 0.14795947016138308},
                              square);
  return {n, f, half_square, s * (half_square + square * p)};
}
MOONFLOW_BOTH inline double finite_log(double x) {
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  const Octave o = octave(x);
  return o.exponent * kLn2High - ((o.half_square - (o.curve + o.exponent * kLn2Low)) - o.rest);
}

// pi / 2 in three parts. Products of the first two with the multiple are exact up to kFarAngle, and what the difference
// from the second has lost is taken from that from the third. A zero keeps its sign.
MOONFLOW_BOTH inline Angle<double> angle(double x) {
  constexpr double kShift = 0x1.8p52;
  const double shifted = x * 0.63661977236758134 + kShift;
  const double n = shifted - kShift;
  const double first = x - n * 0x1.921fb544p+0, product = n * 0x1.0b4611a6p-34, second = first - product;
  const double lost = (first - second) - product;
  return {second - (n * 0x1.3198a2e037073p-69 - lost), bits_of(shifted)};
}

// Relative errors 4e-18 and 1e-19.
MOONFLOW_BOTH inline double sin_near(double x) {
  const double square = x * x;
  const double p = polynomial({-0.16666666666666632, 0.008333333333322413, -0.00019841269829807957,
                               2.75573136919588e-06, -2.5050758120523338e-08, 1.589679591390133e-10},
                              square);
  return std::copysign(x + x * (square * p), x);
}
MOONFLOW_BOTH inline double cos_near(double x) {
  const double square = x * x;
  const double p = polynomial({0.0416666666666666, -0.0013888888888874125, 2.480158728948228e-05,
                               -2.7557314352354947e-07, 2.0875723275799333e-09, -1.1359647923399437e-11},
                              square);
  const double half = 0.5 * square, most = 1.0 - half;
  return most + (((1.0 - most) - half) + (square * square) * p);
}

// Relative error 4e-18.
MOONFLOW_BOTH inline double atan_near(double x) {
  const double square = x * x;
  const double p =
      polynomial({-0.33333333333333093,  0.19999999999955448,   -0.142857142828028,     0.11111111013666047,
                  -0.090909071195016,    0.07692281189412456,   -0.06666415017833627,   0.058805926705796756,
                  -0.05253806058091447,  0.04723295055521772,   -0.04221722220998274,   0.03669361565381364,
                  -0.029985708088673305, 0.022085318112819188,  -0.013995145720036888,  0.007263473226187667,
                  -0.002919403836629049, 0.0008435075257890604, -0.0001548022700328875, 1.3489828465293491e-05},
                 square);
  return x + x * (square * p);
}

}  // namespace moonflow::elementary
