// Element-wise ops of arrays, which flow.np has and no network: a functor each, and the loops of elementwise.cpp. They
// have no gradient, and no place among the functions of a job.
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/catalog.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using elementwise::Loop;
using functor::Cheap;
using functor::Vectorised;

// That the dtypes of a functor are those with fractions, or those without.
template <class T>
using IfFloating = std::enable_if_t<std::is_floating_point_v<T>>;
template <class T>
using IfWhole = std::enable_if_t<std::is_integral_v<T>>;

// ---- one input -------------------------------------------------------------------------------------------------
// Of float32 too in float64 and rounded once, where a float32 would end further from the truth.

// exp(x ln 2), whose whole part goes into the exponent as it is, so that powers of two are exact.
struct Exp2 : Vectorised {
  template <class T, class = IfFloating<T>>
  T operator()(T x) const {
    constexpr double kShift = 0x1.8p52;  // adding it rounds to an integer, which the lowest bits are then
    constexpr int64_t kBits = 0x1fff, kSign = 0x1000;
    double within = x == x ? static_cast<double>(x) : 0.0;  // the exponent of a NaN would be any
    within = within > 1025.0 ? 1025.0 : within;
    within = within < -1080.0 ? -1080.0 : within;
    const double shifted = within + kShift, rest = within - (shifted - kShift);
    constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLost = 0x1.abc9e3b39803fp-56;
    elementary::Exponential<double> e = elementary::exponential(rest * kLn2, rest * kLost);
    e.exponent += ((elementary::bits_of(shifted) & kBits) ^ kSign) - kSign;
    return x == x ? static_cast<T>(elementary::whole(e)) : x;
  }
};
struct Log2 : Vectorised {
  template <class T, class = IfFloating<T>>
  T operator()(T x) const {
    return static_cast<T>(elementary::log2(static_cast<double>(x)));
  }
};
struct Log10 : Vectorised {
  template <class T, class = IfFloating<T>>
  T operator()(T x) const {
    return static_cast<T>(elementary::log10(static_cast<double>(x)));
  }
};
// From the logarithm, with one step of Newton's for the last bits: none from 0 or from what is not finite.
struct Cbrt : Vectorised {
  template <class T, class = IfFloating<T>>
  T operator()(T x) const {
    const double size = std::fabs(static_cast<double>(x));
    const double near = elementary::exp(elementary::log(size) / 3);
    const double root = near - (near - size / (near * near)) / 3;
    return size > 0 && size < std::numeric_limits<double>::infinity() ? static_cast<T>(std::copysign(root, x)) : x;
  }
};
struct Trunc : Cheap {
  template <class T, class = IfFloating<T>>
  T operator()(T x) const {
    return std::trunc(x);
  }
};
struct IsFinite : Cheap {
  template <class T, class = IfFloating<T>>
  bool operator()(T x) const {
    return x - x == 0;
  }
};
struct IsInf : Cheap {
  template <class T, class = IfFloating<T>>
  bool operator()(T x) const {
    return std::fabs(x) == std::numeric_limits<T>::infinity();
  }
};

// ---- two inputs ------------------------------------------------------------------------------------------------

struct Fmax : Cheap {
  template <class T>
  T operator()(T x, T y) const {
    return x > y || y != y ? x : y;
  }
};
struct Fmin : Cheap {
  template <class T>
  T operator()(T x, T y) const {
    return x < y || y != y ? x : y;
  }
};
struct Copysign : Cheap {
  template <class T, class = IfFloating<T>>
  T operator()(T x, T y) const {
    return std::copysign(x, y);
  }
};
struct Fmod : functor::Near {
  template <class T>
  T operator()(T x, T y) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmod(x, y);
    } else {
      if (y == 0 || (std::is_signed_v<T> && y == static_cast<T>(-1))) return 0;  // lowest / -1 traps
      return static_cast<T>(x % y);
    }
  }
  static bool is_far(float x, float y) { return functor::Mod::is_far(x, y); }
  static float near(float x, float y) { return std::copysign(functor::Mod::near(std::fabs(x), std::fabs(y)), x); }
};
// These two in float64, so that no step of theirs is too large for the dtype.
struct Hypot : Vectorised {
  template <class T, class = IfFloating<T>>
  T operator()(T x, T y) const {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double width = std::fabs(static_cast<double>(x)), height = std::fabs(static_cast<double>(y));
    const double more = functor::Maximum{}(width, height), less = functor::Minimum{}(width, height);
    const double share = less / (more == 0 ? 1.0 : more), length = more * std::sqrt(share * share + 1);
    return static_cast<T>(width == kInfinity || height == kInfinity ? kInfinity : length);
  }
};
struct Logaddexp : Vectorised {
  template <class T, class = IfFloating<T>>
  T operator()(T of_x, T of_y) const {
    const double x = static_cast<double>(of_x), y = static_cast<double>(of_y);
    const double apart = x == y ? 0.0 : std::fabs(x - y);  // equal infinities are 0 apart
    return static_cast<T>(functor::Maximum{}(x, y) + elementary::log1p(elementary::exp(-apart)));
  }
};

