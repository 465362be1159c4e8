// The arithmetic of Winograd's convolution along one axis; conv_winograd.cpp applies it along two.
//
// Four neighbouring outputs of a filter with r taps are numbers of a product of polynomials: seen the other way round,
// they are linear in the r + 3 inputs under them, and every bilinear algorithm for the product of a polynomial of
// degree r - 1 and one of degree 3 gives, transposed, an algorithm for them. Take Toom and Cook's: evaluate both at
// n = r + 3 points, multiply point by point, interpolate. So
//     out = collect(evaluate(filter) * spread(input))
// takes n multiplications where the plain sum takes 4 r, and along two axes n^2 instead of 16 r^2: 64 for 400 where
// r = 5, and 36 for 144 where r = 3. The gradient of the filter is the same with 4 and r exchanged.
//
// The points are 0, pairs of +a and -a, and infinity (the leading coefficient). Pairs share their even and odd parts.
// With M(x) = x * q(x^2), q(y) the product of (y - a^2) over the pairs, interpolation at +-a takes the coefficients of
//     M(x) / (x -+ a) = x^2 q_a(x^2) +- a x q_a(x^2),   q_a(y) = q(y) / (y - a^2),
// and the division by f = 2 a^2 q_a(a^2), or by q(0) at the point 0. Here the divisions are left out; whoever uses the
// points multiplies by scale() once for each filter, which is cheaper than for each image.
//
// Where two outputs suffice, at the edge of an image whose sides 4 does not divide, the narrow form makes them of
// r + 1 inputs at n - 2 points: those of the same algorithm without its last pair. It takes the same filter at those
// points, whose scale() is that of all points, so what an input gives is multiplied by what lacks.
//
// Source: Lavin and Gray, arXiv:1509.09308; the pairs 1, 2, 1/2 are the usual ones and about the best for float32.
#pragma once

namespace moonflow::cpu {

template <int kTaps>
struct Pairs;
template <>
struct Pairs<3> {
  static constexpr int kCount = 2;
  static constexpr double kValues[] = {1, 2};
};
template <>
struct Pairs<5> {
  static constexpr int kCount = 3;
  static constexpr double kValues[] = {1, 2, 0.5};
};

template <int kTaps>
struct Winograd {
  static constexpr int kOuts = 4;
  static constexpr int kPoints = kTaps + kOuts - 1;
  static constexpr int kPairs = Pairs<kTaps>::kCount;
  static_assert(kPoints == 2 * kPairs + 2, "the points are 0, the pairs, and infinity");

  // What `count` numbers, as a polynomial, give at the points, which stand in the order 0, +a, -a, ..., infinity.
  // Beyond its degree they are zeros.
  template <int count, class V>
  static void evaluate(const V (&from)[count], V (&to)[kPoints], int degree = count - 1) {
    to[0] = from[0];
    to[kPoints - 1] = from[degree];
#pragma GCC unroll 8
    for (int k = 0; k < kPairs; ++k) {
      V even = from[0], odd = kNumbers.power[k][1] * from[1];
#pragma GCC unroll 8
      for (int i = 2; i < count; i += 2) even += kNumbers.power[k][i] * from[i];
#pragma GCC unroll 8
      for (int i = 3; i < count; i += 2) odd += kNumbers.power[k][i] * from[i];
      to[1 + 2 * k] = even + odd;
      to[2 + 2 * k] = even - odd;
    }
  }

  // Whether the narrow form has this point.
  static constexpr bool is_narrow(int point) { return point < 2 * kPairs - 1 || point == kPoints - 1; }

  // The transpose of evaluate.
  template <bool kNarrow = false, int count, class V>
  static void collect(const V (&from)[kPoints], V (&to)[count]) {
    constexpr int pairs = kPairs - kNarrow;
    V sum[pairs], difference[pairs];
#pragma GCC unroll 8
    for (int k = 0; k < pairs; ++k) {
      sum[k] = from[1 + 2 * k] + from[2 + 2 * k];
      difference[k] = from[1 + 2 * k] - from[2 + 2 * k];
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      V total = kNumbers.power[0][i] * (i % 2 == 0 ? sum[0] : difference[0]);
#pragma GCC unroll 8
      for (int k = 1; k < pairs; ++k) total += kNumbers.power[k][i] * (i % 2 == 0 ? sum[k] : difference[k]);
      if (i == 0) total += from[0];
      if (i == count - 1) total += from[kPoints - 1];
      to[i] = total;
    }
  }

