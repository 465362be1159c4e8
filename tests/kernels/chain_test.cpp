// Chains of element-wise ops: what joins them, what ends them, and that they change no bit.
#include <catch2/catch.hpp>
#include <cstring>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

int64_t chains_of(const Plan& plan) {
  const std::vector<std::string> steps = labels(plan);
  return std::count_if(steps.begin(), steps.end(),
                       [](const auto& step) { return step.rfind("element_chain ", 0) == 0; });
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// A graph of one feed "x", and the same ops one at a time.
struct Both {
  Session& session;
  Graph graph;
  std::vector<Tensor> values;  // by value of the graph

  Both(Session& session, const Tensor& x) : session(session), graph(session.catalog()) {
    graph.feed("x", x.type());
    values.push_back(x);
  }
  ValueId op(const std::string& name, const std::vector<ValueId>& inputs, const Attrs& attrs = {}) {
    std::vector<Tensor> given;
    for (const ValueId input : inputs) given.push_back(values[input]);
    values.push_back(session.evaluate(name, given, attrs)[0]);
    return graph.append(name, inputs, attrs, name)[0];
  }
  ValueId constant(const Tensor& value) {
    values.push_back(value);
    return graph.constant(value, "constant");
  }
  ValueId constant(DType dtype, double value) {
    return constant(session.evaluate("constant", {}, {{"value", value}, {"dtype", dtype}, {"shape", Ints{}}})[0]);
  }
};

}  // namespace

TEST_CASE("a chain of element-wise ops is one step, and gives the same bits as its ops") {
  Session one = make_session(1), two = make_session(2);
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{1024}, Shape{3, 341}, Shape{257, 1025}}) {
      INFO(shape);
      const Tensor x = random_values({dtype, shape}, 1);
      Both both(two, x);
      const ValueId scaled = both.op("multiply", {both.constant(dtype, 1.5), 0});
      const ValueId leaky = both.op("leaky_relu", {scaled}, {{"alpha", 0.1}});
      const ValueId sum = both.op("add", {both.op("square", {0}), leaky});
      const ValueId end = both.op("clip_by_value", {both.op("tanh", {sum})}, {{"min", -0.5}, {"max", 0.7}});
      both.graph.tap(end, 1);
      for (Session* session : {&one, &two}) {
        const auto plan = session->compile(both.graph, "chain");
        CHECK(plan->steps.size() == 1);
        CHECK(chains_of(*plan) == 1);
        CHECK(same_bits(run(*session, plan, {x})[0], both.values[end]));
      }
    }
  }
}

TEST_CASE("a watched value and one that is read twice end a chain, and are still there") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {100, 30}}, 1);
  Both both(session, x);
  const ValueId watched = both.op("exp", {both.op("negative", {0})});
  const ValueId shared = both.op("square", {both.op("relu", {watched})});
  const ValueId end = both.op("multiply", {both.op("sigmoid", {shared}), shared});
  both.graph.tap(watched, 1);
  both.graph.tap(end, 2);
  const auto plan = session.compile(both.graph, "watched");
  CHECK(labels(*plan).size() == 3);
  CHECK(chains_of(*plan) == 3);
  const std::vector<Tensor> got = run(session, plan, {x});
  CHECK(same_bits(got[0], both.values[watched]));
  CHECK(same_bits(got[1], both.values[end]));
}

TEST_CASE("rows join a chain; rows of another length and broader results do not") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {7, 6, 80}}, 1);
  Both both(session, x);
  const ValueId row = both.constant(random_values({DType::Float32, {80}}, 2));
  const ValueId rows = both.constant(random_values({DType::Float32, {6, 80}}, 3));
  const ValueId column = both.constant(random_values({DType::Float32, {7, 1, 1}}, 4));
  const ValueId with_row = both.op("add", {both.op("multiply", {0, row}), row});
  const ValueId with_rows = both.op("subtract", {both.op("exp", {with_row}), rows});
  const ValueId end = both.op("relu", {both.op("add", {with_rows, column})});
  both.graph.tap(end, 1);
  const auto plan = session.compile(both.graph, "rows");
  // multiply and add; exp and subtract; add, whose column repeats each element; relu.
  CHECK(labels(*plan).size() == 4);
  CHECK(chains_of(*plan) == 2);
  CHECK(same_bits(run(session, plan, {x})[0], both.values[end]));
}

TEST_CASE("gradients of a chain are chains, with the same values") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {40, 50}}, 1);
  const auto gradient = [&](bool watched) {
    Graph graph(session.catalog());
    const ValueId feed = graph.feed("x", x.type());
    const ValueId tanh = graph.append("tanh", {feed}, {}, "tanh")[0];
    const ValueId end = graph.append("square", {graph.append("exp", {tanh}, {}, "exp")[0]}, {}, "square")[0];
    const ValueId seed = graph.append("ones_like", {end}, {}, "seed")[0];
    graph.tap(gradients(graph, {end}, {seed}, {feed})[0], 1);
    if (watched) {  // every value is there on its own
      for (ValueId value = 1; value < static_cast<ValueId>(graph.values().size()); ++value) graph.tap(value, 2);
    }
    const auto plan = session.compile(graph, "gradient");
    CHECK((chains_of(*plan) > 0) == !watched);
    return run(session, plan, {x})[0];
  };
  CHECK(same_bits(gradient(false), gradient(true)));
}

TEST_CASE("a chain of any length is cut to pieces, and keeps one value alive") {
  Session session = make_session();
  constexpr int kOps = 3000;
  const Tensor x = random_values({DType::Float32, {2000}}, 1);
  Graph graph(session.catalog());
  ValueId value = graph.feed("x", x.type());
  for (int i = 0; i < kOps; ++i) value = graph.append(i % 2 ? "sigmoid" : "negative", {value}, {}, text("op", i))[0];
  graph.tap(value, 1);
  const auto plan = session.compile(graph, "long");
  CHECK(plan->steps.size() < kOps / 10);
  CHECK(chains_of(*plan) == static_cast<int64_t>(plan->steps.size()));
  CHECK(plan->arena_bytes < 3 * x.bytes());
  const double result = numbers(run(session, plan, {x})[0])[0];
  CHECK(result == Approx(0.4010581).epsilon(1e-5));  // where y = 1 / (1 + exp(y))
}
