// Optimizers against values computed from their formulas in Python, in float64: three steps on two weights.
#include <catch2/catch.hpp>
#include <cmath>

#include "engine/session.h"
#include "kernels/catalog.h"

using namespace moonflow;

namespace {

const std::vector<std::vector<double>> kGradients = {{0.5, -1.0}, {0.25, 2.0}, {-0.5, 0.5}};

template <class T>
Tensor pair(double a, double b) {
  return Tensor::of<T>({2}, {static_cast<T>(a), static_cast<T>(b)});
}

// Three updates with learning rate 0.1; `inputs(gradient, step)` lists what the op takes.
template <class T, class Inputs>
void train(const char* op, const Attrs& attrs, const Inputs& inputs) {
  Session session(all_ops(), make_cpu_device(1));
  for (int64_t step = 0; step < 3; ++step)
    session.evaluate(op, inputs(pair<T>(kGradients[step][0], kGradients[step][1]), Tensor::of<int64_t>({}, {step})),
                     attrs);
}

const Tensor& rate() {
  static const Tensor rate = Tensor::of<float>({}, {0.1f});
  return rate;
}

template <class T>
void check(const Tensor& tensor, double a, double b) {
  CHECK(tensor.data<T>()[0] == Approx(a).epsilon(2e-6));
  CHECK(tensor.data<T>()[1] == Approx(b).epsilon(2e-6));
}

}  // namespace

TEMPLATE_TEST_CASE("sgd follows the gradient", "", float, double) {
  using T = TestType;
  const Tensor w = pair<T>(1, -2);
  train<T>("sgd_update", {}, [&](Tensor g, Tensor) { return std::vector<Tensor>{w, g, rate()}; });
  check<T>(w, 0.975, -2.15);
}

TEMPLATE_TEST_CASE("momentum holds the learning rate inside", "", float, double) {
  using T = TestType;
  const Tensor w = pair<T>(1, -2), m = pair<T>(0, 0);
  train<T>("momentum_update", {{"beta", 0.9}},
           [&](Tensor g, Tensor) { return std::vector<Tensor>{w, m, g, rate()}; });
  check<T>(w, 0.867, -2.159);
  check<T>(m, -0.013, -0.149);
}

TEMPLATE_TEST_CASE("Nesterov's momentum looks a step ahead", "", float, double) {
  using T = TestType;
  const Tensor w = pair<T>(1, -2), m = pair<T>(0, 0);
  train<T>("momentum_update", {{"beta", 0.9}, {"nesterov", true}},
           [&](Tensor g, Tensor) { return std::vector<Tensor>{w, m, g, rate()}; });
  check<T>(w, 0.8553, -2.2931);
  check<T>(m, -0.013, -0.149);
}

TEMPLATE_TEST_CASE("adam, with and without bias correction and decay", "", float, double) {
  using T = TestType;
  const auto trained = [](Attrs attrs) {
    const Tensor w = pair<T>(1, -2), m = pair<T>(0, 0), v = pair<T>(0, 0);
    train<T>("adam_update", attrs,
             [&](Tensor g, Tensor step) { return std::vector<Tensor>{w, m, v, g, rate(), step}; });
    check<T>(m, 0.013, 0.149);
    check<T>(v, 0.00056193775, 0.005244001);
    return w;
  };
  check<T>(trained({{"bias_correction", false}}), 0.23279416925879848, -2.0451084602991734);
  check<T>(trained({}), 0.79570384965864, -1.9781754933974611);
  check<T>(trained({{"weight_decay", 0.01}}), 0.7929999664433403, -1.9723447809867218);
}

TEMPLATE_TEST_CASE("rmsprop, plain and centered", "", float, double) {
  using T = TestType;
  const Tensor w = pair<T>(1, -2), s = pair<T>(0, 0), none;
  train<T>("rmsprop_update", {}, [&](Tensor g, Tensor) { return std::vector<Tensor>{w, s, none, g, rate()}; });
  check<T>(w, 0.22099903841924412, -2.1147968774908934);
  check<T>(s, 0.005569, 0.051901);
  const Tensor cw = pair<T>(1, -2), cs = pair<T>(0, 0), mean = pair<T>(0, 0);
  train<T>("rmsprop_update", {{"centered", true}},
           [&](Tensor g, Tensor) { return std::vector<Tensor>{cw, cs, mean, g, rate()}; });
  check<T>(cw, 0.21222662033965656, -2.111152840967995);
  check<T>(mean, 0.0023755, 0.014999);
}

