// A dynamic loss scale: what is found in gradients, what the scale becomes, and that updates which are told to leave
// everything as it is do so to the bit.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Tensor scalar(float value) { return Tensor::of<float>({}, {value}); }

struct Rule {
  const char* op;
  int companions;
  Attrs attrs;
};
const std::vector<Rule>& rules() {
  static const std::vector<Rule> list = {{"sgd_update", 0, {}},
                                         {"momentum_update", 1, {{"beta", 0.5}}},
                                         {"adam_update", 2, {{"weight_decay", 0.1}}},
                                         {"rmsprop_update", 2, {{"centered", true}}},
                                         {"adagrad_update", 1, {}}};
  return list;
}

// Of an update: variable and companions, gradient, learning rate, step if there is one, factor.
std::vector<Tensor> inputs_of(const Rule& rule, const TensorType& type, Tensor gradient, Tensor factor) {
  std::vector<Tensor> inputs;
  for (int i = 0; i <= rule.companions; ++i)
    inputs.push_back(random_values(type, 5 + static_cast<uint32_t>(i), 0.6, 1));
  inputs.push_back(std::move(gradient));
  inputs.push_back(scalar(0.1f));
  if (rule.op == std::string("adam_update")) inputs.push_back(Tensor::of<int64_t>({}, {2}));
  inputs.push_back(std::move(factor));
  return inputs;
}

}  // namespace

TEMPLATE_TEST_CASE("one element that is not finite is found wherever it is", "", float, double) {
  using T = TestType;
  Session session = make_session();
  using Limits = std::numeric_limits<T>;
  const DType dtype = DTypeOf<T>::value;
  const auto all_finite = [&](const std::vector<Tensor>& values) {
    const Tensor out = session.evaluate("all_finite", values)[0];
    REQUIRE(out.type() == TensorType{DType::Float32, {}});
    return out.data<float>()[0];
  };
  // Longer than what one thread takes, and than a register.
  std::vector<Tensor> values = {Tensor::zeros({dtype, {200003}}), Tensor::zeros({dtype, {3, 5}}),
                                Tensor::zeros({dtype, {}}), Tensor::zeros({dtype, {0}})};
  values[1].data<T>()[0] = Limits::max();
  values[1].data<T>()[1] = Limits::lowest();
  values[1].data<T>()[2] = Limits::denorm_min();
  CHECK(all_finite(values) == 1);
  for (const T bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
    for (size_t i = 0; i < 3; ++i) {
      for (const int64_t place : {int64_t{0}, values[i].count() / 2, values[i].count() - 1}) {
        T& element = values[i].data<T>()[place];
        const T before = element;
        element = bad;
        CAPTURE(i, place);
        CHECK(all_finite(values) == 0);
        element = before;
      }
    }
  }
  CHECK(all_finite(values) == 1);
  values.push_back(Tensor::of<BFloat16>({2}, {BFloat16(1.0f), BFloat16(INFINITY)}));
  CHECK(all_finite(values) == 0);
  values.back() = Tensor::of<Float16>({2}, {Float16(65504.0f), Float16(1e-6f)});
  CHECK(all_finite(values) == 1);
  values.back() = Tensor::of<Float16>({2}, {Float16(1.0f), Float16(65520.0f)});
  CHECK(all_finite(values) == 0);
}

TEST_CASE("a loss scale falls after an overflow and rises after a good period") {
  Session session = make_session(1);
  const Tensor scale = scalar(8), good = Tensor::of<int64_t>({}, {0});
  const auto step = [&](float finite, Attrs attrs = {{"increment_period", int64_t{3}}, {"multiplier", 4.0}}) {
    session.evaluate("dynamic_loss_scale_update", {scale, good, scalar(finite)}, attrs);
    return std::vector<double>{scale.data<float>()[0], static_cast<double>(good.data<int64_t>()[0])};
  };
  using Seen = std::vector<double>;
  CHECK(step(1) == Seen{8, 1});
  CHECK(step(1) == Seen{8, 2});
  CHECK(step(0) == Seen{2, 0});
  CHECK(step(0) == Seen{1, 0});  // 0.5 would make gradients smaller
  CHECK(step(1) == Seen{1, 1});
  CHECK(step(1) == Seen{1, 2});
  CHECK(step(1) == Seen{4, 0});
  *scale.data<float>() = 2e38f;
  const double most = std::numeric_limits<float>::max();
  CHECK(step(1, {{"increment_period", int64_t{1}}}) == Seen{most, 0});
  CHECK(message_of([&] { step(1, {{"increment_period", int64_t{0}}}); }) ==
        "increment_period must be at least 1, got 0");
  CHECK(message_of([&] { step(1, {{"multiplier", 1.0}}); }) == "multiplier must be above 1, got 1");
}

