// What the element-wise ops compute for one element, as small functors. The CPU loops and the CUDA kernels share them,
// so they hold plain data and call nothing but arithmetic and <cmath>.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow::functor {

// Marks a functor whose float32 form has neither branch nor call: its loops are worth compiling for wide registers.
struct Vectorised {};
// Marks one of a few instructions: its loops are bound by memory, those of float64 too.
struct Cheap : Vectorised {};
// Marks one that has a float32 form of that kind for all but far values: `near`, which the CPU's loops call where
// `is_far` of its arguments allows them to.
struct Near {};
// Such a one of an angle, its last argument; in float64 too.
struct Angular : Near {
  template <class T>
  MOONFLOW_BOTH static bool is_far(T x) {
    return std::fabs(x) > elementary::kFarAngle<T>;
  }
  template <class T>
  MOONFLOW_BOTH static bool is_far(T, T x) {
    return is_far(x);
  }
};

// Arithmetic of integers wraps around, as in NumPy; through unsigned numbers, because overflow of signed ones has no
// meaning in C++. Products of 8-bit numbers fit int, so only the wider types need it.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T> && (sizeof(T) >= 4), std::make_unsigned<T>, std::decay<T>>;

// Rounded for itself, whatever is added to it next: an op of a chain gives what it gives alone. On a card the compiler
// would make one operation of a product and a sum, and sqrt(mean(x^2) - mean(x)^2) of equal numbers a NaN.
template <class T>
MOONFLOW_BOTH T product(T x, T y) {
#ifdef __CUDA_ARCH__
  if constexpr (std::is_same_v<T, float>) return __fmul_rn(x, y);
  if constexpr (std::is_same_v<T, double>) return __dmul_rn(x, y);
#endif
  return x * y;
}

// Between any two dtypes. Floating to integer truncates toward zero, saturates, and gives 0 for a NaN.
template <class To, class From>
MOONFLOW_BOTH To convert(From x) {
  if constexpr (kNarrow<From> && !std::is_same_v<To, From>) return convert<To>(static_cast<float>(x));
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && sizeof(To) < sizeof(int32_t)) {
    constexpr From kLeast = std::numeric_limits<To>::lowest(), kMost = std::numeric_limits<To>::max();
    const From within = x < kLeast ? kLeast : x > kMost ? kMost : x;
    return static_cast<To>(static_cast<int32_t>(x != x ? From(0) : within));
  }
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (x != x) return 0;
    if (x <= static_cast<From>(std::numeric_limits<To>::lowest())) return std::numeric_limits<To>::lowest();
    if (x >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  }
  return static_cast<To>(x);
}

template <class T>
MOONFLOW_BOTH bool is_negative(T x) {
  if constexpr (std::is_unsigned_v<T>) return (void)x, false;
  else return x < 0;
}

// ---- two inputs: (x, y) --------------------------------------------------------------------------------------