struct BitwiseAnd : Cheap {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    return static_cast<T>(x & y);
  }
};
struct BitwiseOr : Cheap {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    return static_cast<T>(x | y);
  }
};
struct BitwiseXor : Cheap {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    return static_cast<T>(x ^ y);
  }
};
// By up to 63 places, also of what has fewer bits.
struct LeftShift : Cheap {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    return static_cast<T>(static_cast<uint64_t>(x) << (y & 63));
  }
};
struct RightShift : Cheap {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    return static_cast<T>(static_cast<int64_t>(x) >> (y & 63));
  }
};

// By Euclid: what divides x and y divides y and what x leaves when it is divided by y.
uint64_t divisor(uint64_t x, uint64_t y) {
  while (y != 0) {
    const uint64_t rest = x % y;
    x = y;
    y = rest;
  }
  return x;
}
uint64_t size_of_whole(int64_t x) { return x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x); }
struct Gcd {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    return static_cast<T>(divisor(size_of_whole(x), size_of_whole(y)));
  }
};
struct Lcm {
  template <class T, class = IfWhole<T>>
  T operator()(T x, T y) const {
    const uint64_t a = size_of_whole(x), b = size_of_whole(y), both = divisor(a, b);
    return static_cast<T>(both == 0 ? 0 : a / both * b);
  }
};

// ---- the ops ---------------------------------------------------------------------------------------------------

template <class F, int kInputs, class T>
constexpr bool kTakes = kInputs == 1 ? std::is_invocable_v<F, T> : std::is_invocable_v<F, T, T>;

template <class F, int kInputs>
Loop make_loop(const Attrs&, DType dtype) {
  return visit(dtype, [](auto zero) -> Loop {
    using T = decltype(zero);
    if constexpr (!kTakes<F, kInputs, T>)
      fail(ErrorCode::DtypeMismatch, "is not for ", DTypeOf<T>::value);
    else if constexpr (kInputs == 1)
      return elementwise::unary_loop<F, T>(F{});
    else
      return elementwise::binary_loop<F, T>(F{});
  });
}

struct Row {
  const char *name, *says, *formula;
  double low = -2, high = 2;  // of the examples
};

// What differs by type between the rows.
struct Kind {
  elementwise::MakeLoop make;
  bool two, floating, whole, is_bool;

  bool takes(DType dtype) const { return is_floating(dtype) ? floating : whole; }
  const char* dtypes() const { return !whole ? "float32, float64" : floating ? "all" : "integers"; }
};

