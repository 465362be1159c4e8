// Element-wise ops where examples do not reach: special values, integers at their ends, large and broadcast shapes.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "engine/session.h"
#include "kernels/catalog.h"

using namespace moonflow;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Ops {
  Session session{all_ops(), make_cpu_device(2)};

  template <class T>
  std::vector<T> call(const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
    const Tensor out = session.evaluate(op, inputs, attrs)[0];
    REQUIRE(out.dtype() == DTypeOf<T>::value);
    return {out.data<T>(), out.data<T>() + out.count()};
  }
};

Tensor floats(std::initializer_list<float> values) {
  return Tensor::of<float>({static_cast<int64_t>(values.size())}, values);
}

Tensor counted(const Shape& shape, float start) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<float>()[i] = start + static_cast<float>(i % 1000);
  return tensor;
}

}  // namespace

TEST_CASE("a NaN passes through relu, maximum and minimum") {
  Ops ops;
  const std::vector<float> y = ops.call<float>("relu", {floats({-1, kNaN, 2, -kInfinity, kInfinity})});
  CHECK(y[0] == 0);
  CHECK(std::isnan(y[1]));
  CHECK(y[2] == 2);
  CHECK(y[3] == 0);
  CHECK(y[4] == kInfinity);
  for (const char* op : {"maximum", "minimum"}) {
    const std::vector<float> m = ops.call<float>(op, {floats({kNaN, 1}), floats({1, kNaN})});
    CHECK(std::isnan(m[0]));
    CHECK(std::isnan(m[1]));
  }
}

TEST_CASE("of two bounds that have changed places the upper one counts") {
  Ops ops;
  const std::vector<float> y =
      ops.call<float>("clip_by_value", {floats({-3, 0, 3, kNaN})}, {{"min", 2.0}, {"max", -2.0}});
  CHECK(std::vector<float>(y.begin(), y.begin() + 3) == std::vector<float>{-2, -2, -2});
  CHECK(std::isnan(y[3]));
  CHECK(ops.call<int32_t>("clip_by_value", {Tensor::of<int32_t>({3}, {-3, 0, 3})}, {{"min", 2.0}, {"max", -2.0}}) ==
        std::vector<int32_t>{-2, -2, -2});
}

TEST_CASE("functions with limits reach them without overflow") {
  Ops ops;
  CHECK(ops.call<float>("sigmoid", {floats({-1000, 1000})}) == std::vector<float>{0, 1});
  CHECK(ops.call<float>("softplus", {floats({-1000, 1000})}) == std::vector<float>{0, 1000});
  CHECK(ops.call<float>("log_sigmoid", {floats({-1000, 1000})}) == std::vector<float>{-1000, 0});
  CHECK(ops.call<float>("reciprocal_no_nan", {floats({0, 4})}) == std::vector<float>{0, 0.25});
  CHECK(ops.call<float>("xlogy", {floats({0, 1}), floats({0, 1})}) == std::vector<float>{0, 0});
}

TEST_CASE("one power of many is what pow gives of each") {
  Ops ops;
  const std::initializer_list<float> bases = {0.0f,   -0.0f, 1,         -1,         0.3f, -2.7f,
                                              1e-30f, 3e30f, kInfinity, -kInfinity, kNaN};
  for (const float power : {-1.0f, 0.0f, 0.5f, 1.0f, 2.0f, 3.0f, 4.0f, -0.5f, 2.5f}) {
    const std::vector<float> y = ops.call<float>("pow", {floats(bases), Tensor::of<float>({}, {power})});
    const std::vector<double> wide =
        ops.call<double>("pow", {ops.session.evaluate("cast", {floats(bases)}, {{"dtype", DType::Float64}})[0],
                                 Tensor::of<double>({}, {power})});
    for (size_t i = 0; i < bases.size(); ++i) {
      const float x = bases.begin()[i], wanted = std::pow(x, power);
      INFO(x << " to the power of " << power);
      CHECK(std::isnan(y[i]) == std::isnan(wanted));
      if (std::isnan(wanted)) continue;
      CHECK(std::signbit(y[i]) == std::signbit(wanted));
      CHECK((y[i] == wanted || std::fabs(y[i] / wanted - 1) < 3e-7f));
      const double exact = std::pow(double{x}, double{power});
      CHECK((wide[i] == exact || std::fabs(wide[i] / exact - 1) < 6e-16));
    }
  }
}