struct Add : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const {
    using U = typename Wrapping<T>::type;
    return static_cast<T>(static_cast<U>(x) + static_cast<U>(y));
  }
};
struct Subtract : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const {
    using U = typename Wrapping<T>::type;
    return static_cast<T>(static_cast<U>(x) - static_cast<U>(y));
  }
};
struct Multiply : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const {
    using U = typename Wrapping<T>::type;
    return static_cast<T>(product(static_cast<U>(x), static_cast<U>(y)));
  }
};
struct Divide : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return x / y; }
};
// A NaN on either side wins.
struct Maximum : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return x > y || x != x ? x : y; }
};
struct Minimum : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return x < y || x != x ? x : y; }
};
struct SquaredDifference : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const {
    const T difference = Subtract{}(x, y);
    return Multiply{}(difference, difference);
  }
};
// Mod and FloorDiv belong together: x = floordiv * y + mod, and mod is exact but for the one rounding of a sum with y.
// So the quotient is not rounded before its floor is taken: 1 / 0.1f is 10 in float32, and a little less in truth.
//
// Of two float32 numbers the quotient in float64, below 2^29, has the floor of the exact one. Let |x| >= |y|, and u be
// the last place of y: both are multiples of u, and so is the distance of x from any multiple of y. Where that is not 0
// the exact quotient is u / |y| > 2^-24 or more away from a whole number, and rounding moves it by at most 2^-25.
//
// As in NumPy and Python: over infinity the quotient is -1 where the signs differ, and of infinity it is a NaN; over 0
// it is x / y, and the remainder a NaN. A remainder of 0 has the sign of y. Integers: both are 0 where y is 0. -1 is
// taken out because lowest / -1 traps.
struct Mod : Near {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      if (y == 0 || y == static_cast<T>(-1)) return std::is_signed_v<T> || y == 0 ? T(0) : static_cast<T>(x % y);
      const T rest = static_cast<T>(x % y);
      return rest != 0 && is_negative(rest) != is_negative(y) ? static_cast<T>(rest + y) : rest;
    } else {
      return with_sign_of(y, std::fmod(x, y));
    }
  }
  // So a far pair is also each with a NaN, an infinite x, or a y of 0.
  MOONFLOW_BOTH static bool is_far(float x, float y) { return !(std::fabs(x) < 0x1p29f * std::fabs(y)); }
  MOONFLOW_BOTH static float near(float x, float y) {
    // Products of 29 and 24 bits are exact, and a remainder always has a place. Whole times infinity is 0, or a NaN.
    const double whole = std::trunc(static_cast<double>(x) / static_cast<double>(y));
    const float rest = static_cast<float>(static_cast<double>(x) - whole * static_cast<double>(y));
    return with_sign_of(y, whole == 0 ? x : rest);
  }

 private:
  template <class T> MOONFLOW_BOTH static T with_sign_of(T y, T rest) {
    const T moved = is_negative(rest) != is_negative(y) ? rest + y : rest;
    return rest == 0 ? std::copysign(rest, y) : moved;
  }
};
struct FloorDiv : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      if (y == 0) return 0;
      if constexpr (std::is_signed_v<T>) {
        if (y == -1) return Subtract{}(T(0), x);
        return static_cast<T>(x / y - (x % y != 0 && (x < 0) != (y < 0)));
      }
      return static_cast<T>(x / y);
    } else if constexpr (std::is_same_v<T, float>) {
      const double quotient = static_cast<double>(x) / static_cast<double>(y);
      // Only infinity divides a number so that nothing is left.
      const bool is_below_0 = quotient == 0 && x != 0 && is_negative(x) != is_negative(y);
      const float floor = is_below_0 ? -1.0f : static_cast<float>(std::floor(quotient));
      return x - x == 0 || y == 0 ? floor : x - x;
    } else {
      if (y == 0) return x / y;
      const T rest = std::fmod(x, y);
      const bool moves = rest != 0 && is_negative(rest) != is_negative(y);
      const T quotient = (x - rest) / y - moves;  // a whole number, but for its rounding
      return quotient == 0 ? std::copysign(T(0), x / y) : std::rint(quotient);
    }
  }
};
struct Pow : Near {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return std::pow(x, y); }
  // Through float64, whose last places are far below those of the result.
  MOONFLOW_BOTH static bool is_far(float x, float y) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    return !(x > 0 && x < kInfinity && std::fabs(y) < kInfinity);
  }
  MOONFLOW_BOTH static float near(float x, float y) {
    return static_cast<float>(elementary::exp(static_cast<double>(y) * elementary::log(static_cast<double>(x))));
  }
};
struct Atan2 : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return elementary::atan2(x, y); }
};
struct Xdivy : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return x == 0 ? T(0) : x / y; }
};
struct Xlogy : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x, T y) const { return x == 0 ? T(0) : x * elementary::log(y); }
};

// A bool result is stored as int8.
struct Equal : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x == y; } };
struct NotEqual : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x != y; } };
struct Less : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x < y; } };
struct LessEqual : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x <= y; } };
struct Greater : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x > y; } };
struct GreaterEqual : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x >= y; } };
struct LogicalAnd : Cheap {
  template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x != 0 && y != 0; }
};
struct LogicalOr : Cheap {
  template <class T> MOONFLOW_BOTH bool operator()(T x, T y) const { return x != 0 || y != 0; }
};

// ---- one input, and its gradient -----------------------------------------------------------------------------
// NameGrad(dy, v): v is the op's input x or its output y, whichever needs less work; the table in elementwise_rows.h
// says.

struct None {};  // in place of a gradient

struct LogicalNot : Cheap { template <class T> MOONFLOW_BOTH bool operator()(T x) const { return x == 0; } };

