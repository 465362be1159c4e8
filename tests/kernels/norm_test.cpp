// Batch norm, layer norm and moments: against their definitions in plain double loops, far from zero, and over layouts.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

constexpr double kEpsilon = 1e-3;

Tensor filled(const Shape& shape, double value) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  std::fill_n(tensor.data<float>(), tensor.count(), static_cast<float>(value));
  return tensor;
}

// Mean and biased variance of every channel of x (outer, channels, inner), by the definition.
struct PlainStatistics {
  std::vector<double> mean, variance;

  PlainStatistics(const Tensor& x, int64_t outer, int64_t channels, int64_t inner) {
    const std::vector<double> values = numbers(x);
    const double n = static_cast<double>(outer * inner);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, squares = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (int64_t o = 0; o < outer; ++o) {
          for (int64_t i = 0; i < inner; ++i) {
            const double value = values[(o * channels + c) * inner + i];
            pass == 0 ? sum += value : squares += (value - sum / n) * (value - sum / n);
          }
        }
      }
      mean.push_back(sum / n);
      variance.push_back(squares / n);
    }
  }
};

}  // namespace

TEST_CASE("batch norm brings every channel to mean beta and deviation gamma") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {6, 3, 5, 4}}, 1, -2, 5);
  const Tensor gamma = Tensor::of<float>({3}, {1, 2, -0.5f}), beta = Tensor::of<float>({3}, {0, 10, 3});
  const std::vector<Tensor> out = session.evaluate("batch_norm_train", {x, gamma, beta});
  const PlainStatistics before(x, 6, 3, 20), after(out[0], 6, 3, 20);
  for (int c = 0; c < 3; ++c) {
    CHECK(numbers(out[1])[c] == Approx(before.mean[c]).epsilon(1e-6));
    CHECK(numbers(out[2])[c] == Approx(1 / std::sqrt(before.variance[c] + kEpsilon)).epsilon(1e-6));
    CHECK(after.mean[c] == Approx(beta.data<float>()[c]).margin(1e-5));
    const double scale = numbers(gamma)[c] * numbers(gamma)[c];
    CHECK(after.variance[c] == Approx(scale * before.variance[c] / (before.variance[c] + kEpsilon)).epsilon(1e-4));
  }
}

TEST_CASE("batch norm with the channels last is batch norm of the transposed") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float64, {4, 3, 5, 2}}, 2), dy = random_values(x.type(), 3);
  const Tensor gamma = random_values({DType::Float64, {3}}, 4), beta = random_values({DType::Float64, {3}}, 5);
  const auto last = [&](const Tensor& t) {
    return session.evaluate("transpose", {t}, {{"perm", Ints{0, 2, 3, 1}}})[0];
  };
  const Attrs attrs{{"axis", int64_t{-1}}};

  const std::vector<Tensor> first_out = session.evaluate("batch_norm_train", {x, gamma, beta});
  const std::vector<Tensor> last_out = session.evaluate("batch_norm_train", {last(x), gamma, beta}, attrs);
  CHECK(distance(last(first_out[0]), last_out[0]) < 1e-14);

  const Tensor mean = first_out[1], inv_std = first_out[2];
  const std::vector<Tensor> first_grad = session.evaluate("batch_norm_train_grad", {x, gamma, mean, inv_std, dy});
  const std::vector<Tensor> last_grad =
      session.evaluate("batch_norm_train_grad", {last(x), gamma, mean, inv_std, last(dy)}, attrs);
  CHECK(distance(last(first_grad[0]), last_grad[0]) < 1e-14);
  CHECK(distance(first_grad[1], last_grad[1]) < 1e-13);
  CHECK(distance(first_grad[2], last_grad[2]) < 1e-13);

  const Tensor variance = random_values({DType::Float64, {3}}, 6, 0.5, 2);
  const Tensor first_infer = session.evaluate("batch_norm_infer", {x, gamma, beta, mean, variance})[0];
  const Tensor last_infer = session.evaluate("batch_norm_infer", {last(x), gamma, beta, mean, variance}, attrs)[0];
  CHECK(distance(last(first_infer), last_infer) == 0);
}