TEST_CASE("the slopes of lgamma have the values of the tables, on either side of 0") {
  // Abramowitz and Stegun 6.3.2, 6.3.3, 6.3.5, 6.4.2 to 6.4.7.
  Ops ops;
  const double euler = 0.57721566490153286, two_log2 = 1.38629436111989062, pi2 = 9.86960440108935862;
  const Tensor x = Tensor::of<double>({5}, {1, 0.5, -0.5, 4, 1.5}), ones = Tensor::of<double>({5}, {1, 1, 1, 1, 1});
  const std::vector<double> first{-euler, -euler - two_log2, 2 - euler - two_log2, 11.0 / 6 - euler,
                                  2 - euler - two_log2};
  const std::vector<double> second{pi2 / 6, pi2 / 2, pi2 / 2 + 4, pi2 / 6 - 49.0 / 36, pi2 / 2 - 4};
  const std::vector<double> slope = ops.call<double>("digamma", {x});
  const std::vector<double> slope_of_slope = ops.call<double>("digamma_grad", {ones, x});
  for (size_t i = 0; i < first.size(); ++i) {
    INFO("at " << x.data<double>()[i]);
    CHECK(slope[i] == Approx(first[i]).epsilon(1e-12));
    CHECK(slope_of_slope[i] == Approx(second[i]).epsilon(1e-12));
  }
  CHECK(ops.call<float>("digamma_grad", {floats({1, 1}), floats({0, kInfinity})}) == std::vector<float>{kInfinity, 0});
  const std::vector<float> ends = ops.call<float>("digamma", {floats({0, -0.0f, kInfinity, -3, kNaN, -1e30f})});
  CHECK(ends[0] == -kInfinity);
  CHECK(ends[1] == kInfinity);
  CHECK(ends[2] == kInfinity);
  for (const size_t none : {3, 4, 5}) CHECK(std::isnan(ends[none]));
}

TEST_CASE("the slope of lgamma keeps its digits near its roots, in float32 as well") {
  Ops ops;
  for (const double root : {1.4616321449683623, -0.5040830082644554, -9.7026725400018638}) {
    INFO("near " << root);
    const float near = static_cast<float>(root);
    const Tensor one = Tensor::of<double>({1}, {1}), at_root = Tensor::of<double>({1}, {root});
    const double wanted = (near - root) * ops.call<double>("digamma_grad", {one, at_root})[0];
    CHECK(ops.call<float>("digamma", {floats({near})})[0] == Approx(wanted).epsilon(1e-5));
  }
  // Abramowitz and Stegun 6.1.3 and 6.4.2 by recurrence from 1: harmonic numbers, and sums of 1 / n^2.
  const Tensor ten = Tensor::of<double>({1}, {10}), one = Tensor::of<double>({1}, {1});
  CHECK(ops.call<double>("digamma", {ten})[0] == Approx(7129.0 / 2520 - 0.57721566490153286).epsilon(4e-16));
  CHECK(ops.call<double>("digamma_grad", {one, ten})[0] ==
        Approx(9.86960440108935862 / 6 - 9778141.0 / 6350400).epsilon(4e-15));
}

