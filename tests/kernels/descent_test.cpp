// Weights and their updates: the gradient of a dense layer's weight goes into the weight, updates by one rule become
// one, and where either would change what is seen or what is computed it does not happen.
#include <catch2/catch.hpp>
#include <cstring>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

int64_t count(const Plan& plan, const std::string& op) {
  const std::vector<std::string> steps = labels(plan);
  return std::count_if(steps.begin(), steps.end(), [&](const std::string& step) {
    return step == op || step.rfind(op + " ", 0) == 0;  // with a name, or without
  });
}

bool same(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
}

}  // namespace

// ---- updates that become one ---------------------------------------------------------------------------------------

namespace {

// Three variables, the last two of a shape that cuts registers, updated by `op` with `companions` of each.
std::vector<Tensor> update_three(const std::string& op, int companions, const Attrs& attrs, bool apart, int64_t& steps,
                                 int threads = 2) {
  Session session = make_session(threads);
  Graph graph(session.catalog());
  const ValueId rate = graph.constant(Tensor::of<float>({}, {0.1f}), "rate");
  const ValueId step = graph.constant(Tensor::of<int64_t>({}, {2}), "step");
  const std::vector<Shape> shapes = {{300, 401}, {7}, {5, 3}};
  std::vector<std::string> names;
  for (const Shape& shape : shapes) {
    const TensorType type{DType::Float32, shape};
    std::vector<ValueId> inputs;
    for (int i = 0; i <= companions; ++i) {
      names.push_back(text("v", names.size()));
      inputs.push_back(graph.variable(names.back(), type));
    }
    const ValueId gradient = graph.constant(random_values(type, 9, 0.5, 1), "gradient");
    inputs.push_back(graph.append("prepare_gradient", {gradient, inputs[0]}, {{"scale", 0.5}})[0]);
    inputs.push_back(apart ? graph.append("identity", {rate}, {}, "rate")[0] : rate);
    if (op == "adam_update") inputs.push_back(step);
    graph.append(op, inputs, attrs, "update");
  }
  const auto plan = session.compile(graph, "job");
  steps = count(*plan, op);
  for (const std::string& name : names) {
    session.write(name, random_values(session.variables().at(name).type, static_cast<uint32_t>(name[1]), 0.6, 1));
  }
  run(session, plan, {});
  std::vector<Tensor> values;
  for (const std::string& name : names) values.push_back(session.read(name).copy());
  return values;
}

}  // namespace

TEST_CASE("the updates of a step by one rule become one, and give what they gave") {
  struct Rule {
    const char* op;
    int companions;
    Attrs attrs;
  };
  for (const Rule& rule :
       {Rule{"sgd_update", 0, {}}, Rule{"momentum_update", 1, {{"beta", 0.5}}},
        Rule{"adam_update", 2, {{"weight_decay", 0.1}}}, Rule{"rmsprop_update", 2, {{"centered", true}}}}) {
    CAPTURE(rule.op);
    int64_t together = 0, apart = 0, steps = 0;
    const std::vector<Tensor> values = update_three(rule.op, rule.companions, rule.attrs, false, together);
    const std::vector<Tensor> expected = update_three(rule.op, rule.companions, rule.attrs, true, apart);
    CHECK(together == 1);
    CHECK(apart == 3);
    for (size_t i = 0; i < values.size(); ++i) CHECK(same(values[i], expected[i]));
    const std::vector<Tensor> alone = update_three(rule.op, rule.companions, rule.attrs, false, steps, 1);
    for (size_t i = 0; i < values.size(); ++i) CHECK(same(values[i], alone[i]));
  }
}

TEST_CASE("updates of a variable that somebody else updates too stay apart and in order") {
  Session session = make_session(1);
  Graph graph(session.catalog());
  const TensorType two{DType::Float32, {2}};
  const ValueId rate = graph.constant(Tensor::of<float>({}, {0.5f}), "rate");
  const ValueId ones = graph.constant(Tensor::of<float>({2}, {1, 1}), "ones");
  const auto prepared = [&](ValueId variable) {
    return graph.append("prepare_gradient", {ones, variable}, {{"scale", 2.0}})[0];
  };
  std::vector<ValueId> variables;
  for (const char* name : {"a", "b", "c"}) variables.push_back(graph.variable(name, two));
  graph.append("sgd_update", {variables[0], prepared(variables[0]), rate}, {}, "update");
  graph.append("assign", {variables[0], ones}, {}, "set");  // last, so it decides
  graph.append("sgd_update", {variables[1], prepared(variables[1]), rate}, {}, "update");
  graph.append("sgd_update", {variables[2], prepared(variables[2]), rate}, {}, "update");
  const auto plan = session.compile(graph, "job");
  CHECK(count(*plan, "sgd_update") == 2);
  for (const char* name : {"a", "b", "c"}) session.write(name, Tensor::of<float>({2}, {5, 6}));
  run(session, plan, {});
  CHECK(numbers(session.read("a")) == std::vector<double>{1, 1});
  CHECK(numbers(session.read("b")) == std::vector<double>{4, 5});
  CHECK(numbers(session.read("c")) == std::vector<double>{4, 5});
}

TEST_CASE("updates with other options stay apart") {
  Session session = make_session(1);
  Graph graph(session.catalog());
  const TensorType two{DType::Float32, {2}};
  const ValueId rate = graph.constant(Tensor::of<float>({}, {0.5f}), "rate"), g = graph.feed("g", two);
  for (const double scale : {1.0, 1.0, 0.5}) {
    graph.append("sgd_update", {graph.variable(text("w", graph.values().size()), two), g, rate},
                 {{"gradient_scale", scale}}, "update");
  }
  CHECK(count(*session.compile(graph, "job"), "sgd_update") == 2);
}
