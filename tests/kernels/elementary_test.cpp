// The elementary functions beside wider numbers: those of float32 beside float64, those of float64 beside long double.
// Over all kinds of numbers, by their bit patterns, so denormal numbers, infinities and NaN take part.
#include "kernels/elementary.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/session.h"
#include "kernels/catalog.h"

using namespace moonflow;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Tensor floats_of_every_kind() {
  constexpr int64_t kStep = 997;
  Tensor x = Tensor::allocate({DType::Float32, {(int64_t{1} << 32) / kStep}});
  for (int64_t i = 0; i < x.count(); ++i)
    x.data<float>()[i] = elementary::float_of(static_cast<int32_t>(static_cast<uint32_t>(i * kStep)));
  return x;
}

// As many again lie between -64 and 64, which few patterns do; and some beside the zeros of sine and cosine.
Tensor doubles_of_every_kind() {
  constexpr int64_t kPatterns = 1 << 19, kAngles = 20000;
  Tensor x = Tensor::allocate({DType::Float64, {2 * kPatterns + kAngles}});
  double* to = x.data<double>();
  for (int64_t i = 0; i < kPatterns; ++i) *to++ = elementary::double_of(static_cast<uint64_t>(i) * 0x1fffffac8d35);
  for (int64_t i = 0; i < kPatterns; ++i) {
    const double size = std::ldexp(1 + static_cast<double>(i) / kPatterns, static_cast<int>(i % 36) - 30);
    *to++ = i % 72 < 36 ? size : -size;
  }
  for (int64_t i = 0; i < kAngles; ++i)
    *to++ = static_cast<double>(static_cast<long double>(i) * 1.570796326794896619231321691639751442L);
  return x;
}

template <class T>
using Wider = std::conditional_t<std::is_same_v<T, float>, double, long double>;

// The distance of two neighbouring numbers at `value`.
template <class T>
double last_place(Wider<T> value) {
  int exponent;
  std::frexp(value, &exponent);
  const double least = static_cast<double>(std::numeric_limits<T>::denorm_min());
  return std::max(std::ldexp(1.0, exponent - std::numeric_limits<T>::digits), least);
}
double last_place(double value) { return last_place<float>(value); }

struct Miss {
  double units;
  double at;
};

// Checks that y has a NaN or an infinity just where the true value has, and gives the largest error of the others.
template <class T>
Miss largest_miss(const Tensor& x, const Tensor& y, Wider<T> (*truth)(Wider<T>)) {
  Miss miss{0, 0};
  int64_t misplaced = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    const T at = x.data<T>()[i], got = y.data<T>()[i];
    const Wider<T> wanted = truth(at);
    const T rounded = static_cast<T>(wanted);
    if (!std::isfinite(rounded) || !std::isfinite(got)) {
      misplaced += std::isnan(rounded) != std::isnan(got) || (!std::isnan(got) && got != rounded);
      continue;
    }
    const double units = static_cast<double>(std::abs(got - wanted)) / last_place<T>(wanted);
    if (units > miss.units) miss = {units, static_cast<double>(at)};
  }
  CHECK(misplaced == 0);
  return miss;
}