TEST_CASE("integers wrap around, and division by zero gives 0") {
  Ops ops;
  const int32_t low = std::numeric_limits<int32_t>::lowest();
  const auto ints = [](std::initializer_list<int32_t> v) { return Tensor::of({static_cast<int64_t>(v.size())}, v); };
  CHECK(ops.call<int32_t>("add", {ints({low}), ints({-1})}) == std::vector<int32_t>{2147483647});
  CHECK(ops.call<int32_t>("multiply", {ints({low}), ints({-1})}) == std::vector<int32_t>{low});
  CHECK(ops.call<int32_t>("negative", {ints({low})}) == std::vector<int32_t>{low});
  CHECK(ops.call<int32_t>("mod", {ints({7, -7, 7, -7, 5, low}), ints({3, 3, -3, -3, 0, -1})}) ==
        std::vector<int32_t>{1, 2, -2, -1, 0, 0});
  CHECK(ops.call<int32_t>("floordiv", {ints({7, -7, 7, -7, 5, low}), ints({3, 3, -3, -3, 0, -1})}) ==
        std::vector<int32_t>{2, -3, -3, 2, 0, low});
  CHECK(ops.call<uint8_t>("mod", {Tensor::of<uint8_t>({2}, {200, 255}), Tensor::of<uint8_t>({2}, {255, 255})}) ==
        std::vector<uint8_t>{200, 0});
}

TEST_CASE("remainders are those of fmod for quotients of any size") {
  // Float64 holds a float32's remainder for quotients below 2^29; beyond, the math library's loop does.
  Ops ops;
  constexpr int64_t kCount = 1000;
  const Tensor xs = Tensor::allocate({DType::Float32, {kCount}}), ys = Tensor::allocate({DType::Float32, {kCount}});
  float *const x = xs.data<float>(), *const y = ys.data<float>();
  uint32_t state = 1;
  const auto draw = [&](int lowest, int range) {
    state = state * 1664525u + 1013904223u;
    const float sign = (state >> 8 & 1) != 0 ? -1.0f : 1.0f;
    const int exponent = lowest + static_cast<int>(state >> 9 & 0xffff) % range;
    state = state * 1664525u + 1013904223u;
    return sign * std::ldexp(1 + static_cast<float>(state >> 9) * 0x1p-23f, exponent);
  };
  for (int64_t i = 0; i < kCount; ++i) {  // blocks without far pairs, then such with some
    y[i] = draw(i < 512 ? -8 : -140, i < 512 ? 20 : 260);
    x[i] = i % 3 == 0 ? y[i] * static_cast<float>(i)  // a whole quotient, or one that is nearly whole
                      : draw(i < 512 ? 0 : -140, i < 512 ? 20 : 260);
  }
  const std::vector<float> quotients = ops.call<float>("floordiv", {xs, ys}), rests = ops.call<float>("mod", {xs, ys});
  for (int64_t i = 0; i < kCount; ++i) {
    float rest = std::fmod(x[i], y[i]);
    const bool moves = rest != 0 && (rest < 0) != (y[i] < 0);
    const double whole = (static_cast<double>(x[i]) - rest) / y[i] - (moves ? 1 : 0);
    if (moves) rest += y[i];
    INFO(i << ": " << x[i] << " and " << y[i]);
    CHECK(rests[i] == rest);
    CHECK(std::signbit(rests[i]) == std::signbit(y[i]));
    const float quotient = static_cast<float>(std::rint(whole));  // infinite where it has no place
    const bool is_exact = std::fabs(whole) < 0x1p24 || std::isinf(quotient);
    CHECK((quotients[i] == quotient || (!is_exact && quotients[i] == Approx(quotient).epsilon(1e-7))));
  }
}

