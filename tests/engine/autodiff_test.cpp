#include "engine/autodiff.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

namespace {

// Gradient of sum(loss) with respect to `wrt`, computed by a run.
std::vector<float> gradient(ToySession& toy, Graph& graph, ValueId loss, ValueId wrt, std::vector<Tensor> feeds) {
  const ValueId seed = graph.append("ones", {loss})[0];
  const ValueId grad = gradients(graph, {loss}, {seed}, {wrt})[0];
  REQUIRE(grad != kNone);
  graph.tap(grad, 1);
  return values(toy.call(toy.session.compile(graph, "test"), std::move(feeds))[0]);
}

}  // namespace

TEST_CASE("the gradient of x squared is 2 x") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(3));
  CHECK(gradient(toy, graph, graph.append("square", {x})[0], x, {floats({1, -2, 3})}) == std::vector<float>{2, -4, 6});
}

TEST_CASE("a value with several consumers sums their gradients") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const ValueId x2 = graph.append("square", {x})[0];
  const ValueId loss = graph.append("add", {graph.append("mul", {x2, x})[0], x2})[0];  // x^3 + x^2
  CHECK(gradient(toy, graph, loss, x, {floats({1, 2})}) == std::vector<float>{5, 16});
}

TEST_CASE("a variable as its own loss has a gradient of ones") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(2));
  CHECK(gradient(toy, graph, w, w, {}) == std::vector<float>{1, 1});
}

TEST_CASE("where no path leads there is no gradient") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2)), y = graph.feed("y", vec(2));
  const ValueId loss = graph.append("square", {x})[0];
  const ValueId stopped = graph.append("ones", {y})[0];  // has no gradient rule
  const ValueId total = graph.append("add", {loss, stopped})[0];
  const ValueId seed = graph.append("ones", {total})[0];
  const std::vector<ValueId> grads = gradients(graph, {total}, {seed}, {x, y, loss});
  CHECK(grads[0] != kNone);
  CHECK(grads[1] == kNone);
  CHECK(grads[2] != kNone);
}

TEST_CASE("the values and the losses may come in any order") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const ValueId early = graph.append("square", {x})[0], middle = graph.append("square", {early})[0];
  const ValueId late = graph.append("mul", {middle, x})[0];
  const auto found = [&](const std::vector<ValueId>& losses, const std::vector<ValueId>& wanted) {
    std::vector<ValueId> seeds;
    for (const ValueId loss : losses) seeds.push_back(graph.append("ones", {loss})[0]);
    std::vector<bool> there;
    for (const ValueId grad : gradients(graph, losses, seeds, wanted)) there.push_back(grad != kNone);
    return there;
  };
  CHECK(found({early}, {late}) == std::vector<bool>{false});
  CHECK(found({late, early}, {middle, x}) == std::vector<bool>{true, true});
  CHECK(found({early}, {late, early, x}) == std::vector<bool>{false, true, true});
  CHECK(found({late}, {}).empty());

  // x^4 x + x^2 of what comes first, middle and last.
  const ValueId seed = graph.append("ones", {x})[0];
  const std::vector<ValueId> grads = gradients(graph, {late, early}, {seed, seed}, {middle, x});
  for (const ValueId grad : grads) graph.tap(grad, static_cast<Token>(grad));
  const std::vector<Tensor> results = toy.call(toy.session.compile(graph, "test"), {floats({1, 2})});
  CHECK(values(results[0]) == std::vector<float>{1, 2});
  CHECK(values(results[1]) == std::vector<float>{7, 84});
}

TEST_CASE("only what leads to a wanted value is differentiated") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2)), w = graph.variable("w", vec(2));
  const ValueId loss = graph.append("mul", {graph.append("square", {x})[0], w})[0];
  const ValueId seed = graph.append("ones", {loss})[0];
  const size_t before = graph.nodes().size();
  gradients(graph, {loss}, {seed}, {w});
  CHECK(graph.nodes().size() == before + 2);  // the two products of mul's own gradient, nothing of square's
}

TEST_CASE("a gradient is differentiated as any other value") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const ValueId cube = graph.append("mul", {graph.append("square", {x})[0], x})[0];
  const ValueId slope = gradients(graph, {cube}, {graph.append("ones", {cube})[0]}, {x})[0];
  REQUIRE(slope != kNone);
  CHECK(gradient(toy, graph, slope, x, {floats({1, -2})}) == std::vector<float>{6, -12});
}