template <class W>
W sigmoid(W x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
template <class W>
W softplus(W x) {
  return std::max(x, W(0)) + std::log1p(std::exp(-std::abs(x)));
}
template <class W>
W gelu(W x) {
  return x < -40 ? 0 : x * W(0.5) * std::erfc(-x * static_cast<W>(0.707106781186547524400844362104849L));
}

// With the bounds for float32 and for float64.
template <class W>
struct Row {
  const char* op;
  W (*truth)(W);
  double of_float, of_double;
};
template <class W>
const std::vector<Row<W>> kRows = {{"exp", [](W x) { return std::exp(x); }, 1.1, 1.1},
                                   {"expm1", [](W x) { return std::expm1(x); }, 1.6, 1.6},
                                   {"log", [](W x) { return std::log(x); }, 1.0, 0.9},
                                   {"log1p", [](W x) { return std::log1p(x); }, 1.5, 1.6},
                                   {"exp2", [](W x) { return std::exp2(x); }, 0.51, 1.1},
                                   {"log2", [](W x) { return std::log2(x); }, 0.51, 1.8},
                                   {"log10", [](W x) { return std::log10(x); }, 0.51, 1.9},
                                   {"cbrt", [](W x) { return std::cbrt(x); }, 0.51, 0.9},
                                   {"sin", [](W x) { return std::sin(x); }, 1.6, 1.6},
                                   {"cos", [](W x) { return std::cos(x); }, 1.6, 1.6},
                                   {"tan", [](W x) { return std::tan(x); }, 3.6, 3.2},
                                   {"asin", [](W x) { return std::asin(x); }, 2.4, 2.4},
                                   {"acos", [](W x) { return std::acos(x); }, 2.3, 2.3},
                                   {"atan", [](W x) { return std::atan(x); }, 1.8, 1.6},
                                   {"sinh", [](W x) { return std::sinh(x); }, 2.4, 2.4},
                                   {"cosh", [](W x) { return std::cosh(x); }, 1.5, 1.3},
                                   {"asinh", [](W x) { return std::asinh(x); }, 2.0, 2.1},
                                   {"acosh", [](W x) { return std::acosh(x); }, 2.3, 2.3},
                                   {"atanh", [](W x) { return std::atanh(x); }, 2.4, 2.4},
                                   {"tanh", [](W x) { return std::tanh(x); }, 1.6, 2.8},
                                   {"sigmoid", sigmoid<W>, 2.9, 2.8},
                                   {"softplus", softplus<W>, 1.9, 2.0},
                                   {"erf", [](W x) { return std::erf(x); }, 2.7, 1.7},
                                   {"erfc", [](W x) { return std::erfc(x); }, 7.1, 4.8},
                                   {"gelu", gelu<W>, 10.5, 20}};  // of a tail that is denormal

}  // namespace

TEMPLATE_TEST_CASE("elementary functions are within some units of the last place of the true value", "", float,
                   double) {
  constexpr bool kSingle = std::is_same_v<TestType, float>;
  Session session(all_ops(), make_cpu_device(2));
  const Tensor x = kSingle ? floats_of_every_kind() : doubles_of_every_kind();
  for (const auto& row : kRows<Wider<TestType>>) {
    const Miss miss = largest_miss<TestType>(x, session.evaluate(row.op, {x}, {})[0], row.truth);
    INFO(row.op << " at " << miss.at);
    CHECK(miss.units < (kSingle ? row.of_float : row.of_double));
  }
}

TEMPLATE_TEST_CASE("a value is the same within a vector and at the end of a row", "", float, double) {
  constexpr bool kSingle = std::is_same_v<TestType, float>;
  Session session(all_ops(), make_cpu_device(1));
  const Tensor x = kSingle ? floats_of_every_kind() : doubles_of_every_kind();
  const int64_t start = kSingle ? x.count() / 4 - 50 : x.count() / 2;  // around 1, where every polynomial takes part
  for (const char* op : {"exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
                         "asinh", "acosh", "atanh", "tanh", "sigmoid", "softplus", "mish", "elu", "erf", "erfc",
                         "gelu"}) {
    INFO(op);
    const Tensor whole = session.evaluate(op, {x}, {})[0];
    for (int64_t count = 1; count < 40; ++count) {
      Tensor part = Tensor::allocate({x.dtype(), {count}});
      std::copy_n(x.data<TestType>() + start, count, part.data<TestType>());
      const Tensor y = session.evaluate(op, {part}, {})[0];
      for (int64_t i = 0; i < count; ++i) {
        const TestType alone = y.data<TestType>()[i], within = whole.data<TestType>()[start + i];
        CHECK((alone == within || (std::isnan(alone) && std::isnan(within))));
      }
    }
  }
}

