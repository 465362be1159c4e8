// The element-wise ops of one and two inputs: a row each, with the functors that compute it and what is said of it. The
// CPU's family makes an OpDef of each row, the CUDA twin a kernel.
#pragma once

#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/op.h"
#include "kernels/elementwise.h"

namespace moonflow::elementwise {

enum class Dtypes { Floating, All };

// The types that belong to a row.
template <class F, class G = functor::None, Dtypes kDtypes = Dtypes::Floating>
struct Computes {
  using Functor = F;
  using Gradient = G;  // functor::None where there is none, or where it is composed of other ops
  static constexpr Dtypes dtypes = kDtypes;
};

// A functor with attributes is made from them; the others have none.
template <class F>
F make(const Attrs& attrs) {
  if constexpr (std::is_constructible_v<F, const Attrs&>)
    return F(attrs);
  else
    return F();
}

// A bool of a functor is an int8 of the engine.
template <class Result>
using Stored = std::conditional_t<std::is_same_v<Result, bool>, int8_t, Result>;

// ---- one input -----------------------------------------------------------------------------------------------

enum class Reads { Input, Output };  // what the gradient's functor takes beside dy

struct UnaryRow {
  const char* name;
  const char* lua;
  const char* says;  // one sentence
  const char* formula;
  Reads reads = Reads::Input;
  double low = -2, high = 2;  // of the examples
  std::vector<AttrDef> attrs = {};
  Attrs example = {};
};

// Calls visit(Computes, row) for each.
template <class Visit>
void for_each_unary(const Visit& visit) {
  using namespace functor;
  constexpr Dtypes all = Dtypes::All;
  constexpr Reads output = Reads::Output;
  visit(Computes<Abs, AbsGrad, all>{}, UnaryRow{"abs", "math.abs", "Absolute value.", "out = |x|"});
  visit(Computes<Negative, NegativeGrad, all>{}, UnaryRow{"negative", "math.negative", "Negation.", "out = -x"});
  visit(Computes<Sign, None, all>{}, UnaryRow{"sign", "math.sign", "Sign: -1, 0 or 1. No gradient.", "out = sign(x)"});
  visit(Computes<Square, SquareGrad, all>{}, UnaryRow{"square", "math.square", "Square.", "out = x * x"});
  visit(Computes<LogicalNot, None, all>{},
        UnaryRow{"logical_not", "math.logical_not", "Logical not; every number but 0 is true.", "out = (x == 0)"});

  visit(Computes<Ceil, None>{},
        UnaryRow{"ceil", "math.ceil", "Smallest integer not below x. No gradient.", "out = ceil(x)"});
  visit(Computes<Floor, None>{},
        UnaryRow{"floor", "math.floor", "Largest integer not above x. No gradient.", "out = floor(x)"});
  visit(Computes<Rint, None>{},
        UnaryRow{"rint", "math.rint", "Nearest integer, halves to the even one. No gradient.", "out = rint(x)"});
  visit(Computes<Rint, None>{},
        UnaryRow{"round", "math.round", "Nearest integer, halves to the even one. No gradient.", "out = round(x)"});

  visit(Computes<Sqrt, SqrtGrad>{}, UnaryRow{"sqrt", "math.sqrt", "Square root.", "out = sqrt(x)", output, 0.2, 3});
  visit(Computes<Rsqrt, RsqrtGrad>{},
        UnaryRow{"rsqrt", "math.rsqrt", "Reciprocal of the square root.", "out = 1 / sqrt(x)", output, 0.2, 3});
  visit(Computes<Reciprocal, ReciprocalGrad>{},
        UnaryRow{"reciprocal", "math.reciprocal", "Reciprocal.", "out = 1 / x", output, 0.2, 3});
  visit(Computes<ReciprocalNoNan, ReciprocalGrad>{},
        UnaryRow{"reciprocal_no_nan", "math.reciprocal_no_nan", "Reciprocal, 0 where x is 0.",
                 "out = 1 / x if x != 0 else 0", output, 0.2, 3});
  visit(Computes<Exp, ExpGrad>{}, UnaryRow{"exp", "math.exp", "Exponential.", "out = exp(x)", output});
  visit(Computes<Expm1, Expm1Grad>{},
        UnaryRow{"expm1", "math.expm1", "Exponential less one, exact near 0.", "out = exp(x) - 1", output});
  visit(Computes<Log, LogGrad>{},
        UnaryRow{"log", "math.log", "Natural logarithm.", "out = log(x)", Reads::Input, 0.2, 3});
  visit(Computes<Log1p, Log1pGrad>{}, UnaryRow{"log1p", "math.log1p", "Logarithm of 1 + x, exact near 0.",
                                               "out = log(1 + x)", Reads::Input, -0.8, 3});

  visit(Computes<Sin, SinGrad>{}, UnaryRow{"sin", "math.sin", "Sine of an angle in radians.", "out = sin(x)"});
  visit(Computes<Cos, CosGrad>{}, UnaryRow{"cos", "math.cos", "Cosine of an angle in radians.", "out = cos(x)"});
  visit(Computes<Tan, TanGrad>{},
        UnaryRow{"tan", "math.tan", "Tangent of an angle in radians.", "out = tan(x)", output, -1.2, 1.2});
  visit(Computes<Asin, AsinGrad>{},
        UnaryRow{"asin", "math.asin", "Inverse sine, in radians.", "out = asin(x)", Reads::Input, -0.9, 0.9});
  visit(Computes<Acos, AcosGrad>{},
        UnaryRow{"acos", "math.acos", "Inverse cosine, in radians.", "out = acos(x)", Reads::Input, -0.9, 0.9});
  visit(Computes<Atan, AtanGrad>{}, UnaryRow{"atan", "math.atan", "Inverse tangent, in radians.", "out = atan(x)"});
  visit(Computes<Sinh, SinhGrad>{}, UnaryRow{"sinh", "math.sinh", "Hyperbolic sine.", "out = sinh(x)"});
  visit(Computes<Cosh, CoshGrad>{}, UnaryRow{"cosh", "math.cosh", "Hyperbolic cosine.", "out = cosh(x)"});
  visit(Computes<Tanh, TanhGrad>{}, UnaryRow{"tanh", "math.tanh", "Hyperbolic tangent.", "out = tanh(x)", output});
  visit(Computes<Asinh, AsinhGrad>{}, UnaryRow{"asinh", "math.asinh", "Inverse hyperbolic sine.", "out = asinh(x)"});
  visit(Computes<Acosh, AcoshGrad>{},
        UnaryRow{"acosh", "math.acosh", "Inverse hyperbolic cosine.", "out = acosh(x)", Reads::Input, 1.2, 3});
  visit(Computes<Atanh, AtanhGrad>{},
        UnaryRow{"atanh", "math.atanh", "Inverse hyperbolic tangent.", "out = atanh(x)", Reads::Input, -0.9, 0.9});
  visit(Computes<Erf, ErfGrad>{},
        UnaryRow{"erf", "math.erf", "Error function.", "out = 2 / sqrt(pi) * integral of exp(-t^2) over [0, x]"});
  visit(Computes<Erfc, ErfcGrad>{}, UnaryRow{"erfc", "math.erfc", "Complementary error function.", "out = 1 - erf(x)"});
  visit(Computes<Lgamma, LgammaGrad>{},
        UnaryRow{"lgamma", "math.lgamma", "Logarithm of |gamma(x)|.", "out = log|gamma(x)|", Reads::Input, 0.3, 5});
  visit(Computes<Digamma, DigammaGrad>{},
        UnaryRow{"digamma", "math.digamma", "Derivative of lgamma.", "out = d lgamma(x) / dx", Reads::Input, 0.3, 5});

  visit(Computes<Sigmoid, SigmoidGrad>{},
        UnaryRow{"sigmoid", "math.sigmoid", "Logistic function.", "out = 1 / (1 + exp(-x))", output});
  visit(Computes<LogSigmoid, LogSigmoidGrad>{},
        UnaryRow{"log_sigmoid", "math.log_sigmoid", "Logarithm of the logistic function, without overflow.",
                 "out = -log(1 + exp(-x))"});
  visit(Computes<Softplus, SoftplusGrad>{},
        UnaryRow{"softplus", "math.softplus", "Smooth form of relu, without overflow.", "out = log(1 + exp(x))"});
  visit(Computes<Gelu, GeluGrad>{},
        UnaryRow{"gelu", "math.gelu", "Gaussian error linear unit, exact.", "out = x / 2 * (1 + erf(x / sqrt(2)))"});

  const auto number = [](const char* name, double fallback, const char* doc, bool required = false) {
    return std::vector<AttrDef>{{name, fallback, doc, required}};
  };
  visit(Computes<Relu, ReluGrad, all>{}, UnaryRow{"relu", "nn.relu", "Rectified linear unit. The gradient at 0 is 0.",
                                                  "out = max(x, 0)", Reads::Output});
  visit(Computes<LeakyRelu, LeakyReluGrad>{},
        UnaryRow{"leaky_relu", "nn.leaky_relu", "Relu with a slope below 0.", "out = x if x > 0 else alpha * x",
                 Reads::Input, -2, 2, number("alpha", 0.2, "slope below 0")});
  visit(Computes<Elu, EluGrad>{},
        UnaryRow{"elu", "nn.elu", "Exponential linear unit.", "out = x if x > 0 else alpha * (exp(x) - 1)",
                 Reads::Input, -2, 2, number("alpha", 1.0, "negative limit")});
  visit(Computes<Relu6, Relu6Grad>{},
        UnaryRow{"relu6", "nn.relu6", "Relu that ends at 6.", "out = min(max(x, 0), 6)", Reads::Output, -2, 8});
  visit(Computes<Hardtanh, HardtanhGrad>{},
        UnaryRow{"hardtanh", "nn.hardtanh", "Identity between -1 and 1.", "out = min(max(x, -1), 1)"});
  visit(Computes<Hardsigmoid, HardsigmoidGrad>{},
        UnaryRow{"hardsigmoid", "nn.hardsigmoid", "Logistic function in three straight lines.",
                 "out = min(max(x + 3, 0), 6) / 6", Reads::Input, -4, 4});
  visit(Computes<Hardswish, HardswishGrad>{},
        UnaryRow{"hardswish", "nn.hardswish", "Swish with the straight-line sigmoid.",
                 "out = x * min(max(x + 3, 0), 6) / 6", Reads::Input, -4, 4});
  visit(Computes<Swish, SwishGrad>{},
        UnaryRow{"swish", "nn.swish", "Swish, also SiLU.", "out = x / (1 + exp(-beta * x))", Reads::Input, -2, 2,
                 number("beta", 1.0, "steepness")});
  visit(Computes<Mish, MishGrad>{}, UnaryRow{"mish", "nn.mish", "Mish.", "out = x * tanh(log(1 + exp(x)))"});
  visit(Computes<Clip, ClipGrad, all>{},
        UnaryRow{"clip_by_value",
                 "clip_by_value",
                 "Values moved into [min, max]; outside, the gradient is 0. A bound that is left out is none.",
                 "out = min(max(x, min), max)",
                 Reads::Input,
                 -2,
                 2,
                 {{"min", -std::numeric_limits<double>::infinity(), "least value of out"},
                  {"max", std::numeric_limits<double>::infinity(), "largest value of out"}},
                 {{"min", -1.0}, {"max", 1.0}}});
}

// ---- two inputs ----------------------------------------------------------------------------------------------

struct BinaryRow {
  const char* name;
  const char* says;
  const char* formula;
  double low = -2, high = 2;  // of the examples
};

template <class Visit>
void for_each_binary(const Visit& visit) {
  using namespace functor;
  constexpr Dtypes all = Dtypes::All;
  visit(Computes<Add, None, all>{}, BinaryRow{"add", "Sum. Integers wrap around.", "out = x + y"});
  visit(Computes<Subtract, None, all>{}, BinaryRow{"subtract", "Difference. Integers wrap around.", "out = x - y"});
  visit(Computes<Multiply, None, all>{}, BinaryRow{"multiply", "Product. Integers wrap around.", "out = x * y"});
  visit(Computes<Divide>{}, BinaryRow{"divide", "Quotient.", "out = x / y", 0.5, 3});
  visit(Computes<Mod, None, all>{},
        BinaryRow{"mod", "Remainder with the sign of y, so that x = floordiv * y + mod; over 0 a NaN, of integers 0.",
                  "out = x - floor(x / y) * y", 0.5, 3});
  visit(Computes<FloorDiv, None, all>{},
        BinaryRow{"floordiv",
                  "The exact quotient rounded down, so 9 of 1 / 0.1, whose float32 is a little more than a tenth.\n"
                  "Over 0 it is x / y, and of integers 0. No gradient.",
                  "out = floor(x / y)", 0.5, 3});
  visit(Computes<Pow>{},
        BinaryRow{"pow", "Power. The gradient of y is 0 where x is not above 0.", "out = x ^ y", 0.5, 3});
  visit(Computes<Atan2>{}, BinaryRow{"atan2", "Angle of the point (y, x) in radians, in (-pi, pi].",
                                     "out = atan(x / y), in the quadrant of both signs", 0.5, 3});
  visit(Computes<Maximum, None, all>{},
        BinaryRow{"maximum", "The larger of two; a NaN wins; where equal, x has the gradient.", "out = max(x, y)"});
  visit(Computes<Minimum, None, all>{},
        BinaryRow{"minimum", "The smaller of two; a NaN wins; where equal, x has the gradient.", "out = min(x, y)"});
  visit(Computes<SquaredDifference, None, all>{},
        BinaryRow{"squared_difference", "Square of the difference.", "out = (x - y) ^ 2"});
  visit(Computes<Xdivy>{}, BinaryRow{"xdivy", "Quotient, 0 where x is 0, and so are its gradients.",
                                     "out = x / y if x != 0 else 0", 0.5, 3});
  visit(Computes<Xlogy>{}, BinaryRow{"xlogy", "x times the logarithm of y, 0 where x is 0, and so are its gradients.",
                                     "out = x * log(y) if x != 0 else 0", 0.5, 3});
  visit(Computes<Equal, None, all>{}, BinaryRow{"equal", "Whether equal.", "out = (x == y)"});
  visit(Computes<NotEqual, None, all>{}, BinaryRow{"not_equal", "Whether different.", "out = (x != y)"});
  visit(Computes<Less, None, all>{}, BinaryRow{"less", "Whether x is less.", "out = (x < y)"});
  visit(Computes<LessEqual, None, all>{}, BinaryRow{"less_equal", "Whether x is less or equal.", "out = (x <= y)"});
  visit(Computes<Greater, None, all>{}, BinaryRow{"greater", "Whether x is greater.", "out = (x > y)"});
  visit(Computes<GreaterEqual, None, all>{},
        BinaryRow{"greater_equal", "Whether x is greater or equal.", "out = (x >= y)"});
  visit(Computes<LogicalAnd, None, all>{},
        BinaryRow{"logical_and", "Whether both are true; every number but 0 is true.", "out = x and y"});
  visit(Computes<LogicalOr, None, all>{},
        BinaryRow{"logical_or", "Whether one is true; every number but 0 is true.", "out = x or y"});
}

}  // namespace moonflow::elementwise
