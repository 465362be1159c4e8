#include "engine/session.h"

#include <catch2/catch.hpp>
#include <limits>

#include "toy.h"

using namespace moonflow;
using namespace moonflow::toy;

TEST_CASE("jobs of one session share a variable by name; sessions share nothing") {
  ToySession one, other;
  const auto train = [](ToySession& toy) {
    Graph graph(toy.session.catalog());
    const ValueId w = graph.variable("w", vec(1));
    graph.append("assign_sub", {w, graph.constant(floats({1}), "one")}, {}, "update");
    toy.call(toy.session.compile(graph, "train"), {});
  };
  const auto predict = [](ToySession& toy) {
    Graph graph(toy.session.catalog());
    graph.tap(graph.variable("w", vec(1)), 1);
    return values(toy.call(toy.session.compile(graph, "predict"), {})[0])[0];
  };
  train(one);
  train(one);
  CHECK(predict(one) == -2);
  CHECK(predict(other) == 0);
}

TEST_CASE("a variable has one type in all jobs") {
  ToySession toy;
  Graph first(toy.session.catalog()), second(toy.session.catalog());
  first.tap(first.variable("w", vec(1)), 1);
  second.tap(second.variable("w", vec(2)), 1);
  toy.session.compile(first, "a");
  CHECK_THROWS_WITH(toy.session.compile(second, "b"), Catch::Contains("variable 'w' is float32 (1)"));
}

TEST_CASE("variables are read and written from the host, with their type checked") {
  ToySession toy;
  toy.session.variables().declare({{"conv1-weight", vec(2)}}, *toy.device);
  toy.session.write("conv1-weight", floats({3, 4}));
  CHECK(values(toy.session.read("conv1-weight")) == std::vector<float>{3, 4});
  CHECK_THROWS_WITH(toy.session.write("conv1-weight", floats({1})), Catch::Contains("is float32 (2), the value is"));
  CHECK_THROWS_WITH(toy.session.read("conv1-wieght"),
                    "there is no variable 'conv1-wieght'; did you mean 'conv1-weight'?");
}

TEST_CASE("a variable counts as initialised once a run has written it") {
  ToySession toy;
  Graph graph(toy.session.catalog());
  const ValueId w = graph.variable("w", vec(1)), x = graph.feed("x", vec(1));
  graph.append("assign_sub", {w, x});
  const auto plan = toy.session.compile(graph, "job");
  CHECK_FALSE(toy.session.variables().find("w")->initialised());
  CHECK(toy.session.variables().without_value() == std::vector<std::string>{"w"});
  toy.call(plan, {floats({1})});
  CHECK(toy.session.variables().find("w")->initialised());
  CHECK(toy.session.variables().without_value().empty());
}

TEST_CASE("prepared calls take the weights that their session publishes, and outlive it") {
  auto toy = std::make_unique<ToySession>();
  Session& session = toy->session;
  const std::shared_ptr<FakeDevice> device = toy->device;
  session.variables().declare({{"w", vec(1)}}, *device);
  session.write("w", floats({3}));
  Graph graph(session.catalog());
  graph.tap(graph.append("add", {graph.variable("w", vec(1)), graph.feed("x", vec(1))})[0], 1);
  const auto prepare = [&] { return session.prepare(graph, "net", std::make_shared<FakeDevice>(), 1, 1); };
  std::shared_ptr<PreparedCall> one = prepare(), other = prepare();
  const auto run = [](PreparedCall& call) {
    call.run();
    return values(call.outputs()[0])[0];
  };
  CHECK(run(*one) == 3);
  session.write("w", floats({4}));
  CHECK(run(*one) == 3);
  session.publish(one);
  CHECK(run(*one) == 4);
  CHECK(run(*other) == 3);
  CHECK(session.publish() == 2);
  CHECK(run(*other) == 4);
  other.reset();
  CHECK(session.publish() == 1);
  session.close();
  CHECK_THROWS_WITH(prepare(), "the session of net is closed");
  toy.reset();
  CHECK(run(*one) == 4);
}