TEST_CASE("powers of float32 are rounded from what is nearly exact") {
  Session session(all_ops(), make_cpu_device(1));
  constexpr int64_t kCount = 200000;
  Tensor x = Tensor::allocate({DType::Float32, {kCount}}), y = Tensor::allocate(x.type());
  for (int64_t i = 0; i < kCount; ++i) {
    x.data<float>()[i] = elementary::float_of(static_cast<int32_t>(i * 10737 + 3));  // all that are positive
    y.data<float>()[i] = static_cast<float>(i % 2001 - 1000) / 64;
  }
  const float corners[] = {0, -0.0f, 1, -1, 2, -2, 3, 0.5f, kInfinity, -kInfinity, kNaN, 1e-42f, 3e38f};
  constexpr int64_t kCorners = std::size(corners);
  for (int64_t i = 0; i < kCorners * kCorners; ++i) {
    x.data<float>()[i] = corners[i / kCorners];
    y.data<float>()[i] = corners[i % kCorners];
  }
  const Tensor powers = session.evaluate("pow", {x, y}, {})[0];
  for (int64_t i = 0; i < kCount; ++i) {
    const float base = x.data<float>()[i], exponent = y.data<float>()[i], got = powers.data<float>()[i];
    const double wanted = std::pow(static_cast<double>(base), static_cast<double>(exponent));
    const float rounded = static_cast<float>(wanted);
    INFO(base << " ^ " << exponent << ": " << got << ", wanted " << wanted);
    if (!std::isfinite(rounded))
      CHECK((got == rounded || (std::isnan(got) && std::isnan(rounded))));
    else
      CHECK((std::signbit(got) == std::signbit(rounded) && std::abs(got - wanted) <= 0.501 * last_place(wanted)));
  }
}

TEST_CASE("a zero keeps its sign where it stays one") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor x = Tensor::of<float>({4}, {-0.0f, 0.0f, -0.0f, 1}), wide = Tensor::of<double>({2}, {-0.0, 0.0});
  for (const char* op : {"sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p", "erf", "elu",
                         "gelu", "swish", "mish", "sqrt"}) {
    INFO(op);
    const Tensor y = session.evaluate(op, {x}, {})[0], wide_y = session.evaluate(op, {wide}, {})[0];
    for (int64_t i = 0; i < 3; ++i) {
      CHECK(y.data<float>()[i] == 0);
      CHECK(std::signbit(y.data<float>()[i]) == (i != 1));
    }
    for (int64_t i = 0; i < 2; ++i) CHECK(std::signbit(wide_y.data<double>()[i]) == (i == 0));
  }
}

TEST_CASE("the slopes of inverse functions are close to those of float64 up to their ends") {
  Session session(all_ops(), make_cpu_device(1));
  struct Row {
    const char* op;
    double (*slope)(double);
    std::vector<float> at;
  };
  const std::vector<float> inside = {-1 + 0x1p-24f, -1 + 0x1p-20f, -0.9999f, 0.3f, 0.99f, 1 - 0x1p-23f};
  const Row rows[] = {{"asin_grad", [](double x) { return 1 / std::sqrt((1 - x) * (1 + x)); }, inside},
                      {"acos_grad", [](double x) { return -1 / std::sqrt((1 - x) * (1 + x)); }, inside},
                      {"atanh_grad", [](double x) { return 1 / ((1 - x) * (1 + x)); }, inside},
                      {"acosh_grad",
                       [](double x) { return 1 / std::sqrt((x - 1) * (x + 1)); },
                       {1 + 0x1p-23f, 1 + 0x1p-20f, 1.0001f, 1.5f, 7}}};
  for (const Row& row : rows) {
    for (const float at : row.at) {
      INFO(row.op << " at " << at);
      const Tensor x = Tensor::of<float>({1}, {at}), one = Tensor::of<float>({1}, {1});
      const double wanted = row.slope(at), got = session.evaluate(row.op, {one, x}, {})[0].data<float>()[0];
      CHECK(std::abs(got - wanted) < 3 * last_place(wanted));
    }
  }
}