void add(Catalog& catalog, const Row& row, const Kind& kind) {
  OpDef op;
  op.name = row.name;
  op.doc = text(
      row.says, " For arrays. No gradient.\n  ", row.formula, "\nshapes: ",
      kind.two ? "x and y broadcast against each other as in NumPy -> out" : "x of any shape -> out of the same shape",
      "\ndtypes: ", kind.dtypes(), kind.is_bool ? " -> int8, 1 for true" : "",
      kind.two ? "; x and y of one dtype\nerrors: shapes that do not broadcast; two dtypes" : "");
  op.inputs = {{"x"}};
  if (kind.two) op.inputs.push_back({"y"});
  op.infer = [kind](const OpCall& call) -> std::vector<TensorType> {
    require(kind.takes(call.dtype(0)), ErrorCode::DtypeMismatch, "needs ", kind.dtypes(), ", got ", call.type(0));
    Shape shape = call.shape(0);
    if (kind.two) {
      require(call.dtype(0) == call.dtype(1), ErrorCode::DtypeMismatch, "x is ", call.type(0), ", y is ", call.type(1),
              "; cast one of them, both must have one dtype");
      shape = broadcast(shape, call.shape(1));
    }
    return {{kind.is_bool ? DType::Int8 : call.dtype(0), shape}};
  };
  op.cpu = kind.two ? elementwise::broadcast_kernel(kind.make) : elementwise::kernel_over(kind.make);
  op.on_host = true;  // where arrays are
  for (DType dtype : {DType::Float32, DType::Float64, DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
    if (!kind.takes(dtype)) continue;
    std::vector<TensorType> types{{dtype, {2, 3}}};
    if (kind.two) types.push_back({dtype, {3}});
    op.examples.push_back({types, {}, row.low, row.high});
  }
  catalog.add(std::move(op));
}

template <class F>
void add_unary(Catalog& catalog, const Row& row) {
  add(catalog, row,
      {make_loop<F, 1>, false, true, kTakes<F, 1, int>, std::is_same_v<std::invoke_result_t<F, float>, bool>});
}
template <class F>
void add_binary(Catalog& catalog, const Row& row) {
  add(catalog, row, {make_loop<F, 2>, true, kTakes<F, 2, float>, kTakes<F, 2, int>, false});
}

}  // namespace

void add_array_elements(Catalog& catalog) {
  add_unary<Exp2>(catalog, {"exp2", "Power of two.", "out = 2 ^ x"});
  add_unary<Log2>(catalog, {"log2", "Logarithm to base 2.", "out = log(x) / log(2)", 0.2, 3});
  add_unary<Log10>(catalog, {"log10", "Logarithm to base 10.", "out = log(x) / log(10)", 0.2, 3});
  add_unary<Cbrt>(catalog, {"cbrt", "Cube root, of x's sign.", "out = x ^ (1 / 3)"});
  add_unary<Trunc>(catalog, {"trunc", "Nearest integer towards 0.", "out = floor(x) if x > 0 else ceil(x)"});
  add_unary<IsFinite>(catalog, {"isfinite", "Whether x is neither infinite nor a NaN.", "out = (|x| < infinity)"});
  add_unary<IsInf>(catalog, {"isinf", "Whether x is infinite.", "out = (|x| == infinity)"});

  add_binary<Fmax>(catalog, {"fmax", "The larger of two; of a number and a NaN the number.", "out = max(x, y)"});
  add_binary<Fmin>(catalog, {"fmin", "The smaller of two; of a number and a NaN the number.", "out = min(x, y)"});
  add_binary<Copysign>(catalog, {"copysign", "|x| with the sign of y, of -0 too.", "out = |x| if y >= 0 else -|x|"});
  add_binary<Fmod>(catalog, {"fmod", "Remainder with the sign of x; over 0 a NaN, of integers 0.",
                             "out = x - trunc(x / y) * y", 0.5, 3});
  add_binary<Hypot>(catalog, {"hypot", "Length of the vector (x, y).", "out = sqrt(x ^ 2 + y ^ 2)"});
  add_binary<Logaddexp>(catalog, {"logaddexp", "Logarithm of a sum, without overflow.", "out = log(exp(x) + exp(y))"});
  add_binary<BitwiseAnd>(catalog, {"bitwise_and", "The bits that are 1 in both.", "out = x and y"});
  add_binary<BitwiseOr>(catalog, {"bitwise_or", "The bits that are 1 in either.", "out = x or y"});
  add_binary<BitwiseXor>(catalog, {"bitwise_xor", "The bits that are 1 in just one.", "out = x xor y"});
  add_binary<LeftShift>(catalog, {"left_shift", "x moved up by y bits, 0 to 63.", "out = x * 2 ^ y", 0, 8});
  add_binary<RightShift>(catalog, {"right_shift", "x moved down by y bits, 0 to 63.", "out = floor(x / 2 ^ y)", 0, 8});
  add_binary<Gcd>(catalog, {"gcd", "The greatest integer that divides both.", "out = gcd(x, y)", -20, 20});
  add_binary<Lcm>(catalog, {"lcm", "The least integer above 0 that both divide, and 0 where one is 0.",
                            "out = lcm(x, y)", -20, 20});
}

}  // namespace moonflow
