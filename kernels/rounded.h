// Arithmetic in float64 that rounds each operation for itself, and what random numbers need of a logarithm and of sine
// and cosine in it, so that all devices, processors and math libraries give the same bits. A device is told so for each
// operation; other compilers by -ffp-contract=off for the sources that come here, since C++ has no words for it.
//
// Coefficients: minimax, found by Remez's algorithm in 60 digits. Errors in units of the last place
// (tests/kernels/random_test.cpp): the logarithm 0.75, sine and cosine 1.6.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MOONFLOW_HOST_DEVICE __host__ __device__
#else
#define MOONFLOW_HOST_DEVICE
#endif

namespace moonflow {

struct Rounded {
  double value;

  MOONFLOW_HOST_DEVICE friend Rounded operator+(Rounded a, Rounded b) {
#ifdef __CUDA_ARCH__
    return {__dadd_rn(a.value, b.value)};
#else
    return {a.value + b.value};
#endif
  }
  MOONFLOW_HOST_DEVICE friend Rounded operator*(Rounded a, Rounded b) {
#ifdef __CUDA_ARCH__
    return {__dmul_rn(a.value, b.value)};
#else
    return {a.value * b.value};
#endif
  }
  MOONFLOW_HOST_DEVICE friend Rounded operator/(Rounded a, Rounded b) { return {a.value / b.value}; }
  MOONFLOW_HOST_DEVICE friend Rounded operator-(Rounded a) { return {-a.value}; }
  MOONFLOW_HOST_DEVICE friend Rounded operator-(Rounded a, Rounded b) { return a + -b; }

  // A polynomial, coefficients from the constant on, by Horner's rule.
  template <int kTerms>
  MOONFLOW_HOST_DEVICE static Rounded polynomial(const double (&terms)[kTerms], Rounded x) {
    Rounded sum{terms[kTerms - 1]};
#ifndef __CUDACC__  // which unrolls it without being told
#pragma GCC unroll 16
#endif
    for (int i = kTerms - 2; i >= 0; --i) sum = sum * x + Rounded{terms[i]};
    return sum;
  }
};

// n from 0 to 2^53, exactly. Processors with AVX2 alone have no instruction for it, so no loop over it would be
// compiled for wide registers: each half is put below the bits of a power of two, which is taken away again.
MOONFLOW_HOST_DEVICE inline double double_of(int64_t n) {
#ifdef __CUDA_ARCH__
  return static_cast<double>(n);
#else
  constexpr uint64_t kLowPower = 0x4330000000000000, kHighPower = 0x4530000000000000;  // 2^52 and 2^84
  const uint64_t bits = static_cast<uint64_t>(n);
  const double low = __builtin_bit_cast(double, kLowPower | (bits & 0xFFFFFFFF)) - 0x1p52;
  const double high = __builtin_bit_cast(double, kHighPower | bits >> 32) - 0x1p84;
  return high + low;
#endif
}

// ln(n / 2^53) for n from 1 to 2^53. With n = 2^k (1 + f), 1 + f nearest to 1, and s = f / (2 + f), ln(1 + f) is
// 2 artanh(s) = 2 s + 2/3 s^3 + ...; 2 s is f - s f, and s f is f^2 / 2 - s f^2 / 2, so that only what is small beside
// f is rounded twice.
MOONFLOW_HOST_DEVICE inline Rounded log_of_fraction(int64_t n) {
  constexpr int64_t kSqrtHalf = 0x3FE6A09E667F3BCD;                           // as it lies in memory
  constexpr double kLn2High = 0x1.62e42p-1, kLn2Low = 0x1.fdf473de6af28p-22;  // products of the high part are exact
  const int64_t bits = __builtin_bit_cast(int64_t, double_of(n));
  const int64_t exponent = static_cast<int64_t>(static_cast<uint64_t>(bits - kSqrtHalf) >> 52);  // of n, so 0 at least
  const Rounded k{double_of(exponent) - 53};
  const Rounded f{__builtin_bit_cast(double, bits - exponent * (int64_t{1} << 52)) - 1};
  const Rounded s = f / (Rounded{2} + f), square = s * s, half_square = Rounded{0.5} * f * f;
  const Rounded rest =
      square * Rounded::polynomial({0.66666666666667340, 0.39999999999414654, 0.28571428742391597, 0.22222198572840465,
                                    0.18183564342221890, 0.15314050162244802, 0.14795953525207003},
                                   square);
  return k * Rounded{kLn2High} - ((half_square - (s * (half_square + rest) + k * Rounded{kLn2Low})) - f);
}

// The cosine and the sine of n / 2^53 of a turn, n from 0 to 2^53: those of what is left of the nearest quarter, at
// most an eighth, with the quarters turned back.
struct Turn {
  double cosine, sine;
};
MOONFLOW_HOST_DEVICE inline Turn turn_of_fraction(int64_t n) {
  constexpr double kTurn = 0x1.921fb54442d18p+2, kTurnLow = 0x1.1a62633145c07p-52;  // 2 pi in two parts
  constexpr int64_t kEighth = int64_t{1} << 50;
  const int64_t quarters = static_cast<int64_t>(static_cast<uint64_t>(n + kEighth) >> 51);
  const double beyond = double_of(n + kEighth - quarters * (2 * kEighth)) - static_cast<double>(kEighth);
  const Rounded r{beyond * 0x1p-53}, square = r * r;
  const Rounded sine = r * Rounded{kTurn} +
                       r * (Rounded{kTurnLow} +
                            square * Rounded::polynomial({-41.341702240399680, 81.605249275968230, -76.705859708784700,
                                                          42.058685506760420, -15.093829323318111, 3.7813664269469967},
                                                         square));
  const Rounded cosine =
      Rounded{1} +
      square * Rounded::polynomial({-19.739208802178716, 64.939394022668010, -85.456817206540050, 60.244641331612010,
                                    -26.426251140470644, 7.9031016401731830, -1.6970201223375367},
                                   square);
  // By masks: which quarter it is nobody can foretell, nor a processor, and a branch would cost more than the sums.
  const auto bits = [](double x) { return __builtin_bit_cast(uint64_t, x); };
  const uint64_t quarter = static_cast<uint64_t>(quarters);
  const uint64_t swapped = (bits(sine.value) ^ bits(cosine.value)) & -(quarter & 1);
  const uint64_t cosine_sign = ((quarter + 1) & 2) << 62, sine_sign = (quarter & 2) << 62;
  return {__builtin_bit_cast(double, bits(cosine.value) ^ swapped ^ cosine_sign),
          __builtin_bit_cast(double, bits(sine.value) ^ swapped ^ sine_sign)};
}

}  // namespace moonflow