TEST_CASE("quotients are rounded down before they are rounded, and remainders agree, as in NumPy") {
  Ops ops;
  const auto check = [](float got, float wanted) {
    INFO(got << ", wanted " << wanted);
    const bool is_same = got == wanted && std::signbit(got) == std::signbit(wanted);
    CHECK((is_same || (std::isnan(got) && std::isnan(wanted))));
  };
  const float rest = std::fmod(1.0f, 0.1f);  // nearly a tenth
  const struct {
    float x, y, quotient, rest;
  } rows[] = {
      {1, 0.1f, 9, rest},
      {-1, 0.1f, -10, 0.1f - rest},
      {1, -0.1f, -10, rest - 0.1f},
      {-1, -0.1f, 9, -rest},
      {-0.5f, 1, -1, 0.5f},
      {-6, 3, -2, 0},
      {6, -3, -2, -0.0f},
      {0, 3, 0, 0},
      {0, -3, -0.0f, -0.0f},
      {-0.0f, 3, -0.0f, 0},
      {1, 0, kInfinity, kNaN},
      {-1, 0, -kInfinity, kNaN},
      {1, -0.0f, -kInfinity, kNaN},
      {0, 0, kNaN, kNaN},
      {kInfinity, 0, kInfinity, kNaN},
      {-kInfinity, 0, -kInfinity, kNaN},
      {1, kInfinity, 0, 1},
      {-1, kInfinity, -1, kInfinity},
      {1, -kInfinity, -1, -kInfinity},
      {-1, -kInfinity, 0, -1},
      {0, kInfinity, 0, 0},
      {kInfinity, 2, kNaN, kNaN},
      {-kInfinity, 2, kNaN, kNaN},
      {kInfinity, kInfinity, kNaN, kNaN},
      {kNaN, 1, kNaN, kNaN},
      {1, kNaN, kNaN, kNaN},
  };
  for (const auto& row : rows) {
    INFO(row.x << " and " << row.y);
    check(ops.call<float>("floordiv", {floats({row.x}), floats({row.y})})[0], row.quotient);
    check(ops.call<float>("mod", {floats({row.x}), floats({row.y})})[0], row.rest);
    const Tensor x = Tensor::of<double>({1}, {row.x}), y = Tensor::of<double>({1}, {row.y});
    check(static_cast<float>(ops.call<double>("floordiv", {x, y})[0]), row.quotient);
    check(static_cast<float>(ops.call<double>("mod", {x, y})[0]), row.rest);
  }
}

TEST_CASE("a cast to an integer truncates, saturates and takes a NaN for 0") {
  Ops ops;
  CHECK(ops.call<int8_t>("cast", {floats({1.9f, -1.9f, 300, -300, kNaN, kInfinity})}, {{"dtype", DType::Int8}}) ==
        std::vector<int8_t>{1, -1, 127, -128, 0, 127});
  CHECK(ops.call<int64_t>("cast", {floats({1e30f, -1e30f})}, {{"dtype", DType::Int64}}) ==
        std::vector<int64_t>{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::lowest()});
}

TEST_CASE("a mixed pair is refused, and the fault says what came") {
  Ops ops;
  const Tensor x = floats({1, 2, 3}), n = Tensor::of<int32_t>({3}, {1, 2, 3});
  CHECK_THROWS_WITH(ops.call<float>("add", {x, n}),
                    "x is float32 (3), y is int32 (3); cast one of them, both must have one dtype");
  CHECK_THROWS_WITH(ops.call<int32_t>("divide", {n, n}), "needs float32 or float64, got int32 (3); cast it first");
  CHECK_THROWS_WITH(ops.call<float>("add", {x, floats({1, 2})}), Catch::Contains("(3)") && Catch::Contains("(2)"));
  CHECK_THROWS_WITH(ops.call<float>("where", {x, x, x}), Catch::Contains("must be int8"));
}

TEST_CASE("values without elements pass through") {
  Ops ops;
  const Tensor none = Tensor::allocate({DType::Float32, {0, 3}});
  CHECK(ops.call<float>("relu", {none}).empty());
  CHECK(ops.call<float>("add", {none, floats({1, 2, 3})}).empty());
  CHECK(ops.call<float>("reduce_sum", {none}, {{"axis", Ints{0}}}) == std::vector<float>{0, 0, 0});
  CHECK(ops.call<float>("reduce_sum", {none}, {{"axis", Ints{1}}}).empty());
}