TEST_CASE("an angle has the same sine beside far angles as alone") {
  Session session(all_ops(), make_cpu_device(1));
  Tensor x = Tensor::allocate({DType::Float32, {600}});
  for (int64_t i = 0; i < 600; ++i) x.data<float>()[i] = static_cast<float>(i) * 0.37f - 100;
  for (const char* op : {"sin", "cos", "tan"}) {
    INFO(op);
    const Tensor alone = session.evaluate(op, {x}, {})[0];
    Tensor beside = Tensor::allocate(x.type());
    std::copy_n(x.data<float>(), 600, beside.data<float>());
    beside.data<float>()[7] = 3e30f;
    beside.data<float>()[599] = -kInfinity;
    const Tensor y = session.evaluate(op, {beside}, {})[0];
    for (int64_t i = 0; i < 599; ++i) CHECK((i == 7 || y.data<float>()[i] == alone.data<float>()[i]));
    CHECK(std::isnan(y.data<float>()[599]));
  }
}

TEST_CASE("the angle of a point is within some units of the last place, in every quadrant and at every corner") {
  const float sizes[] = {0, 1e-42f, 3e-38f, 0.3f, 1, 1.5f, 7e9f, 3e38f, kInfinity, kNaN};
  constexpr int64_t kCount = 4 * std::size(sizes) * std::size(sizes);
  Tensor up = Tensor::allocate({DType::Float32, {kCount}}), across = Tensor::allocate(up.type());
  for (int64_t i = 0; i < kCount; ++i) {
    up.data<float>()[i] = std::copysign(sizes[i / 4 / std::size(sizes)], i % 2 == 0 ? 1.0f : -1.0f);
    across.data<float>()[i] = std::copysign(sizes[i / 4 % std::size(sizes)], i % 4 < 2 ? 1.0f : -1.0f);
  }
  Session session(all_ops(), make_cpu_device(1));
  const Tensor angles = session.evaluate("atan2", {up, across}, {})[0];
  for (int64_t i = 0; i < kCount; ++i) {
    const float u = up.data<float>()[i], a = across.data<float>()[i], got = angles.data<float>()[i];
    const double wanted = std::atan2(static_cast<double>(u), static_cast<double>(a));
    INFO(u << " up and " << a << " across: " << got << ", wanted " << wanted);
    if (std::isnan(wanted)) {
      CHECK(std::isnan(got));
    } else {
      CHECK(std::signbit(got) == std::signbit(wanted));
      CHECK(std::abs(got - wanted) < 1.8 * last_place(wanted));
    }
  }
}

TEST_CASE("the slope of gelu is close to that of float64 everywhere") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor x = Tensor::of<float>({9}, {-kInfinity, -100, -3, -0.75f, 0, 0.7f, 5, kInfinity, kNaN});
  const Tensor one = Tensor::of<float>({9}, {1, 1, 1, 1, 1, 1, 1, 1, 1});
  const Tensor dx = session.evaluate("gelu_grad", {one, x}, {})[0];
  const float* slope = dx.data<float>();
  for (int i = 1; i < 7; ++i) {
    const double at = x.data<float>()[i];
    const double wanted =
        0.5 * std::erfc(-at * elementary::kSqrtHalf) + at * elementary::kOneOverSqrtTwoPi * std::exp(-0.5 * at * at);
    CHECK(slope[i] == Approx(wanted).margin(3e-7));  // it is 0 near -0.75, so relative errors have no bound
  }
  CHECK(slope[0] == 0);
  CHECK(slope[7] == 1);
  CHECK(std::isnan(slope[8]));
}