TEST_CASE("variances survive a mean that is far larger") {
  Session session = make_session();
  // 4096 +- 0.5: the mean of squares minus the square of the mean has no correct digit in float32.
  Tensor x = Tensor::allocate({DType::Float32, {1000, 2}});
  for (int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = i / 2 % 2 ? 4096.5f : 4095.5f;
  const std::vector<Tensor> moments = session.evaluate("moments", {x}, {{"axes", Ints{0}}});
  CHECK(numbers(moments[0]) == std::vector<double>{4096, 4096});
  CHECK(numbers(moments[1]) == std::vector<double>{0.25, 0.25});
  const std::vector<Tensor> out = session.evaluate("batch_norm_train", {x, filled({2}, 1), filled({2}, 0)});
  CHECK(numbers(out[2])[0] == Approx(1 / std::sqrt(0.25 + kEpsilon)).epsilon(1e-6));
  const std::vector<Tensor> rows = session.evaluate("layer_norm_core", {x.reshaped({2, 1000})});
  CHECK(numbers(rows[2])[1] == Approx(1 / std::sqrt(0.25 + 1e-5)).epsilon(1e-6));
}

TEST_CASE("batch statistics hold over many places, in every form, though the first are far from the rest") {
  Session session = make_session();
  // More than one chunk of places in a channel. The outliers in front would spoil sums about a first guess of the mean.
  for (const Shape& shape : {Shape{40, 2, 30, 37}, Shape{40000, 2}, Shape{5000, 40}}) {
    CAPTURE(shape);
    Tensor x = random_values({DType::Float32, shape}, 9, 999, 1001);
    std::fill_n(x.data<float>(), x.count() / 100, -1e5f);
    const int64_t channels = shape[1], inner = shape.count(2, shape.rank());
    const std::vector<Tensor> out =
        session.evaluate("batch_norm_train", {x, filled({channels}, 1), filled({channels}, 0)});
    const PlainStatistics plain(x, shape[0], channels, inner);
    for (int64_t c = 0; c < channels; ++c) {
      CHECK(numbers(out[1])[c] == Approx(plain.mean[c]).margin(1e-6 * std::sqrt(plain.variance[c])));
      CHECK(numbers(out[2])[c] == Approx(1 / std::sqrt(plain.variance[c] + kEpsilon)).epsilon(1e-6));
    }
  }
}

TEST_CASE("an activation behind a batch norm lets a NaN through") {
  Session session = make_session();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::of<float>({2, 2}, {1, 2, nan, 4}), one = filled({2}, 1), zero = filled({2}, 0);
  for (const char* op : {"batch_norm_relu", "batch_norm_relu6"})
    CHECK(std::isnan(numbers(session.evaluate(op, {x, one, zero})[0])[2]));
  CHECK(std::isnan(numbers(session.evaluate("batch_norm_add_relu", {x, one, zero, x})[0])[2]));
}

TEST_CASE("moving statistics stay as they are in a step that is left out") {
  Session session = make_session();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor batch = Tensor::of<float>({1}, {nan});
  Graph graph(session.catalog());
  const TensorType type = batch.type();
  const std::vector<ValueId> inputs{graph.variable("mean", type), graph.variable("variance", type),
                                    graph.feed("batch_mean", type), graph.feed("inv_std", type),
                                    graph.feed("finite", {DType::Float32, {}})};
  graph.append("moving_statistics_update", inputs, {{"momentum", 0.5}, {"count", int64_t{2}}});
  const std::shared_ptr<Plan> plan = session.compile(graph, "test");
  session.write("mean", Tensor::of<float>({1}, {10}));
  session.write("variance", Tensor::of<float>({1}, {4}));
  run(session, plan, {batch, batch, Tensor::of<float>({}, {0})});
  CHECK(numbers(session.read("mean"))[0] == 10);
  CHECK(numbers(session.read("variance"))[0] == 4);
  const Tensor two = Tensor::of<float>({1}, {2});
  run(session, plan, {two, two, Tensor::of<float>({}, {1})});
  CHECK(numbers(session.read("mean"))[0] == 6);
}

TEST_CASE("moving statistics take in the batch's mean and its unbiased variance") {
  Session session = make_session();
  // The batch 1, 3: mean 2, biased variance 1, unbiased 2.
  Tensor moving_mean = Tensor::of<double>({1}, {10}), moving_variance = Tensor::of<double>({1}, {4});
  const Tensor mean = Tensor::of<double>({1}, {2}), inv_std = Tensor::of<double>({1}, {1 / std::sqrt(1 + kEpsilon)});
  Graph graph(session.catalog());
  const TensorType type = mean.type();
  const std::vector<ValueId> inputs{graph.variable("mean", type), graph.variable("variance", type),
                                    graph.feed("batch_mean", type), graph.feed("inv_std", type)};
  graph.append("moving_statistics_update", inputs, {{"momentum", 0.9}, {"count", int64_t{2}}});
  const std::shared_ptr<Plan> plan = session.compile(graph, "test");
  session.write("mean", moving_mean);
  session.write("variance", moving_variance);
  run(session, plan, {mean, inv_std});
  CHECK(numbers(session.read("mean"))[0] == Approx(0.9 * 10 + 0.1 * 2));
  CHECK(numbers(session.read("variance"))[0] == Approx(0.9 * 4 + 0.1 * 2));
}

TEST_CASE("layer norm normalises each row, whatever the shape of its parameters") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float64, {4, 3, 5}}, 1, -3, 7);
  const std::vector<Tensor> plain = session.evaluate("layer_norm_core", {x});
  CHECK(plain[1].shape() == Shape{4});
  const PlainStatistics rows(x, 1, 4, 15), after(plain[0], 1, 4, 15);
  for (int row = 0; row < 4; ++row) {
    CHECK(numbers(plain[1])[row] == Approx(rows.mean[row]).epsilon(1e-14));
    CHECK(after.mean[row] == Approx(0).margin(1e-14));
    CHECK(after.variance[row] == Approx(rows.variance[row] / (rows.variance[row] + 1e-5)).epsilon(1e-12));
  }
  const Tensor gamma = random_values({DType::Float64, {5}}, 2), beta = random_values({DType::Float64, {3, 5}}, 3);
  const Tensor scaled = session.evaluate("layer_norm_core", {x, gamma, beta})[0];
  const Tensor by_hand = session.evaluate("add", {session.evaluate("multiply", {plain[0], gamma})[0], beta})[0];
  CHECK(distance(scaled, by_hand) < 1e-15);

  CHECK(message_of([&] {
          session.evaluate("layer_norm_core", {x, random_values({DType::Float64, {3}}, 1)});
        }) == "gamma is (3), it should be shaped like the last axes of x (4, 3, 5), from axis 1 or later");
}

