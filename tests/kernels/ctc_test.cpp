// ctc_loss and its gradient: against sums of logarithms in long double, far below the range of a double, and alike for
// any number of threads.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

using Wide = long double;
const Wide kNever = -std::numeric_limits<Wide>::infinity();

Wide log_sum(Wide a, Wide b) {
  const Wide top = std::max(a, b), less = std::min(a, b);
  return less == kNever ? top : top + std::log1p(std::exp(less - top));
}

struct Given {
  Tensor input, target, steps, counts, dy;

  // Rows of random lengths, the first of which is whole; every third label is the one before it.
  Given(const Shape& input_shape, int64_t labels, int64_t blank, uint32_t seed)
      : input(random_values({DType::Float32, input_shape}, seed, -7, 0)),
        target(Tensor::allocate({DType::Int32, {input_shape[0], labels}})),
        steps(Tensor::allocate({DType::Int64, {input_shape[0]}})),
        counts(Tensor::allocate({DType::Int64, {input_shape[0]}})),
        dy(random_values({DType::Float32, {input_shape[0]}}, seed + 1)) {
    std::mt19937 random(seed + 2);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
    for (int64_t i = 0; i < target.count(); ++i) {
      const auto label = static_cast<int32_t>((blank + 1 + below(input_shape[2] - 1)) % input_shape[2]);
      target.data<int32_t>()[i] = i > 0 && below(3) == 0 ? target.data<int32_t>()[i - 1] : label;
    }
    for (int64_t row = 0; row < input_shape[0]; ++row) {
      steps.data<int64_t>()[row] = row == 0 ? input_shape[1] : below(input_shape[1] + 1);
      counts.data<int64_t>()[row] = row == 0 ? labels : below(labels + 1);
    }
  }
  std::vector<Tensor> inputs(const Tensor& x) const { return {x, target, steps, counts}; }
  std::vector<Tensor> inputs_of_grad(const Tensor& x, const Tensor& dy) const { return {dy, x, target, steps, counts}; }
};

struct Expected {
  std::vector<double> loss, dinput;
};

// Sums of logarithms over all places, forwards and backwards.
Expected expected_of(const Given& given, int64_t blank) {
  const Shape& shape = given.input.shape();
  const int64_t classes = shape[2], labels = given.target.shape()[1];
  const std::vector<double> x = numbers(given.input), dy = numbers(given.dy);
  Expected expected{{}, std::vector<double>(x.size(), 0.0)};
  for (int64_t row = 0; row < shape[0]; ++row) {
    const int64_t steps = given.steps.data<int64_t>()[row], places = 2 * given.counts.data<int64_t>()[row] + 1;
    const auto class_at = [&](int64_t place) -> int64_t {
      return place % 2 == 0 ? blank : given.target.data<int32_t>()[row * labels + place / 2];
    };
    const auto log_at = [&](int64_t t, int64_t place) {
      return Wide(x[(row * shape[1] + t) * classes + class_at(place)]);
    };
    const auto may_skip = [&](int64_t place) {
      return place >= 2 && place % 2 && class_at(place) != class_at(place - 2);
    };
    using Table = std::vector<std::vector<Wide>>;
    Table before(steps + 1, std::vector<Wide>(places, kNever)), behind = before;
    before[0][0] = 0;
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t place = 0; place < places; ++place) {
        Wide sum = before[t][place];
        if (place > 0) sum = log_sum(sum, before[t][place - 1]);
        if (may_skip(place)) sum = log_sum(sum, before[t][place - 2]);
        before[t + 1][place] = sum + log_at(t, place);
      }
    }
    for (int64_t place = std::max<int64_t>(places - 2, 0); place < places; ++place) behind[steps][place] = 0;
    for (int64_t t = steps - 1; t >= 0; --t) {
      for (int64_t place = 0; place < places; ++place) {
        const auto from = [&](int64_t next) { return behind[t + 1][next] + log_at(t, next); };
        Wide sum = from(place);
        if (place + 1 < places) sum = log_sum(sum, from(place + 1));
        if (place + 2 < places && may_skip(place + 2)) sum = log_sum(sum, from(place + 2));
        behind[t][place] = sum;
      }
    }
    Wide all = kNever;
    for (int64_t place = std::max<int64_t>(places - 2, 0); place < places; ++place)
      all = log_sum(all, before[steps][place]);
    expected.loss.push_back(static_cast<double>(-all));
    if (all == kNever) continue;
    for (int64_t t = 0; t < steps; ++t)
      for (int64_t place = 0; place < places; ++place)
        expected.dinput[(row * shape[1] + t) * classes + class_at(place)] -=
            static_cast<double>(dy[row] * std::exp(before[t + 1][place] + behind[t + 1][place] - all));
  }
  return expected;
}

