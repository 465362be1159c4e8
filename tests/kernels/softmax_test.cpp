// Softmax and its logarithm: known values, large logits, any axis, any thread count.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

TEST_CASE("softmax of a row gives its probabilities") {
  Session session = make_session();
  const Tensor x = Tensor::of<double>({1, 3}, {1, 2, 3});
  const std::vector<double> y = numbers(session.evaluate("softmax", {x})[0]);
  // exp(1), exp(2), exp(3) over their sum 30.19287485...
  CHECK(y[0] == Approx(0.09003057317038046).epsilon(1e-14));
  CHECK(y[1] == Approx(0.24472847105479767).epsilon(1e-14));
  CHECK(y[2] == Approx(0.6652409557748219).epsilon(1e-14));
}

TEST_CASE("softmax and log softmax keep their values far from zero") {
  Session session = make_session();
  for (const float offset : {0.f, 1000.f, -1000.f}) {
    const Tensor x = Tensor::of<float>({1, 2}, {offset, offset + 1});
    // 1 / (1 + e) and 1 / (1 + 1 / e)
    const std::vector<double> y = numbers(session.evaluate("softmax", {x})[0]);
    CHECK(y[0] == Approx(0.2689414214).epsilon(1e-6));
    CHECK(y[1] == Approx(0.7310585786).epsilon(1e-6));
    const std::vector<double> log_y = numbers(session.evaluate("log_softmax", {x})[0]);
    CHECK(log_y[0] == Approx(-1.3132616875).epsilon(1e-6));
    CHECK(log_y[1] == Approx(-0.3132616875).epsilon(1e-6));
  }
  // The probability is below the smallest float32; its logarithm is not lost.
  const Tensor x = Tensor::of<float>({2}, {0, 200});
  CHECK(numbers(session.evaluate("log_softmax", {x})[0])[0] == -200);
}

TEST_CASE("softmax along an outer axis is softmax of the transposed") {
  Session session = make_session();
  const Attrs swap{{"perm", Ints{0, 2, 1}}}, middle{{"axis", int64_t{1}}};
  const auto turned = [&](const Tensor& x) { return session.evaluate("transpose", {x}, swap)[0]; };
  for (const Shape& shape : {Shape{3, 7, 5}, Shape{2, 9, 150}}) {
    const Tensor x = random_values({DType::Float32, shape}, 1, -4, 4), dy = random_values(x.type(), 2);
    for (const char* op : {"softmax", "log_softmax"}) {
      const Tensor direct = session.evaluate(op, {x}, middle)[0];
      // Rows are summed in registers, so the last place of a sum may differ.
      CHECK(distance(direct, turned(session.evaluate(op, {turned(x)})[0])) < 3e-7);
      const std::string grad = std::string(op) + "_grad";
      const Tensor dx = session.evaluate(grad, {dy, direct}, middle)[0];
      CHECK(distance(dx, turned(session.evaluate(grad, {turned(dy), turned(direct)})[0])) < 1e-6);
    }
  }
}

TEST_CASE("softmax of nothing is nothing, along any axis") {
  Session session = make_session();
  for (const Shape& shape : {Shape{2, 3, 0}, Shape{2, 0, 3}, Shape{0, 2, 3}}) {
    const Tensor x = Tensor::allocate({DType::Float32, shape});
    for (const int64_t axis : {0, 1, 2}) {
      const Tensor y = session.evaluate("softmax", {x}, {{"axis", axis}})[0];
      CHECK(session.evaluate("log_softmax_grad", {y, y}, {{"axis", axis}})[0].shape() == shape);
    }
  }
}

TEST_CASE("softmax has the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  const Tensor x = random_values({DType::Float32, {513, 257}}, 2, -5, 5), dy = random_values(x.type(), 3);
  for (const int64_t axis : {0, 1}) {
    const Attrs attrs{{"axis", axis}};
    for (const char* op : {"softmax", "log_softmax"}) {
      const Tensor y = one.evaluate(op, {x}, attrs)[0];
      CHECK(distance(y, two.evaluate(op, {x}, attrs)[0]) == 0);
      const std::string grad = std::string(op) + "_grad";
      CHECK(distance(one.evaluate(grad, {dy, y}, attrs)[0], two.evaluate(grad, {dy, y}, attrs)[0]) == 0);
    }
  }
}

TEST_CASE("softmax of short rows is that of each row, whatever lies beside it") {
  Session session = make_session();
  for (const int64_t n : {1, 2, 5, 16, 31, 32}) {
    for (const int64_t rows : {1, 15, 16, 17, 40}) {
      CAPTURE(n, rows);
      const Tensor x = random_values({DType::Float32, {rows, n}}, 3, -20, 20);
      for (const char* op : {"softmax", "log_softmax"}) {
        const Tensor y = session.evaluate(op, {x})[0];
        // An exponential of a rounded difference, a sum, a quotient and a product of about 1; a sum of up to 40.
        const double tolerance = std::string(op) == "softmax" ? 5e-7 : 8e-6;
        CHECK(distance(as_double(y), session.evaluate(op, {as_double(x)})[0]) < tolerance);
        if (rows < 4) continue;  // such are done one by one
        const Tensor last = Tensor::allocate({DType::Float32, {4, n}});
        const int64_t at = (rows - 4) * n, bytes = last.bytes();
        std::memcpy(last.data(), x.data<float>() + at, bytes);
        const Tensor alone = session.evaluate(op, {last})[0];
        CHECK(std::memcmp(alone.data(), y.data<float>() + at, bytes) == 0);
      }
    }
  }
}

TEST_CASE("a NaN among short rows stays in its own") {
  Session session = make_session();
  Tensor x = random_values({DType::Float32, {20, 5}}, 4, -3, 3);
  const std::vector<double> before = numbers(session.evaluate("softmax", {x})[0]);
  x.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> after = numbers(session.evaluate("softmax", {x})[0]);
  for (int i = 0; i < 100; ++i) CHECK((i / 5 == 1 ? std::isnan(after[i]) : after[i] == before[i]));
}

TEST_CASE("softmax refuses what has no axis of logits") {
  Session session = make_session();
  CHECK(message_of([&] {
          session.evaluate("softmax", {Tensor::of<int32_t>({2}, {1, 2})});
        }) == "logits must be float32 or float64, got int32");
  CHECK_THROWS_AS(session.evaluate("softmax", {Tensor::of<float>({2}, {1, 2})}, {{"axis", int64_t{1}}}), Error);
}