TEMPLATE_TEST_CASE("an update with the factor 0 changes nothing, whatever the gradient", "", float, double) {
  Session session = make_session();
  const TensorType type{DTypeOf<TestType>::value, {70001}};
  for (const Rule& rule : rules()) {
    CAPTURE(rule.op);
    for (const double bad : {1.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      const Tensor gradient = random_values(type, 9);
      gradient.data<TestType>()[7] = static_cast<TestType>(bad);
      const std::vector<Tensor> inputs = inputs_of(rule, type, gradient, scalar(0));
      std::vector<Tensor> before;
      for (const Tensor& input : inputs) before.push_back(input.copy());
      session.evaluate(rule.op, inputs, rule.attrs);
      for (size_t i = 0; i < inputs.size(); ++i) CHECK(same(inputs[i], before[i]));
    }
  }
}

TEMPLATE_TEST_CASE("a factor multiplies the gradient beside the attribute", "", float, double) {
  Session session = make_session();
  const TensorType type{DTypeOf<TestType>::value, {70001}};
  for (const Rule& rule : rules()) {
    CAPTURE(rule.op);
    // A power of two, so that no bit is lost on the way.
    const Tensor scaled = random_values(type, 9), plain = scaled.copy();
    for (int64_t i = 0; i < scaled.count(); ++i) scaled.data<TestType>()[i] *= 1024;
    Attrs attrs = rule.attrs;
    attrs.set("gradient_scale", 0.01);
    const std::vector<Tensor> expected = inputs_of(rule, type, plain, Tensor());
    const std::vector<Tensor> got = inputs_of(rule, type, scaled, scalar(1.0f / 1024));
    session.evaluate(rule.op, expected, attrs);
    session.evaluate(rule.op, got, attrs);
    for (int i = 0; i <= rule.companions; ++i) CHECK(same(got[i], expected[i]));
    CHECK_FALSE(same(got[0], random_values(type, 5, 0.6, 1)));
  }
}

TEST_CASE("a prepared gradient is unscaled before it is regularised") {
  Session session = make_session(1);
  const Tensor gradient = Tensor::of<float>({2}, {3 * 64, -4 * 64}), w = Tensor::of<float>({2}, {2, -0.5});
  const Attrs attrs{{"scale", 0.1}, {"l1", 0.01}, {"l2", 0.2}};
  const std::vector<double> out =
      numbers(session.evaluate("prepare_gradient", {gradient, w, scalar(1.0f / 64)}, attrs)[0]);
  CHECK(out[0] == Approx(0.71));
  CHECK(out[1] == Approx(-0.51));
}

TEST_CASE("unscaling goes into the update of all variables, and into no product") {
  struct Seen {
    std::vector<std::string> labels;
    std::vector<Tensor> variables;
  };
  // Two dense weights, whose gradients would go straight into them if nobody had to look at them first.
  const auto train = [](bool dynamic, double l2, float x_value) {
    Session session = make_session();
    Graph graph(session.catalog());
    const TensorType x_type{DType::Float32, {3, 64}}, type{DType::Float32, {32, 64}};
    const std::vector<ValueId> x = {graph.feed("s", x_type), graph.feed("t", x_type)};
    const ValueId rate = graph.constant(scalar(0.1f), "rate");
    const std::vector<ValueId> w = {graph.variable("u", type), graph.variable("v", type)};
    std::vector<ValueId> losses, seeds;
    const ValueId scale = dynamic ? graph.variable("scale", {DType::Float32, {}}) : kNone;
    for (size_t i = 0; i < w.size(); ++i) {
      losses.push_back(graph.append("matmul", {x[i], w[i]}, {{"transpose_b", true}}, "y")[0]);
      const Attrs shape{{"shape", graph.type(losses.back()).shape.dims()}};
      Attrs ones = shape;
      ones.set("value", 1.0);
      seeds.push_back(dynamic ? graph.append("broadcast_to", {scale}, shape)[0]
                              : graph.append("constant", {}, ones)[0]);
    }
    const std::vector<ValueId> grads = gradients(graph, losses, seeds, w);
    ValueId finite = kNone, unscale = kNone;
    if (dynamic) {
      finite = graph.append("all_finite", grads, {}, "finite")[0];
      unscale = graph.append("divide", {finite, scale}, {}, "unscale")[0];
    }
    for (size_t i = 0; i < w.size(); ++i) {
      const ValueId prepared =
          graph.append("prepare_gradient", {grads[i], w[i], unscale}, {{"scale", 0.5}, {"l2", l2}})[0];
      graph.append("sgd_update", {w[i], prepared, rate, finite}, {}, "update");
    }
    const auto plan = session.compile(graph, "train");
    for (const char* name : {"u", "v"}) session.write(name, random_values(type, name[0]));
    if (dynamic) session.write("scale", scalar(4096));
    Tensor values = random_values(x_type, 3);
    values.data<float>()[5] = x_value;
    run(session, plan, {values, random_values(x_type, 4)});
    return Seen{labels(*plan), {session.read("u").copy(), session.read("v").copy()}};
  };
  const auto count = [](const Seen& seen, const std::string& op) {
    return std::count_if(seen.labels.begin(), seen.labels.end(),
                         [&](const std::string& label) { return label == op || label.rfind(op + " ", 0) == 0; });
  };
  const Seen plain = train(false, 0, 1), scaled = train(true, 0, 1), decayed = train(true, 0.5, 1);
  CHECK(count(plain, "matmul_sgd_update") == 2);
  CHECK(count(scaled, "matmul_sgd_update") == 0);
  CHECK(count(scaled, "prepare_gradient") == 0);
  CHECK(count(scaled, "sgd_update") == 1);
  CHECK(count(decayed, "prepare_gradient") == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(distance(scaled.variables[i], plain.variables[i]) < 1e-6);
    CHECK(distance(decayed.variables[i], train(false, 0.5, 1).variables[i]) < 1e-6);
  }
  for (const double l2 : {0.0, 0.5}) {
    const Seen overflowed = train(true, l2, 3e38f);
    CHECK(same(overflowed.variables[0], random_values({DType::Float32, {32, 64}}, 'u')));
    CHECK(same(overflowed.variables[1], random_values({DType::Float32, {32, 64}}, 'v')));
  }
}