TEMPLATE_TEST_CASE("adagrad goes by all gradients there have been", "", float, double) {
  using T = TestType;
  const Tensor w = pair<T>(1, -2), s = pair<T>(0, 0);
  train<T>("adagrad_update", {}, [&](Tensor g, Tensor) { return std::vector<Tensor>{w, s, g, rate()}; });
  check<T>(w, 0.921945307135782, -2.0112645081286384);
  check<T>(s, 0.5625, 5.25);
  const Tensor later = pair<T>(1, -2), begun = pair<T>(0.5, 0.5);
  train<T>("adagrad_update", {{"epsilon", 1e-3}}, [&](Tensor g, Tensor) {
    return std::vector<Tensor>{later, begun, g, rate()};
  });
  check<T>(later, 0.9630873999716477, -2.0245036419683347);
}

TEST_CASE("centered rmsprop stays finite where gradients are always the same") {
  // Where products are rounded before they are added, as with MOONFLOW_SIMD=plain, their mean square may fall below the
  // square of their mean: of half of these.
  constexpr int64_t kCount = 40;
  const TensorType type{DType::Float32, {kCount}};
  Tensor w = Tensor::zeros(type), s = Tensor::zeros(type), mean = Tensor::zeros(type), g = Tensor::allocate(type);
  for (int64_t i = 0; i < kCount; ++i) g.data<float>()[i] = 0.1f * static_cast<float>(i + 1);
  Session session(all_ops(), make_cpu_device(1));
  for (int step = 0; step < 2000; ++step)
    session.evaluate("rmsprop_update", {w, s, mean, g, rate()}, {{"centered", true}});
  for (int64_t i = 0; i < kCount; ++i) CHECK(std::isfinite(w.data<float>()[i]));
}

TEST_CASE("a gradient is divided, regularised and clipped in this order") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor g = pair<float>(3, -4), w = pair<float>(2, -0.5);
  const Attrs attrs{{"scale", 0.1}, {"l1", 0.01}, {"l2", 0.2}};
  check<float>(session.evaluate("prepare_gradient", {g, w}, attrs)[0], 0.71, -0.51);

  const Tensor norm = session.evaluate("global_norm", {g, Tensor::of<float>({}, {12})})[0];
  CHECK(norm.data<float>()[0] == 13);
  const auto factor = [&](double limit) {
    return session.evaluate("clip_factor", {norm}, {{"clip_norm", limit}})[0].data<float>()[0];
  };
  CHECK(factor(6.5) == 0.5f);
  CHECK(factor(13) == 1);
  CHECK(factor(100) == 1);  // a short gradient is left alone
  // One that is NaN makes all NaN, or the others would go on without a bound.
  const Tensor lost = Tensor::of<float>({}, {std::nanf("")});
  CHECK(std::isnan(session.evaluate("clip_factor", {lost}, {{"clip_norm", 1.0}})[0].data<float>()[0]));
}

TEST_CASE("an update refuses what does not fit its variable") {
  Session session(all_ops(), make_cpu_device(1));
  const Tensor w = pair<float>(1, 2), g = Tensor::of<float>({3}, {1, 2, 3});
  CHECK_THROWS_WITH(session.evaluate("sgd_update", {w, g, rate()}),
                    "gradient is float32 (3), the variable is float32 (2)");
  CHECK_THROWS_WITH(session.evaluate("sgd_update", {w, w, w}),
                    "learning_rate is float32 (2), it must be float32 ()");
  CHECK_THROWS_WITH(session.evaluate("assign", {w, g}), "the variable is float32 (2), the value is float32 (3)");
}

TEST_CASE("an update takes over the division of its gradient, and nothing else") {
  const auto steps = [](const Attrs& preparation, bool tap_prepared) {
    Session session(all_ops(), make_cpu_device(1));
    Graph graph(session.catalog());
    const TensorType two{DType::Float32, {2}};
    const ValueId w = graph.variable("w", two), g = graph.feed("g", two), r = graph.constant(rate(), "rate");
    const ValueId prepared = graph.append("prepare_gradient", {g, w}, preparation)[0];
    graph.append("sgd_update", {w, prepared, r});
    if (tap_prepared) graph.tap(prepared, 1);
    const auto plan = session.compile(graph, "train");
    session.write("w", pair<float>(1, 1));
    Executor::Submission submission;
    submission.feeds = {pair<float>(5, -10)};
    submission.may_run_inline = true;
    session.submit(plan, std::move(submission));
    if (preparation.find("l2") == nullptr) check<float>(session.read("w"), 0.95, 1.1);
    return plan->steps.size();
  };
  CHECK(steps({{"scale", 0.1}}, false) == 1);
  CHECK(steps({{"scale", 0.1}}, true) == 2);
  CHECK(steps({{"scale", 0.1}, {"l2", 0.5}}, false) == 2);
}
