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
double gelu(double x) { return x < -40 ? 0 : x * 0.5 * std::erfc(-x * elementary::kSqrtHalf); }

}  // namespace

TEST_CASE("elementary functions of float32 are within some units of the last place of the true value") {
  struct Row {
    const char* op;
    double (*truth)(double);
    double units;
  };
  const Row rows[] = {
      {"exp", [](double x) { return std::exp(x); }, 1.1},   {"log", [](double x) { return std::log(x); }, 1.0},
      {"tanh", [](double x) { return std::tanh(x); }, 1.6}, {"sigmoid", sigmoid, 2.9},
      {"erf", [](double x) { return std::erf(x); }, 2.7},   {"gelu", gelu, 10.5}};
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
  for (const char* op : {"exp", "log", "tanh", "sigmoid", "erf", "gelu"}) {
    INFO(op);
    const Tensor whole = session.evaluate(op, {x}, {})[0];
    for (int64_t count = 1; count < 40; ++count) {
      Tensor part = Tensor::allocate({DType::Float32, {count}});
      std::copy_n(x.data<float>() + start, count, part.data<float>());
      const Tensor y = session.evaluate(op, {part}, {})[0];
      for (int64_t i = 0; i < count; ++i) CHECK(y.data<float>()[i] == whole.data<float>()[start + i]);
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
