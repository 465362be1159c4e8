#include "engine/autodiff.h"

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