TEST_CASE("a part of the graph is computed once more where gradients want it") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  graph.part = 1;
  const ValueId x2 = graph.append("square", {x}, {}, "x2")[0];
  const ValueId x3 = graph.append("mul", {x2, x}, {}, "x3")[0];
  graph.part = 0;
  const ValueId loss = graph.append("square", {x3}, {}, "loss")[0];
  const ValueId grad = gradients(graph, {loss}, {graph.append("ones", {loss})[0]}, {x})[0];
  graph.tap(grad, 1);
  graph.tap(loss, 2);
  const auto plan = toy.session.compile(graph, "test");

  std::vector<std::string> steps;
  for (const Step& step : plan->steps) steps.push_back(step.label);
  const auto at = [&](const std::string& label) {
    return std::find(steps.begin(), steps.end(), label) - steps.begin();
  };
  const auto end = static_cast<std::ptrdiff_t>(steps.size());
  CHECK(at("square 'loss'") < at("square 'x2_again'"));  // not when what it reads is there, which is at once
  CHECK(at("square 'x2_again'") < end);
  CHECK(at("mul 'x3_again'") == end);  // the loss reads x3, so that is kept
  const std::vector<Tensor> given = toy.call(plan, {floats({1, 2})});
  CHECK(values(given[0]) == std::vector<float>{6, 192});
  CHECK(values(given[1]) == std::vector<float>{1, 64});
}

TEST_CASE("parts that are computed once more take less memory") {
  constexpr int kParts = 8, kOps = 8;
  const auto arena_bytes = [](bool in_parts) {
    ToySession toy;
    Graph graph(toy.session.catalog());
    const ValueId x = graph.feed("x", vec(1000));
    ValueId y = x;
    for (int part = 1; part <= kParts; ++part) {
      graph.part = in_parts ? part : 0;
      for (int i = 0; i < kOps; ++i) y = graph.append("mul", {y, x})[0];
    }
    graph.part = 0;
    const ValueId grad = gradients(graph, {y}, {graph.append("ones", {y})[0]}, {x})[0];
    graph.tap(grad, 1);
    return toy.session.compile(graph, "test")->arena_bytes;
  };
  const int64_t kept = arena_bytes(false), repeated = arena_bytes(true);
  CHECK(kept >= kParts * kOps * 4000);
  CHECK(repeated <= (kParts + kOps + 4) * 4096);
}

TEST_CASE("what a part writes is written once") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(1)), w = graph.variable("w", vec(1));
  graph.part = 1;
  const ValueId y = graph.append("mul", {graph.append("square", {x})[0], x})[0];
  graph.append("assign_sub", {w, y});
  graph.part = 0;
  const ValueId loss = graph.append("square", {y})[0];
  CHECK(gradient(toy, graph, loss, x, {floats({2})}) == std::vector<float>{192});
  float w_after = 0;
  toy.session.variables().at("w").read(&w_after);
  CHECK(w_after == -8);
}

TEST_CASE("what stops a gradient is the first op on a way to the loss that has none") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2)), y = graph.feed("y", vec(2));
  const ValueId elsewhere = graph.append("ones", {x})[0];  // on no way to the loss
  const ValueId square = graph.append("square", {x})[0];
  const ValueId stopped = graph.append("ones", {square})[0];
  const ValueId loss = graph.append("add", {graph.append("ones", {stopped})[0], y})[0];
  CHECK(stops_gradient(graph, {loss}, x) == graph.value(stopped).node);
  CHECK(stops_gradient(graph, {elsewhere, loss}, x) == graph.value(elsewhere).node);
  CHECK(stops_gradient(graph, {loss}, y) == kNone);
  CHECK(stops_gradient(graph, {square}, x) == kNone);
}

TEST_CASE("a gradient rule that fails names its node") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2));
  const ValueId loss = graph.append("refuses_gradient", {x}, {}, "loss", "net.lua:3")[0];
  const ValueId seed = graph.append("ones", {loss})[0];
  try {
    gradients(graph, {loss}, {seed}, {x});
    FAIL("nothing was raised");
  } catch (const Error& error) {
    CHECK(error.op == "refuses_gradient 'loss'");
    CHECK(error.where == "net.lua:3");
  }
}

TEST_CASE("what is computed from a value is known, whether or not a gradient would pass") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId x = graph.feed("x", vec(2)), y = graph.feed("y", vec(2));
  const ValueId ones = graph.append("ones", {x})[0];  // has no gradient
  const ValueId of_both = graph.append("add", {ones, y})[0], of_y = graph.append("square", {y})[0];
  const auto among = [&](const std::vector<ValueId>& sources) {
    const std::vector<bool> computed = computed_from(graph, sources);
    REQUIRE(computed.size() == graph.values().size());
    std::vector<ValueId> found;
    for (const ValueId value : {x, y, ones, of_both, of_y})
      if (computed[value]) found.push_back(value);
    return found;
  };
  CHECK(among({x}) == std::vector<ValueId>{x, ones, of_both});
  CHECK(among({ones, of_y}) == std::vector<ValueId>{ones, of_both, of_y});
  CHECK(among({}).empty());
}