TEST_CASE("variables that are forgotten free their names and memory, and end the plans that use them") {
  ToySession toy;
  Session& session = toy.session;
  const auto job_of = [&](const std::string& name, const TensorType& type) {
    Graph graph(session.catalog());
    graph.tap(graph.append("add", {graph.variable(name, type), graph.feed("x", type)})[0], 1);
    return graph;
  };
  const Graph graph = job_of("w", vec(1));
  const auto plan = session.compile(graph, "net"), other = session.compile(job_of("v", vec(1)), "other");
  const auto prepared = session.prepare(graph, "net", std::make_shared<FakeDevice>(), 1, 1);
  session.write("w", floats({3}));
  session.publish(prepared);
  const int live = toy.device->live_buffers;
  const uint64_t changes = session.variables().changes();
  session.forget_variables({"w", "w-moment"});
  CHECK(toy.device->live_buffers == live - 1);
  CHECK(session.variables().names() == std::vector<std::string>{"v"});
  CHECK(session.variables().changes() != changes);
  CHECK_THROWS_WITH(
      toy.call(plan, {floats({1})}),
      Catch::Contains("the job 'net' computes with the variable 'w', which has been forgotten; define it again"));
  CHECK(values(toy.call(other, {floats({1})})[0])[0] == 1);

  // What was prepared keeps its weights, also where another variable has the name.
  const auto anew = session.compile(job_of("w", vec(2)), "net");
  session.write("w", floats({5, 6}));
  CHECK(values(toy.call(anew, {floats({1, 1})})[0]) == std::vector<float>{6, 7});
  CHECK_THROWS_WITH(session.publish(prepared), Catch::Contains("has been forgotten; prepare it again"));
  CHECK(session.publish() == 0);
  prepared->run();
  CHECK(values(prepared->outputs()[0])[0] == 3);
}

TEST_CASE("one op runs at once on host tensors") {
  ToySession toy;
  CHECK(values(toy.session.evaluate("add", {floats({1, 2}), floats({3, 4})})[0]) == std::vector<float>{4, 6});
  CHECK(values(toy.session.evaluate("halves", {floats({4})}, {{"scale", 0.25}})[1]) == std::vector<float>{1});
  CHECK(values(toy.session.evaluate("same", {floats({4})})[0]) == std::vector<float>{4});
  CHECK_THROWS_AS(toy.session.evaluate("add", {floats({1, 2}), floats({3})}), Error);
}

TEST_CASE("a plan and its results may outlive their session") {
  std::shared_ptr<Plan> plan;
  Tensor result;
  std::shared_ptr<FakeDevice> device;
  {
    ToySession toy;
    device = toy.device;
    Graph graph(toy.session.catalog());
    graph.tap(graph.append("square", {graph.feed("x", vec(1))})[0], 1);
    plan = toy.session.compile(graph, "job");
    result = toy.call(plan, {floats({3})})[0];
  }
  CHECK(values(result)[0] == 9);
  plan.reset();
  CHECK(device->live_buffers == 0);
}

TEST_CASE("an op is evaluated only with the inputs it takes") {
  ToySession toy;
  CHECK(values(toy.session.evaluate("square", {floats({3})})[0])[0] == 9);
  CHECK_THROWS_WITH(toy.session.evaluate("square", {}), Catch::Contains("misses its input"));
  CHECK_THROWS_WITH(toy.session.evaluate("square", {Tensor()}), Catch::Contains("misses its input"));
  CHECK_THROWS_WITH(toy.session.evaluate("square", {floats({3}), floats({3})}), Catch::Contains("takes 1 value"));
}

TEST_CASE("numbers in messages are those of the C locale, and a NaN has no sign") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(text(nan, " ", -nan, " ", static_cast<float>(-nan), " ", -1.5, " ", 1e20) == "nan nan nan -1.5 1e+20");
}