TEST_CASE("large values broadcast along any axis like small ones") {
  Ops ops;
  const Shape shape{3, 5, 41, 67};
  const Tensor x = counted(shape, 0);
  for (const Shape& other : {Shape{67}, Shape{5, 1, 1}, Shape{3, 1, 41, 1}, Shape{}, Shape{5, 41, 67}}) {
    INFO(other);
    const Tensor y = counted(other, 0.5f);
    const std::vector<float> sum = ops.call<float>("add", {x, y});
    bool right = true;
    for (int64_t i = 0; i < x.count(); ++i) {
      int64_t rest = i, at = 0, step = 1;
      for (int axis = 3; axis >= 0; --axis) {
        const int own = axis - 4 + other.rank();
        if (own >= 0 && other[own] > 1) at += rest % shape[axis] * step;
        if (own >= 0) step *= other[own];
        rest /= shape[axis];
      }
      right = right && sum[i] == x.data<float>()[i] + y.data<float>()[at];
    }
    CHECK(right);
  }
}

namespace {

// The place in a value of `own` shape that meets element `i` of a result of shape `out`.
int64_t place_in(const Shape& own, const Shape& out, int64_t i) {
  int64_t at = 0, step = 1;
  for (int axis = out.rank() - 1; axis >= 0; i /= out[axis], --axis) {
    const int mine = axis - out.rank() + own.rank();
    if (mine < 0) continue;
    if (own[mine] > 1) at += i % out[axis] * step;
    step *= own[mine];
  }
  return at;
}

template <class T>
void check_broadcast(Ops& ops, const Shape& x_shape, const Shape& y_shape) {
  INFO(x_shape << " and " << y_shape);
  const auto numbered = [](const Shape& shape, int64_t factor) {
    Tensor values = Tensor::allocate({DTypeOf<T>::value, shape});
    for (int64_t i = 0; i < shape.count(); ++i) values.data<T>()[i] = static_cast<T>(i * factor % 101);
    return values;
  };
  const std::vector<Tensor> inputs{numbered(x_shape, 7), numbered(y_shape, 3)};
  const T *x = inputs[0].data<T>(), *y = inputs[1].data<T>();
  const Shape out = broadcast(x_shape, y_shape);
  const std::vector<T> difference = ops.call<T>("subtract", inputs);
  const std::vector<int8_t> is_less = ops.call<int8_t>("less", inputs);
  bool right = true;
  for (int64_t i = 0; i < out.count(); ++i) {
    const T a = x[place_in(x_shape, out, i)], b = y[place_in(y_shape, out, i)];
    right = right && difference[i] == static_cast<T>(a - b) && is_less[i] == (a < b);
  }
  CHECK(right);
}

}  // namespace

TEST_CASE("values broadcast along short axes and long ones, either of them or both") {
  Ops ops;
  for (const int64_t n : {2, 3, 16, 21, 31, 32, 33, 150}) {
    for (const auto& [x, y] : std::vector<std::pair<Shape, Shape>>{{{9, 13, n}, {9, 13, 1}},
                                                                   {{9, 13, n}, {9, 1, n}},
                                                                   {{9, 1, n}, {13, n}},
                                                                   {{9, 13, 1}, {n}},
                                                                   {{5, 1, 7, n}, {3, 1, 1}},
                                                                   {{1, 7, 1}, {9, 1, n}}}) {
      check_broadcast<float>(ops, x, y);
      check_broadcast<double>(ops, y, x);
      check_broadcast<uint8_t>(ops, x, y);
      check_broadcast<int64_t>(ops, y, x);
    }
  }
  check_broadcast<float>(ops, {0, 4}, {0, 1});
  check_broadcast<float>(ops, {4, 0}, {4, 1});
}
