// Weights and their updates: the gradient of a dense layer's weight goes into the weight, updates by one rule become
// one, and where either would change what is seen or what is computed it does not happen.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// y = x W^T and W -= rate * scale * dy^T x, as a layer without bias is trained.
struct Layer {
  Graph graph;
  ValueId x, dy, weight, rate, gradient;

  Layer(const Catalog& catalog, DType dtype, int64_t rows, int64_t in, int64_t units, bool updates = true)
      : graph(catalog) {
    x = graph.feed("x", {dtype, {rows, in}});
    dy = graph.feed("dy", {dtype, {rows, units}});
    weight = graph.variable("weight", {dtype, {units, in}});
    rate = graph.constant(Tensor::of<float>({}, {0.1f}), "rate");
    const ValueId y = graph.append("matmul", {x, weight}, {{"transpose_b", true}}, "y")[0];
    gradient = gradients(graph, {y}, {dy}, {weight})[0];
    if (updates) update(gradient);
  }
  void update(ValueId from, double l2 = 0) {
    const ValueId prepared = graph.append("prepare_gradient", {from, weight}, {{"scale", 0.5}, {"l2", l2}})[0];
    graph.append("sgd_update", {weight, prepared, rate}, {}, "update");
  }
};

struct Trained {
  std::shared_ptr<Plan> plan;
  Tensor weight;
};

Trained train(Layer& layer, DType dtype, int threads = 2, int steps = 1) {
  Session session = make_session(threads);
  Trained trained{session.compile(layer.graph, "train"), {}};
  session.write("weight", random_values(layer.graph.type(layer.weight), 1));
  std::vector<Tensor> feeds;
  for (const NodeId feed : layer.graph.feeds()) {
    feeds.push_back(random_values({dtype, layer.graph.type(layer.graph.node(feed).outputs[0]).shape},
                                  2 + static_cast<uint32_t>(feeds.size())));
  }
  for (int step = 0; step < steps; ++step) run(session, trained.plan, feeds);
  trained.weight = session.read("weight").copy();
  return trained;
}

}  // namespace

TEST_CASE("the gradient of a dense weight goes straight into the weight") {
  const auto catalog = all_ops();
  // Whole tiles, remainders in both directions, a column less than a register, rows a power of two apart, and a weight
  // larger than a block.
  const std::vector<std::vector<int64_t>> sizes = {{3, 64, 32},   {5, 49, 31},  {1, 3, 40},  {100, 784, 512},
                                                   {20, 256, 90}, {7, 20, 150}, {2, 5, 9000}};
  for (const std::vector<int64_t>& size : sizes) {
    CAPTURE(size[0], size[1], size[2]);
    Layer fused(*catalog, DType::Float32, size[0], size[1], size[2]);
    const Trained two = train(fused, DType::Float32, 2, 2), one = train(fused, DType::Float32, 1, 2);
    CHECK(count(*two.plan, "matmul_sgd_update") == 1);
    CHECK(count(*two.plan, "sgd_update") == 0);
    CHECK(same(two.weight, one.weight));

    Layer parts(*catalog, DType::Float64, size[0], size[1], size[2]);
    parts.graph.tap(parts.gradient, 1);
    const Trained expected = train(parts, DType::Float64, 1, 2);
    CHECK(count(*expected.plan, "matmul_sgd_update") == 0);
    CHECK(distance(two.weight, expected.weight) < 2e-6);  // sums of up to 100 terms, each rounded at 6e-8, twice

    Layer doubles(*catalog, DType::Float64, size[0], size[1], size[2]);
    CHECK(distance(train(doubles, DType::Float64, 2, 2).weight, expected.weight) < 1e-13);
  }
}

TEST_CASE("a gradient that is wanted elsewhere is a value of its own") {
  const auto catalog = all_ops();
  const auto layer = [&](bool updates) { return Layer(*catalog, DType::Float32, 3, 64, 32, updates); };
  const auto fused = [](Layer& layer) { return count(*train(layer, DType::Float32).plan, "matmul_sgd_update"); };

  Layer watched = layer(true);
  watched.graph.tap(watched.gradient, 1);
  CHECK(fused(watched) == 0);

  Layer twice = layer(true);
  twice.graph.tap(twice.graph.append("square", {twice.gradient}, {}, "norm")[0], 1);
  CHECK(fused(twice) == 0);

  Layer decayed = layer(false);
  decayed.update(decayed.gradient, 0.01);
  CHECK(fused(decayed) == 0);

  // A weight that two layers share has the sum of two products for its gradient.
  Layer shared = layer(false);
  const ValueId other = shared.graph.append("matmul", {shared.dy, shared.x}, {{"transpose_a", true}}, "other")[0];
  shared.update(shared.graph.append("add", {shared.gradient, other}, {}, "sum")[0]);
  CHECK(fused(shared) == 0);
}

TEST_CASE("a gradient smaller than what it is the product of is stored") {
  // Its factors would have to live until the end of the step.
  const auto catalog = all_ops();
  Layer layer(*catalog, DType::Float32, 100, 64, 32);
  CHECK(count(*train(layer, DType::Float32).plan, "matmul_sgd_update") == 0);
}