  // The transpose of interpolation, but for scale(): inputs to points, in place.
  template <bool kNarrow = false, class V>
  static void spread(V (&d)[kPoints]) {
    constexpr int pairs = kPairs - kNarrow;
    constexpr const Numbers& numbers = kNarrow ? kNarrowNumbers : kNumbers;
    V zero = d[2 * pairs], infinity = d[2 * pairs + 1], even[pairs], odd[pairs];
#pragma GCC unroll 8
    for (int j = 0; j < pairs; ++j) {
      zero += numbers.whole[j] * d[2 * j];
      infinity += numbers.whole[j] * d[2 * j + 1];
    }
#pragma GCC unroll 8
    for (int k = 0; k < pairs; ++k) {
      even[k] = d[2 * pairs];
      odd[k] = numbers.odd[k][pairs - 1] * d[2 * pairs - 1];
#pragma GCC unroll 8
      for (int j = 0; j < pairs - 1; ++j) {
        even[k] += numbers.even[k][j] * d[2 * j + 2];
        odd[k] += numbers.odd[k][j] * d[2 * j + 1];
      }
    }
    d[0] = zero;
    d[kPoints - 1] = infinity;
#pragma GCC unroll 8
    for (int k = 0; k < pairs; ++k) {
      d[1 + 2 * k] = even[k] + odd[k];
      d[2 + 2 * k] = even[k] - odd[k];
    }
    if constexpr (kNarrow) {
#pragma GCC unroll 8
      for (int i = 0; i < 2 * pairs + 1; ++i) d[i] *= numbers.scale[i] / kNumbers.scale[i];
    }
  }

  static constexpr float scale(int point) { return kNumbers.scale[point]; }

 private:
  struct Numbers {
    float whole[kPairs + 1];     // coefficients of q
    float even[kPairs][kPairs];  // of q_a
    float odd[kPairs][kPairs];   // of a q_a
    float power[kPairs][8];      // of a
    float scale[kPoints];
  };

  static constexpr Numbers numbers(int pairs) {
    Numbers result{};
    double whole[kPairs + 1] = {1};  // lowest power first
    for (int k = 0; k < pairs; ++k) times_root(whole, k, square(k));
    for (int j = 0; j <= pairs; ++j) result.whole[j] = static_cast<float>(whole[j]);
    result.scale[0] = static_cast<float>(1 / whole[0]);
    result.scale[kPoints - 1] = 1;
    for (int k = 0; k < pairs; ++k) {
      double rest[kPairs + 1] = {1}, at_root = 0, power = 1;
      for (int other = 0, degree = 0; other < pairs; ++other) {
        if (other != k) times_root(rest, degree++, square(other));
      }
      for (int j = 0; j < pairs; ++j, power *= square(k)) {
        at_root += rest[j] * power;
        result.even[k][j] = static_cast<float>(rest[j]);
        result.odd[k][j] = static_cast<float>(rest[j] * Pairs<kTaps>::kValues[k]);
      }
      const double scale = 1 / (2 * square(k) * at_root);
      result.scale[1 + 2 * k] = result.scale[2 + 2 * k] = static_cast<float>(scale);
      power = 1;
      for (int i = 0; i < 8; ++i, power *= Pairs<kTaps>::kValues[k]) result.power[k][i] = static_cast<float>(power);
    }
    return result;
  }
  static constexpr double square(int k) { return Pairs<kTaps>::kValues[k] * Pairs<kTaps>::kValues[k]; }
  // Multiplies a polynomial of that degree by (y - root).
  static constexpr void times_root(double* polynomial, int degree, double root) {
    for (int j = degree + 1; j >= 0; --j) {
      polynomial[j] = (j > 0 ? polynomial[j - 1] : 0) - (j <= degree ? root * polynomial[j] : 0);
    }
  }

  static constexpr Numbers kNumbers = numbers(kPairs), kNarrowNumbers = numbers(kPairs - 1);
};

}  // namespace moonflow::cpu
