// The elementary functions of float32 beside float64, over all kinds of floats: every 997th bit pattern, so denormal
// numbers, infinities and NaN take part.
#include "kernels/elementary.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

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

// The distance of two neighbouring floats at `value`.
double last_place(double value) {
  int exponent;
  std::frexp(value, &exponent);
  return std::max(std::ldexp(1.0, exponent - 24), 0x1p-149);
}

struct Miss {
  double units;
  float at;
};

// Checks that y has a NaN or an infinity just where the true value has, and gives the largest error of the others.
Miss largest_miss(const Tensor& x, const Tensor& y, double (*truth)(double)) {
  Miss miss{0, 0};
  int64_t misplaced = 0;
  for (int64_t i = 0; i < x.count(); ++i) {
    const float at = x.data<float>()[i], got = y.data<float>()[i];
    const double wanted = truth(at);
    const float rounded = static_cast<float>(wanted);
    if (!std::isfinite(rounded) || !std::isfinite(got)) {
      misplaced += std::isnan(rounded) != std::isnan(got) || (!std::isnan(got) && got != rounded);
      continue;
    }
    const double units = std::abs(got - wanted) / last_place(wanted);
    if (units > miss.units) miss = {units, at};
  }
  CHECK(misplaced == 0);
  return miss;
}

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double gelu(double x) { return x < -40 ? 0 : x * 0.5 * std::erfc(-x * elementary::kSqrtHalf); }

}  // namespace

TEST_CASE("elementary functions of float32 are within some units of the last place of the true value") {
  struct Row {
    const char* op;
    double (*truth)(double);
    double units;
  };
  const Row rows[] = {{"exp", [](double x) { return std::exp(x); }, 1.1},
                      {"expm1", [](double x) { return std::expm1(x); }, 1.6},
                      {"log", [](double x) { return std::log(x); }, 1.0},
                      {"log1p", [](double x) { return std::log1p(x); }, 1.5},
                      {"sin", [](double x) { return std::sin(x); }, 1.6},
                      {"cos", [](double x) { return std::cos(x); }, 1.6},
                      {"tan", [](double x) { return std::tan(x); }, 3.6},
                      {"asin", [](double x) { return std::asin(x); }, 2.4},
                      {"acos", [](double x) { return std::acos(x); }, 2.3},
                      {"atan", [](double x) { return std::atan(x); }, 1.8},
                      {"sinh", [](double x) { return std::sinh(x); }, 2.4},
                      {"cosh", [](double x) { return std::cosh(x); }, 1.5},
                      {"asinh", [](double x) { return std::asinh(x); }, 2.0},
                      {"acosh", [](double x) { return std::acosh(x); }, 2.3},
                      {"atanh", [](double x) { return std::atanh(x); }, 2.4},
                      {"tanh", [](double x) { return std::tanh(x); }, 1.6},
                      {"sigmoid", sigmoid, 2.9},
                      {"softplus", softplus, 1.9},
                      {"erf", [](double x) { return std::erf(x); }, 2.7},
                      {"erfc", [](double x) { return std::erfc(x); }, 7.1},
                      {"gelu", gelu, 10.5}};
  Session session(all_ops(), make_cpu_device(2));
  const Tensor x = floats_of_every_kind();
  for (const Row& row : rows) {
    const Miss miss = largest_miss(x, session.evaluate(row.op, {x}, {})[0], row.truth);
    INFO(row.op << " at " << miss.at);
    CHECK(miss.units < row.units);
  }
}

TEST_CASE("a value is the same within a vector and at the end of a row") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor x = floats_of_every_kind();
  const int64_t start = x.count() / 4 - 50;  // around 1, where every polynomial takes part
  for (const char* op : {"exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
                         "asinh", "acosh", "atanh", "tanh", "sigmoid", "softplus", "mish", "elu", "erf", "erfc",
                         "gelu"}) {
    INFO(op);
    const Tensor whole = session.evaluate(op, {x}, {})[0];
    for (int64_t count = 1; count < 40; ++count) {
      Tensor part = Tensor::allocate({DType::Float32, {count}});
      std::copy_n(x.data<float>() + start, count, part.data<float>());
      const Tensor y = session.evaluate(op, {part}, {})[0];
      for (int64_t i = 0; i < count; ++i) {
        const float alone = y.data<float>()[i], within = whole.data<float>()[start + i];
        CHECK((alone == within || (std::isnan(alone) && std::isnan(within))));
      }
    }
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