struct Abs : Cheap {  // 0 for -0 too
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return x > 0 ? x : Subtract{}(T(0), x); }
};
struct Sign : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return static_cast<T>((x > 0) - is_negative(x)); }
};
struct AbsGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * Sign{}(x); }
};
struct Negative : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return Subtract{}(T(0), x);
    return -x;  // not 0 - x, which loses the sign of a zero
  }
};
struct NegativeGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T) const { return -dy; }
};
struct Square : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return Multiply{}(x, x); }
};
struct SquareGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * 2 * x; }
};
struct Sqrt : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::sqrt(x); } };
struct SqrtGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return dy / (2 * y); }
};
struct Rsqrt : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return 1 / std::sqrt(x); } };
struct RsqrtGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return T(-0.5) * dy * y * y * y; }
};
struct Reciprocal : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return 1 / x; } };
struct ReciprocalNoNan : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return x == 0 ? T(0) : 1 / x; }
};
struct ReciprocalGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return -dy * y * y; }
};
struct Ceil : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::ceil(x); } };
struct Floor : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::floor(x); } };
struct Rint : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::rint(x); } };

struct Exp : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::exp(x); } };
struct ExpGrad : Cheap { template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return dy * y; } };
struct Expm1 : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::expm1(x); } };
struct Expm1Grad : Cheap { template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return dy * (y + 1); } };
struct Log : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::log(x); } };
struct LogGrad : Cheap { template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy / x; } };
struct Log1p : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::log1p(x); } };
struct Log1pGrad : Cheap { template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy / (1 + x); } };

struct Sin : Angular {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::sin(x); }
  template <class T>
  MOONFLOW_BOTH static T near(T x) {
    return elementary::sin(x);
  }
};
struct SinGrad : Angular {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * std::cos(x); }
  template <class T>
  MOONFLOW_BOTH static T near(T dy, T x) {
    return dy * elementary::cos(x);
  }
};
struct Cos : Angular {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::cos(x); }
  template <class T>
  MOONFLOW_BOTH static T near(T x) {
    return elementary::cos(x);
  }
};
struct CosGrad : Angular {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return -dy * std::sin(x); }
  template <class T>
  MOONFLOW_BOTH static T near(T dy, T x) {
    return -dy * elementary::sin(x);
  }
};
struct Tan : Angular {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return std::tan(x); }
  template <class T>
  MOONFLOW_BOTH static T near(T x) {
    return elementary::tan(x);
  }
};
struct TanGrad : Cheap { template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return dy * (1 + y * y); } };
struct Asin : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::asin(x); } };
struct AsinGrad : Cheap {
  template <class T>
  MOONFLOW_BOTH T operator()(T dy, T x) const {
    return dy / std::sqrt((1 - x) * (1 + x));
  }
};
struct Acos : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::acos(x); } };
struct AcosGrad : Cheap {
  template <class T>
  MOONFLOW_BOTH T operator()(T dy, T x) const {
    return -dy / std::sqrt((1 - x) * (1 + x));
  }
};
struct Atan : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::atan(x); } };
struct AtanGrad : Cheap { template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy / (1 + x * x); } };
struct Sinh : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::sinh(x); } };
struct SinhGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * elementary::cosh(x); }
};
struct Cosh : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::cosh(x); } };
struct CoshGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * elementary::sinh(x); }
};
struct Tanh : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::tanh(x); } };
struct TanhGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return dy * (1 - y * y); }
};
struct Asinh : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::asinh(x); } };
struct AsinhGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy / std::sqrt(x * x + 1); }
};
struct Acosh : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::acosh(x); } };
struct AcoshGrad : Cheap {
  template <class T>
  MOONFLOW_BOTH T operator()(T dy, T x) const {
    return dy / std::sqrt((x - 1) * (x + 1));
  }
};
struct Atanh : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::atanh(x); } };
struct AtanhGrad : Cheap {
  template <class T>
  MOONFLOW_BOTH T operator()(T dy, T x) const {
    return dy / ((1 - x) * (1 + x));
  }
};

constexpr double kTwoOverSqrtPi = 1.1283791670955126;
constexpr double kPi = 3.14159265358979324;