TEST_CASE("two variables that are each other's gradient both learn from the old value") {
  Session session = make_session();
  Graph graph(session.catalog());
  const TensorType type{DType::Float32, {40, 40}};
  const ValueId u = graph.variable("u", type), v = graph.variable("v", type);
  const ValueId rate = graph.constant(Tensor::of<float>({}, {0.1f}), "rate");
  const ValueId seed = graph.feed("seed", type);
  const ValueId y = graph.append("matmul", {u, v}, {}, "y")[0];
  const std::vector<ValueId> grads = gradients(graph, {y}, {seed}, {u, v});
  graph.append("sgd_update", {u, grads[0], rate}, {}, "first");
  graph.append("sgd_update", {v, grads[1], rate}, {}, "second");
  const auto plan = session.compile(graph, "job");
  const Tensor one = random_values(type, 1), two = random_values(type, 2), dy = random_values(type, 3);
  session.write("u", one);
  session.write("v", two);
  run(session, plan, {dy});
  const auto learned = [&](const Tensor& w, const Tensor& a, const Tensor& b, bool ta, bool tb) {
    const Tensor gradient = session.evaluate("matmul", {a, b}, {{"transpose_a", ta}, {"transpose_b", tb}})[0];
    const Tensor result = w.copy();
    session.evaluate("sgd_update", {result, gradient, Tensor::of<float>({}, {0.1f})});
    return result;
  };
  CHECK(distance(session.read("u"), learned(one, dy, two, false, true)) < 1e-6);
  CHECK(distance(session.read("v"), learned(two, one, dy, true, false)) < 1e-6);
}

TEST_CASE("a step that fails leaves a fused weight as it was") {
  Session session = make_session();
  Layer layer(session.catalog(), DType::Float32, 3, 64, 32);
  Graph& graph = layer.graph;
  const ValueId labels = graph.feed("labels", {DType::Int32, {3}});
  graph.tap(graph.append("sparse_softmax_cross_entropy_with_logits", {labels, layer.dy}, {}, "loss")[1], 1);
  const auto plan = session.compile(graph, "job");
  CHECK(plan->steps[static_cast<size_t>(plan->first_write)].label.rfind("matmul_sgd_update", 0) == 0);
  const Tensor weight = random_values(graph.type(layer.weight), 1);
  session.write("weight", weight);
  const Tensor x = random_values(graph.type(layer.x), 2), dy = random_values(graph.type(layer.dy), 3);
  CHECK(message_of([&] {
          run(session, plan, {x, dy, Tensor::of<int32_t>({3}, {0, 99, 1})});
        }).find("label 99") != std::string::npos);
  CHECK(same(session.read("weight"), weight));
  run(session, plan, {x, dy, Tensor::of<int32_t>({3}, {0, 9, 1})});
  CHECK(!same(session.read("weight"), weight));
}

// ---- updates that become one ---------------------------------------------------------------------------------------

namespace {

// Three variables, the last two of a shape that cuts registers, updated by `op` with `companions` of each.
std::vector<Tensor> update_three(const std::string& op, int companions, const Attrs& attrs, bool apart, int64_t& steps,
                                 int threads = 2) {
  Session session = make_session(threads);
  Graph graph(session.catalog());
  ValueId rate = graph.constant(Tensor::of<float>({}, {0.1f}), "rate");
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
    if (apart) rate = graph.append("identity", {rate}, {}, "rate")[0];
    inputs.push_back(rate);
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
  for (const Rule& rule : {Rule{"sgd_update", 0, {}}, Rule{"momentum_update", 1, {{"beta", 0.5}}},
                           Rule{"adam_update", 2, {{"weight_decay", 0.1}}},
                           Rule{"rmsprop_update", 2, {{"centered", true}}}, Rule{"adagrad_update", 1, {}}}) {
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

// ---- weights in panels ---------------------------------------------------------------------------------------------

TEST_CASE("a weight that a plan only reads is laid out once, until it is written") {
  for (const int64_t rows : {9, 37, 100, 150}) {
    for (const int64_t units : {32, 45, 100}) {
      for (const int64_t in : {1, 40, 1024}) {
        for (const bool relu : {false, true}) {
          CAPTURE(rows, units, in, relu);
          const auto predict = [&](DType dtype, int threads) {
            Session session = make_session(threads);
            Graph graph(session.catalog());
            const ValueId x = graph.feed("x", {dtype, {rows, in}}), w = graph.variable("w", {dtype, {units, in}});
            const ValueId b = graph.variable("b", {dtype, {units}});
            ValueId y = graph.append("matmul", {x, w}, {{"transpose_b", true}}, "y")[0];
            y = graph.append("bias_add", {y, b}, {}, "y")[0];
            if (relu) y = graph.append("relu", {y}, {}, "y")[0];
            graph.tap(y, 1);
            const auto plan = session.compile(graph, "predict");
            CHECK(plan->kept_steps == (dtype == DType::Float32 ? 1 : 0));
            std::vector<Tensor> values;
            for (const uint32_t seed : {1, 2}) {
              session.write("w", random_values({dtype, {units, in}}, seed));
              session.write("b", random_values({dtype, {units}}, seed + 1));
              for (int run_twice = 0; run_twice < 2; ++run_twice)
                values.push_back(run(session, plan, {random_values({dtype, {rows, in}}, 5)})[0]);
            }
            return values;
          };
          const std::vector<Tensor> values = predict(DType::Float32, 2), alone = predict(DType::Float32, 1),
                                    expected = predict(DType::Float64, 2);
          for (size_t i = 0; i < values.size(); ++i) {
            CHECK(same(values[i], alone[i]));
            CHECK(distance(values[i], expected[i]) < 2e-5);  // sums of up to 1024 terms, each rounded at 6e-8
          }
        }
      }
    }
  }
}
