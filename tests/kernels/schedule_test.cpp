// Learning-rate schedules against values computed from their formulas in Python, in float64.
#include <catch2/catch.hpp>

#include "engine/session.h"
#include "kernels/catalog.h"

using namespace moonflow;

namespace {

struct Rates {
  Session session{all_ops(), make_cpu_device(1)};

  float at(const std::string& schedule, int64_t step, const Attrs& attrs) {
    return session.evaluate("schedule_" + schedule, {Tensor::of<int64_t>({}, {step})}, attrs)[0].data<float>()[0];
  }
  float warmed(const std::string& kind, int64_t step, float rate, const Attrs& attrs) {
    const std::vector<Tensor> inputs = {Tensor::of<int64_t>({}, {step}), Tensor::of<float>({}, {rate})};
    return session.evaluate("schedule_warmup_" + kind, inputs, attrs)[0].data<float>()[0];
  }
  void check(const std::string& schedule, const Attrs& attrs, const std::vector<std::pair<int64_t, double>>& expected) {
    INFO(schedule);
    for (const auto& [step, rate] : expected) {
      INFO("step " << step);
      CHECK(at(schedule, step, attrs) == Approx(rate).epsilon(1e-6));
    }
  }
};

Attrs decay(bool staircase) {
  return {{"base_lr", 0.1}, {"steps", int64_t{5}}, {"decay_rate", 0.5}, {"staircase", staircase}};
}

}  // namespace

TEST_CASE("a boundary is the last step of its piece") {
  Rates rates;
  rates.check("piecewise_constant", {{"boundaries", Ints{2, 5}}, {"values", Floats{0.1, 0.05, 0.01}}},
              {{0, 0.1}, {2, 0.1}, {3, 0.05}, {5, 0.05}, {6, 0.01}, {1000, 0.01}});
  rates.check("piecewise_constant", {{"boundaries", Ints{}}, {"values", Floats{0.1}}}, {{0, 0.1}, {1000, 0.1}});
  rates.check("piecewise_scaling", {{"base_lr", 0.2}, {"boundaries", Ints{2, 5}}, {"scale", Floats{0.5, 0.1}}},
              {{0, 0.2}, {2, 0.2}, {3, 0.1}, {6, 0.02}});
}

TEST_CASE("cosines fall to their end and stay there") {
  Rates rates;
  rates.check("cosine", {{"base_lr", 0.1}, {"steps", int64_t{8}}, {"alpha", 0.1}},
              {{0, 0.1}, {2, 0.08681980515339464}, {4, 0.055}, {8, 0.01}, {20, 0.01}});
  rates.check("linear_cosine", {{"base_lr", 0.1}, {"steps", int64_t{8}}},
              {{0, 0.1001}, {2, 0.06411650429449553}, {4, 0.0251}, {8, 0.0001}, {20, 0.0001}});
}

TEST_CASE("decays are smooth, or in jumps with staircase") {
  Rates rates;
  rates.check("exponential", decay(false), {{0, 0.1}, {3, 0.06597539553864472}, {5, 0.05}, {12, 0.01894645708137998}});
  rates.check("exponential", decay(true), {{0, 0.1}, {3, 0.1}, {5, 0.05}, {12, 0.025}});
  rates.check("inverse_time", decay(false),
              {{0, 0.1}, {3, 0.07692307692307693}, {5, 0.06666666666666667}, {12, 0.045454545454545456}});
  rates.check("inverse_time", decay(true), {{0, 0.1}, {3, 0.1}, {5, 0.06666666666666667}, {12, 0.05}});
  rates.check("natural_exp", decay(false),
              {{0, 0.1}, {3, 0.0740818220681718}, {5, 0.06065306597126335}, {12, 0.030119421191220214}});
  rates.check("natural_exp", decay(true), {{3, 0.1}, {5, 0.06065306597126335}, {12, 0.036787944117144235}});
}

TEST_CASE("a polynomial ends once, or begins again over a longer stretch") {
  Rates rates;
  Attrs attrs{{"base_lr", 0.1}, {"steps", int64_t{5}}, {"power", 2.0}};
  rates.check("polynomial", attrs, {{0, 0.1}, {2, 0.036064}, {5, 0.0001}, {7, 0.0001}, {12, 0.0001}});
  attrs.set("cycle", true);
  rates.check("polynomial", attrs, {{0, 0.1}, {2, 0.036064}, {5, 0.0001}, {7, 0.009091}, {12, 0.004096}});
}

TEST_CASE("a warm-up overrides the rate of its first steps only") {
  Rates rates;
  const Attrs constant{{"steps", int64_t{4}}, {"multiplier", 0.1}, {"base_lr", 0.5}};
  CHECK(rates.warmed("constant", 0, 0.3f, constant) == Approx(0.05));
  CHECK(rates.warmed("constant", 3, 0.3f, constant) == Approx(0.05));
  CHECK(rates.warmed("constant", 4, 0.3f, constant) == 0.3f);
  const Attrs linear{{"steps", int64_t{4}}, {"start_multiplier", 0.2}, {"base_lr", 0.5}};
  CHECK(rates.warmed("linear", 0, 0.3f, linear) == Approx(0.1));
  CHECK(rates.warmed("linear", 2, 0.3f, linear) == Approx(0.3));
  CHECK(rates.warmed("linear", 3, 0.3f, linear) == Approx(0.4));
  CHECK(rates.warmed("linear", 4, 0.25f, linear) == 0.25f);
}

TEST_CASE("a schedule that has no meaning is refused") {
  Rates rates;
  CHECK_THROWS_WITH(rates.at("piecewise_constant", 0, {{"boundaries", Ints{2}}, {"values", Floats{0.1}}}),
                    "1 boundaries part 2 pieces, but there are 1 values");
  CHECK_THROWS_WITH(rates.at("piecewise_constant", 0, {{"boundaries", Ints{5, 2}}, {"values", Floats{3, 2, 1}}}),
                    "boundaries must rise");
  CHECK_THROWS_WITH(rates.at("cosine", 0, {{"base_lr", 0.1}, {"steps", int64_t{0}}}),
                    "steps must be positive, got 0");
}