struct Erf : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::erf(x); } };
struct ErfGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    return dy * T(kTwoOverSqrtPi) * elementary::exp(-x * x);
  }
};
struct Erfc : Vectorised { template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::erfc(x); } };
struct ErfcGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return -ErfGrad{}(dy, x); }
};
// The reentrant forms, since lgamma itself stores the sign in a global: not on a card, which has no others either.
struct Lgamma {
#ifdef __CUDA_ARCH__
  __device__ float operator()(float x) const { return ::lgammaf(x); }
  __device__ double operator()(double x) const { return ::lgamma(x); }
#else
  MOONFLOW_BOTH float operator()(float x) const { int sign; return ::lgammaf_r(x, &sign); }
  MOONFLOW_BOTH double operator()(double x) const { int sign; return ::lgamma_r(x, &sign); }
#endif
};
// The derivative of lgamma: reflection for x < 0.5, recurrence up to 10, then the asymptotic series (Abramowitz and
// Stegun 6.3.18), whose first term left out is below 5e-17 there. Of float32 too it is computed in float64, since near
// its roots all that is added up cancels.
struct Digamma {
  template <class T>
  MOONFLOW_BOTH T operator()(T of) const {
    double x = static_cast<double>(of), sum = 0;
    if (x < 0.5) {
      if (x == 0) return static_cast<T>(-1 / x);
      // Its period is 1; a product with pi would be rounded. Where x is -1, -2 and so on its sides differ, as infinities
      // of either sign do.
      const double rest = x - std::rint(x);
      sum = rest == 0 ? std::numeric_limits<double>::quiet_NaN() : -kPi / std::tan(kPi * rest);
      x = 1 - x;
    }
    for (; x < 10; ++x) sum -= 1 / x;
    const double r = 1 / (x * x);
    const double series =
        r * (1.0 / 12 -
             r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240 - r * (1.0 / 132 - r * (691.0 / 32760 - r / 12))))));
    return static_cast<T>(sum + std::log(x) - 0.5 / x - series);
  }
};
struct LgammaGrad {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * Digamma{}(x); }
};
// The derivative of digamma, in the same way (6.4.11); the first term left out is below 1e-16 at 10.
struct Trigamma {
  template <class T>
  MOONFLOW_BOTH T operator()(T of) const {
    double x = static_cast<double>(of), sum = 0, sign = 1;
    if (x < 0.5) {
      const double sine = std::sin(kPi * (x - std::rint(x)));
      sum = kPi * kPi / (sine * sine);
      sign = -1;
      x = 1 - x;
    }
    double rest = 0;
    for (; x < 10; ++x) rest += 1 / (x * x);
    const double r = 1 / (x * x);
    const double series =
        1.0 / 6 -
        r * (1.0 / 30 - r * (1.0 / 42 - r * (1.0 / 30 - r * (5.0 / 66 - r * (691.0 / 2730 - r * (7.0 / 6))))));
    return static_cast<T>(sum + sign * (rest + (1 + (0.5 + series / x) / x) / x));
  }
};
struct DigammaGrad {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * Trigamma{}(x); }
};

struct Sigmoid : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::sigmoid(x); }
};
struct SigmoidGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return dy * y * (1 - y); }
};
struct Softplus : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return elementary::softplus(x); }
};
struct SoftplusGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * Sigmoid{}(x); }
};
struct LogSigmoid : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return -Softplus{}(-x); }
};
struct LogSigmoidGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return dy * Sigmoid{}(-x); }
};

// ---- activations ---------------------------------------------------------------------------------------------