TEST_CASE("layer norm normalises rows of any length, some at a time or one by one") {
  Session session = make_session(1);
  constexpr int kRows = 37;
  for (const int n : {1, 2, 3, 15, 16, 32, 33, 49}) {
    CAPTURE(n);
    const Tensor x = random_values({DType::Float64, {kRows, n}}, 1, -3, 7);
    const std::vector<Tensor> out = session.evaluate("layer_norm_core", {x});
    const PlainStatistics rows(x, 1, kRows, n);
    for (int row = 0; row < kRows; ++row) {
      const double scale = 1 / std::sqrt(rows.variance[row] + 1e-5);
      CHECK(numbers(out[1])[row] == Approx(rows.mean[row]).epsilon(1e-14));
      CHECK(numbers(out[2])[row] == Approx(scale).epsilon(1e-12));
      CHECK(numbers(out[0])[row * n + n - 1] ==
            Approx((numbers(x)[row * n + n - 1] - rows.mean[row]) * scale).epsilon(1e-12).margin(1e-13));
    }
  }
}

TEST_CASE("a layer norm about 0 divides each row by its root mean square") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float64, {4, 15}}, 1, -3, 7);
  const std::vector<Tensor> out = session.evaluate("layer_norm_core", {x}, {{"centred", false}, {"epsilon", 0.5}});
  const Tensor squares = session.evaluate("reduce_mean", {session.evaluate("square", {x})[0]}, {{"axis", Ints{1}}})[0];
  for (int row = 0; row < 4; ++row) {
    const double root = std::sqrt(numbers(squares)[row] + 0.5);
    CHECK(numbers(out[1])[row] == 0);
    CHECK(numbers(out[2])[row] == Approx(1 / root).epsilon(1e-14));
    CHECK(numbers(out[0])[15 * row] == Approx(numbers(x)[15 * row] / root).epsilon(1e-14));
  }
}