Tensor tensor_of(const std::vector<double>& values, const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Float64, shape});
  std::copy(values.begin(), values.end(), tensor.data<double>());
  return tensor;
}

}  // namespace

TEST_CASE("the loss of labels along a sequence is the sum over all ways, and its gradient the share of them") {
  Session session = make_session();
  uint32_t seed = 0;
  for (const auto& [steps, classes, labels] :
       {std::array<int64_t, 3>{9, 5, 3}, {40, 8, 17}, {30, 3, 0}, {1, 2, 1}, {17, 300, 16}, {1000, 80, 70}}) {
    const int64_t blank = classes / 2;
    const Given given({6, steps, classes}, labels, blank, seed += 3);
    CAPTURE(steps, classes, labels);
    const Attrs attrs{{"blank", blank}};
    const Expected expected = expected_of(given, blank);
    const Tensor loss = tensor_of(expected.loss, {6}), dinput = tensor_of(expected.dinput, given.input.shape());
    const auto check = [&](const Tensor& x, const Tensor& dy, double tolerance) {
      CHECK(distance(session.evaluate("ctc_loss", given.inputs(x), attrs)[0], loss) < tolerance);
      CHECK(distance(session.evaluate("ctc_loss_grad", given.inputs_of_grad(x, dy), attrs)[0], dinput) < tolerance);
    };
    // A few roundings of each step's sums, of which there are a thousand at most.
    check(as_double(given.input), as_double(given.dy), 3e-13);
    // What is rounded are the results, and for the gradient what comes from before.
    check(given.input, given.dy, 3e-7);
  }
}

TEST_CASE("a way that is far less likely than others counts where it is the only one") {
  Session session = make_session();
  // The label has a chance of exp(-900) at each of 50 steps, and the blank nearly all of the rest.
  Tensor input = Tensor::allocate({DType::Float64, {1, 50, 3}});
  for (int64_t t = 0; t < 50; ++t) {
    const double logs[] = {-1e-3, -900, -INFINITY};
    std::copy(logs, logs + 3, input.data<double>() + 3 * t);
  }
  const auto loss_of = [&](const std::vector<int32_t>& labels, int64_t steps) {
    Tensor target = Tensor::allocate({DType::Int32, {1, static_cast<int64_t>(labels.size())}});
    std::copy(labels.begin(), labels.end(), target.data<int32_t>());
    const Tensor lengths = Tensor::of<int64_t>({1}, {steps}), counts = Tensor::of<int64_t>({1}, {target.count()});
    const Tensor dy = Tensor::of<double>({1}, {1});
    const Tensor dx = session.evaluate("ctc_loss_grad", {dy, input, target, lengths, counts})[0];
    double sum = 0;
    for (const double slope : numbers(dx)) sum += slope;
    const double loss = numbers(session.evaluate("ctc_loss", {input, target, lengths, counts})[0])[0];
    // Each step goes by some class, as far as logarithms have digits to tell by which.
    if (loss < 1e15 || loss == INFINITY)
      CHECK(sum == Approx(std::isfinite(loss) ? -static_cast<double>(steps) : 0).epsilon(1e-12));
    return loss;
  };
  // A label for one step of 50, and three of them with blanks between.
  CHECK(loss_of({1}, 50) == Approx(900 + 49e-3 - std::log(50)).epsilon(1e-14));
  CHECK(loss_of({1, 1, 1}, 5) == Approx(2700 + 2e-3).epsilon(1e-14));
  CHECK(loss_of({1, 1, 1}, 4) == INFINITY);
  CHECK(loss_of({2}, 50) == INFINITY);
  CHECK(loss_of({2, 1}, 50) == INFINITY);
  // What a mask leaves of a logarithm.
  for (int64_t t = 0; t < 50; ++t) input.data<double>()[3 * t + 2] = -1e30;
  CHECK(loss_of({2}, 50) == Approx(1e30).epsilon(1e-14));
  // A NaN spoils the row that reads it, and no other class does.
  input.data<double>()[3 * 7 + 2] = NAN;
  CHECK(std::isfinite(loss_of({1}, 50)));
  const Tensor two = Tensor::of<int32_t>({1, 1}, {2}), one = Tensor::of<int64_t>({1}, {1});
  const Tensor steps = Tensor::of<int64_t>({1}, {50});
  CHECK(std::isnan(numbers(session.evaluate("ctc_loss", {input, two, steps, one}, {{"zero_infinity", true}})[0])[0]));
}