// Written so that a NaN stays a NaN, which is also the one-instruction form.
struct Relu : Cheap { template <class T> MOONFLOW_BOTH T operator()(T x) const { return is_negative(x) ? T(0) : x; } };
struct ReluGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return y > 0 ? dy : T(0); }
};
struct LeakyRelu : Cheap {
  explicit LeakyRelu(const Attrs& attrs) : alpha(attrs.number("alpha")) {}
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return x > 0 ? x : static_cast<T>(alpha) * x; }
  double alpha;
};
struct LeakyReluGrad : Cheap {
  explicit LeakyReluGrad(const Attrs& attrs) : alpha(attrs.number("alpha")) {}
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return x > 0 ? dy : static_cast<T>(alpha) * dy; }
  double alpha;
};
struct Elu : Vectorised {
  explicit Elu(const Attrs& attrs) : alpha(attrs.number("alpha")) {}
  template <class T> MOONFLOW_BOTH T operator()(T x) const {
    return x > 0 ? x : static_cast<T>(alpha) * elementary::expm1(x);
  }
  double alpha;
};
struct EluGrad : Vectorised {
  explicit EluGrad(const Attrs& attrs) : alpha(attrs.number("alpha")) {}
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    return x > 0 ? dy : dy * static_cast<T>(alpha) * elementary::exp(x);
  }
  double alpha;
};
struct Relu6 : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return x < 0 ? T(0) : x > 6 ? T(6) : x; }
};
struct Relu6Grad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T y) const { return y > 0 && y < 6 ? dy : T(0); }
};
struct Hardtanh : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return x < -1 ? T(-1) : x > 1 ? T(1) : x; }
};
struct HardtanhGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return x > -1 && x < 1 ? dy : T(0); }
};
struct Hardsigmoid : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return Relu6{}(x + 3) / 6; }
};
struct HardsigmoidGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const { return x > -3 && x < 3 ? dy / 6 : T(0); }
};
struct Hardswish : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T x) const { return x * Relu6{}(x + 3) / 6; }
};
struct HardswishGrad : Cheap {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    return x <= -3 ? T(0) : x >= 3 ? dy : dy * (2 * x + 3) / 6;
  }
};
// Where the rest of a product is 0 in any dtype, beyond 1000, infinity has the limit, in place of the product of it and
// 0.
template <class T>
MOONFLOW_BOTH T bounded(T x) {
  return x < T(-1000) ? T(-1000) : x > T(1000) ? T(1000) : x;
}
// At the infinity where the sigmoid is 0, the end in place of it.
struct Swish : Vectorised {
  explicit Swish(const Attrs& attrs) : beta(attrs.number("beta")) {}
  template <class T>
  MOONFLOW_BOTH T operator()(T x) const {
    const T bx = static_cast<T>(beta) * x, end = beta < 0 ? T(1000) : T(-1000);
    return (bx < T(-1000) ? end : x) * Sigmoid{}(bx);
  }
  double beta;
};
struct SwishGrad : Vectorised {
  explicit SwishGrad(const Attrs& attrs) : beta(attrs.number("beta")) {}
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    const T bx = static_cast<T>(beta) * x, s = Sigmoid{}(bx);
    return dy * (s + bounded(bx) * s * (1 - s));
  }
  double beta;
};
// tanh(log(1 + w)) is (w^2 + 2 w) / (w^2 + 2 w + 2); beyond 20 it is 1 in any dtype.
struct Mish : Vectorised {
  template <class T> MOONFLOW_BOTH static T share(T x) {
    const T w = elementary::exp(x > 20 ? T(20) : x), n = w * (w + 2);
    return n / (n + 2);
  }
  template <class T>
  MOONFLOW_BOTH T operator()(T x) const {
    return (x < T(-1000) ? T(-1000) : x) * share(x);
  }
};
struct MishGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    const T t = Mish::share(x);
    return dy * (t + bounded(x) * Sigmoid{}(x) * (1 - t * t));
  }
};
// At minus infinity the limit, 0, in place of the product of infinity and 0.
struct Gelu : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T x) const {
    return (x < T(-40) ? T(-40) : x) * elementary::normal(x).cumulative;
  }
};
struct GeluGrad : Vectorised {
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    const elementary::Normal<T> normal = elementary::normal(x);
    const T bounded = x < T(-40) ? T(-40) : x > T(40) ? T(40) : x;
    return dy * (normal.cumulative + bounded * normal.density);
  }
};
struct Clip : Cheap {
  explicit Clip(const Attrs& attrs) : min(attrs.number("min")), max(attrs.number("max")) {}
  template <class T> MOONFLOW_BOTH T operator()(T x) const {
    const T low = convert<T>(min), high = convert<T>(max), raised = x < low ? low : x;
    return raised > high ? high : raised;
  }
  double min, max;
};
struct ClipGrad : Cheap {
  explicit ClipGrad(const Attrs& attrs) : min(attrs.number("min")), max(attrs.number("max")) {}
  template <class T> MOONFLOW_BOTH T operator()(T dy, T x) const {
    return x >= static_cast<T>(min) && x <= static_cast<T>(max) ? dy : T(0);
  }
  double min, max;
};

}  // namespace moonflow::functor