TEST_CASE("moments agree with their definition over any axes") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float64, {3, 4, 5, 2}}, 1);
  for (const Ints& axes : {Ints{0}, Ints{3}, Ints{0, 2}, Ints{1, 3}, Ints{-1, -2}, Ints{}}) {
    const Tensor mean = session.evaluate("reduce_mean", {x}, {{"axis", axes}, {"keepdims", true}})[0];
    const Tensor squares = session.evaluate("squared_difference", {x, mean})[0];
    const Tensor variance = session.evaluate("reduce_mean", {squares}, {{"axis", axes}, {"keepdims", true}})[0];
    const std::vector<Tensor> out = session.evaluate("moments", {x}, {{"axes", axes}, {"keepdims", true}});
    CHECK(distance(out[0], mean) < 1e-15);
    CHECK(distance(out[1], variance) < 1e-15);
  }
}

TEST_CASE("gradients of many parameters of layer_norm are sums over all rows") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {150, 1100}}, 1), dy = random_values(x.type(), 2);
  const Tensor mean = random_values({DType::Float32, {150}}, 3, 0, 0), inv_std = random_values(mean.type(), 4, 1, 1);
  const std::vector<Tensor> grads =
      session.evaluate("layer_norm_parameter_grad", {x, mean, inv_std, dy}, {{"shape", Ints{1100}}});
  const auto sum = [&](const Tensor& terms) {
    return session.evaluate("reduce_sum", {as_double(terms)}, {{"axis", Ints{0}}})[0];
  };
  CHECK(distance(grads[0], sum(session.evaluate("multiply", {dy, x})[0])) < 1e-5);
  CHECK(distance(grads[1], sum(dy)) < 1e-5);
}

TEST_CASE("normalisation has the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2);
  const auto check = [&](const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
    INFO(op);
    const std::vector<Tensor> a = one.evaluate(op, inputs, attrs), b = two.evaluate(op, inputs, attrs);
    for (size_t i = 0; i < a.size(); ++i) CHECK(distance(a[i], b[i]) == 0);
    return a;
  };
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const int64_t axis : {1, -1}) {
      const Tensor x = random_values({dtype, {16, 37, 11, 53}}, 1), dy = random_values(x.type(), 2);
      const int64_t channels = axis == 1 ? 37 : 53;
      const Tensor gamma = random_values({dtype, {channels}}, 3), beta = random_values({dtype, {channels}}, 4);
      const Tensor variance = random_values({dtype, {channels}}, 5, 0.5, 2);
      const Attrs attrs{{"axis", axis}};
      const std::vector<Tensor> out = check("batch_norm_train", {x, gamma, beta}, attrs);
      check("batch_norm_train_grad", {x, gamma, out[1], out[2], dy}, attrs);
      check("batch_norm_infer", {x, gamma, beta, out[1], variance}, attrs);
      check("batch_norm_infer_grad", {dy, x, gamma, out[1], variance}, attrs);
    }
    const Tensor x = random_values({dtype, {2000, 131}}, 6), dy = random_values(x.type(), 7);
    const Tensor gamma = random_values({dtype, {131}}, 8);
    const std::vector<Tensor> out = check("layer_norm_core", {x, gamma, gamma});
    check("layer_norm_grad", {x, out[1], out[2], dy, gamma});
    check("layer_norm_parameter_grad", {x, out[1], out[2], dy}, {{"shape", Ints{131}}});
    const std::vector<Tensor> moments = check("moments", {x}, {{"axes", Ints{0}}});
    check("moments_grad", {x, moments[0], moments[0], moments[1]}, {{"axes", Ints{0}}});
  }
}