TEST_CASE("one op gives the loss and its gradient where that does not follow from the loss") {
  Session session = make_session();
  const Given given({4, 20, 6}, 5, 0, 1);
  Graph graph(session.catalog());
  const auto feed = [&](const char* name, const Tensor& value) { return graph.feed(name, value.type()); };
  const ValueId input = feed("input", given.input), target = feed("target", given.target);
  const ValueId steps = feed("steps", given.steps), counts = feed("counts", given.counts), dy = feed("dy", given.dy);
  const ValueId loss = graph.append("ctc_loss", {input, target, steps, counts}, {}, "loss")[0];
  const bool follows = GENERATE(false, true);
  const ValueId slope = follows ? graph.append("multiply", {dy, loss}, {}, "slope")[0] : dy;
  graph.tap(loss, 1);
  graph.tap(graph.append("ctc_loss_grad", {slope, input, target, steps, counts}, {}, "grad")[0], 2);
  const auto plan = session.compile(graph, "job");
  CHECK(count(*plan, "ctc_loss_and_grad") == (follows ? 0 : 1));
  const std::vector<Tensor> got = run(session, plan, {given.input, given.target, given.steps, given.counts, given.dy});
  CHECK(same(got[0], session.evaluate("ctc_loss", given.inputs(given.input))[0]));
  if (follows) return;
  CHECK(same(got[1], session.evaluate("ctc_loss_grad", given.inputs_of_grad(given.input, given.dy))[0]));
}

TEST_CASE("the loss of labels along a sequence has the same bits for any number of threads") {
  Session alone = make_session(1);
  const Given given({11, 90, 12}, 20, 3, 5);
  std::vector<Tensor> inputs = given.inputs(given.input);
  inputs.push_back(given.dy);
  const Attrs attrs{{"blank", int64_t{3}}};
  const std::vector<Tensor> expected = alone.evaluate("ctc_loss_and_grad", inputs, attrs);
  for (const int threads : {2, 3, 16}) {
    Session session = make_session(threads);
    const std::vector<Tensor> got = session.evaluate("ctc_loss_and_grad", inputs, attrs);
    CHECK(same(got[0], expected[0]));
    CHECK(same(got[1], expected[1]));
  }
}

TEST_CASE("nothing has a loss of nothing") {
  Session session = make_session();
  for (const auto& [batch, steps] : {std::pair<int64_t, int64_t>{0, 5}, {3, 0}}) {
    const Tensor input = Tensor::zeros({DType::Float32, {batch, steps, 4}}),
                 target = Tensor::zeros({DType::Int8, {batch, 2}});
    const Tensor none = Tensor::zeros({DType::Int32, {batch}}), dy = Tensor::zeros({DType::Float32, {batch}});
    const std::vector<Tensor> out = session.evaluate("ctc_loss_and_grad", {input, target, none, none, dy});
    CHECK(numbers(out[0]) == std::vector<double>(batch, 0.0));
    CHECK(out[1].shape() == input.shape());
  }
}

TEST_CASE("lengths and labels outside their range are named by their place, and so are shapes that do not fit") {
  Session session = make_session();
  const Tensor input = Tensor::zeros({DType::Float32, {2, 5, 3}});
  const auto said = [&](const std::vector<int32_t>& labels, const std::vector<int64_t>& steps,
                        const std::vector<int64_t>& counts) {
    Tensor target = Tensor::allocate({DType::Int32, {2, 2}});
    std::copy(labels.begin(), labels.end(), target.data<int32_t>());
    const Tensor lengths = Tensor::of<int64_t>({2}, {steps[0], steps[1]});
    const Tensor of_labels = Tensor::of<int64_t>({2}, {counts[0], counts[1]});
    return message_of([&] { session.evaluate("ctc_loss", {input, target, lengths, of_labels}); });
  };
  CHECK(said({1, 2, 1, -7}, {5, 0}, {2, 1}) == "no error");
  CHECK(said({1, 2, 1, 3}, {5, 5}, {2, 2}) == "target at (1, 1) is 3, outside [0, 3)");
  CHECK(said({1, -1, 1, 2}, {5, 5}, {2, 2}) == "target at (0, 1) is -1, outside [0, 3)");
  CHECK(said({1, 2, 1, 2}, {5, 6}, {2, 2}) == "input_lengths at (1) is 6, outside [0, 6)");
  CHECK(said({1, 2, 1, 2}, {5, 5}, {-1, 2}) == "target_lengths at (0) is -1, outside [0, 3)");

  const Tensor target = Tensor::zeros({DType::Int32, {2, 2}}), lengths = Tensor::zeros({DType::Int32, {2}});
  const auto refused = [&](const std::vector<Tensor>& inputs, int64_t blank) {
    return message_of([&] { session.evaluate("ctc_loss", inputs, {{"blank", blank}}); });
  };
  CHECK(refused({input, target, lengths, lengths}, 3) == "blank must be one of the 3 classes, from 0 on, got 3");
  CHECK(refused({input, lengths, lengths, lengths}, 0) ==
        "target is int32 (2), wanted (2, labels) beside input float32 (2, 5, 3)");
  CHECK(refused({input, target, lengths, target}, 0) == "target_lengths is int32 (2, 2), wanted (2)");
}
