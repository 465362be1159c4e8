// Layers that are fused with what comes after them: a classifier's last one with its loss, and two of few rows.

#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& left, const Tensor& right) { return testing::same(left, right); });
}

// Sums of up to a few hundred terms, each rounded at 6e-8.
constexpr double kFloat32 = 5e-6;

// x -> (relu) -> dense of `classes` -> sparse softmax cross entropy, with its gradients.
struct Classifier {
  Graph graph;
  ValueId hidden, logits, prob, loss;

  // The losses are weighted and summed, or their `squares` are.
  Classifier(const Catalog& catalog, DType dtype, int64_t rows, int64_t inner, int64_t classes, bool relu,
             bool squares = false)
      : graph(catalog) {
    const ValueId x = graph.feed("x", {dtype, {rows, inner}}), weight = graph.feed("weight", {dtype, {classes, inner}});
    const ValueId bias = graph.feed("bias", {dtype, {classes}}), labels = graph.feed("labels", {DType::Int32, {rows}});
    const ValueId seed = graph.feed("seed", {dtype, {rows}});
    hidden = relu ? graph.append("relu", {x}, {}, "relu")[0] : x;
    const ValueId product = graph.append("matmul", {hidden, weight}, {{"transpose_b", true}}, "output")[0];
    logits = graph.append("bias_add", {product, bias}, {}, "bias")[0];
    const std::vector<ValueId> ends =
        graph.append("sparse_softmax_cross_entropy_with_logits", {labels, logits}, {}, "loss");
    prob = ends[0], loss = ends[1];
    const ValueId end = squares ? graph.append("multiply", {loss, loss}, {}, "squares")[0] : loss;
    graph.tap(loss, 1);
    for (const ValueId gradient : gradients(graph, {end}, {seed}, {x, weight, bias})) graph.tap(gradient, 2);
  }

  static std::vector<Tensor> feeds(DType dtype, int64_t rows, int64_t inner, int64_t classes) {
    Tensor labels = Tensor::allocate({DType::Int32, {rows}});
    for (int64_t i = 0; i < rows; ++i) labels.data<int32_t>()[i] = static_cast<int32_t>(i * 7 % classes);
    std::vector<Tensor> result;
    for (const Shape& shape : {Shape{rows, inner}, Shape{classes, inner}, Shape{classes}, Shape{rows}})
      result.push_back(random_values({DType::Float32, shape}, static_cast<uint32_t>(result.size()), -0.5, 0.5));
    if (dtype == DType::Float64)
      for (Tensor& tensor : result) tensor = as_double(tensor);
    result.insert(result.begin() + 3, labels);
    return result;
  }
};

// x -> dense -> relu -> dense.
struct Network {
  Graph graph;
  ValueId hidden;

  Network(const Catalog& catalog, DType dtype, int64_t rows, int64_t inner, int64_t units, int64_t columns)
      : graph(catalog) {
    const ValueId x = graph.feed("x", {dtype, {rows, inner}});
    const auto dense = [&](ValueId value, int64_t from, int64_t to, const std::string& name) {
      const ValueId weight = graph.feed(name + "-weight", {dtype, {to, from}}), bias = graph.feed(name, {dtype, {to}});
      const ValueId product = graph.append("matmul", {value, weight}, {{"transpose_b", true}}, name)[0];
      return graph.append("bias_add", {product, bias}, {}, name)[0];
    };
    hidden = graph.append("relu", {dense(x, inner, units, "hidden")}, {}, "relu")[0];
    graph.tap(dense(hidden, units, columns, "output"), 1);
  }

  std::vector<Tensor> feeds() const {
    std::vector<Tensor> result;
    for (const NodeId feed : graph.feeds())
      result.push_back(random_values(graph.type(graph.node(feed).outputs[0]), static_cast<uint32_t>(result.size()),
                                     -0.5, 0.5));
    return result;
  }
};

const char* const kLoss = "dense_softmax_cross_entropy";

}  // namespace

TEST_CASE("a classifier's last layer, its loss and the way back become one step, and give the values of their parts") {
  Session two = make_session(2), one = make_session(1);
  // Whole tiles and less, columns that end in the middle of a register, one class and as many as there may be.
  const std::vector<std::vector<int64_t>> sizes = {{100, 512, 10}, {61, 83, 32}, {1, 16, 2}, {15, 3, 1}, {300, 40, 7}};
  for (const std::vector<int64_t>& size : sizes) {
    for (const bool relu : {false, true}) {
      CAPTURE(size[0], size[1], size[2], relu);
      Classifier fused(two.catalog(), DType::Float32, size[0], size[1], size[2], relu);
      const auto plan = two.compile(fused.graph, "fused");
      CHECK(count(*plan, kLoss) == 1);
      for (const char* part : {"dense", "sparse_softmax_cross_entropy_grad", "relu_grad"})
        CHECK(count(*plan, part) == 0);
      const std::vector<Tensor> feeds = Classifier::feeds(DType::Float32, size[0], size[1], size[2]);
      const std::vector<Tensor> values = run(two, plan, feeds);
      CHECK(same(values, run(one, one.compile(fused.graph, "fused"), feeds)));

      Classifier parts(two.catalog(), DType::Float64, size[0], size[1], size[2], relu);
      parts.graph.tap(parts.logits, 3);
      const auto apart = two.compile(parts.graph, "parts");
      CHECK(count(*apart, kLoss) == 0);
      const std::vector<Tensor> expected =
          run(two, apart, Classifier::feeds(DType::Float64, size[0], size[1], size[2]));
      REQUIRE(values.size() == 4);
      for (size_t i = 0; i < values.size(); ++i) CHECK(distance(values[i], expected[i]) < kFloat32);
    }
  }
}

TEST_CASE("a loss whose gradient follows from it, or whose parts are wanted, stays apart") {
  Session session = make_session();
  const auto fused = [&](const Graph& graph) { return count(*session.compile(graph, "job"), kLoss); };
  const auto make = [&](int64_t classes = 10, bool squares = false) {
    return Classifier(session.catalog(), DType::Float32, 20, 30, classes, true, squares);
  };
  CHECK(fused(make().graph) == 1);
  CHECK(fused(make(10, true).graph) == 0);
  CHECK(fused(make(33).graph) == 0);
  Classifier watched = make(), judged = make();
  watched.graph.tap(watched.prob, 3);
  CHECK(fused(watched.graph) == 0);
  judged.graph.tap(judged.graph.append("argmax", {judged.logits}, {}, "best")[0], 3);
  CHECK(fused(judged.graph) == 0);

  // Apart it still computes.
  Classifier squares = make(10, true), doubles(session.catalog(), DType::Float64, 20, 30, 10, true, true);
  const auto values = run(session, session.compile(squares.graph, "a"), Classifier::feeds(DType::Float32, 20, 30, 10));
  const auto expected =
      run(session, session.compile(doubles.graph, "b"), Classifier::feeds(DType::Float64, 20, 30, 10));
  for (size_t i = 0; i < values.size(); ++i) CHECK(distance(values[i], expected[i]) < kFloat32);
}

TEST_CASE("a bad label of a fused loss names its row") {
  Session session = make_session();
  Classifier classifier(session.catalog(), DType::Float32, 5, 30, 3, true);
  const auto plan = session.compile(classifier.graph, "job");
  REQUIRE(count(*plan, kLoss) == 1);
  for (const int32_t bad : {-1, 3}) {
    std::vector<Tensor> feeds = Classifier::feeds(DType::Float32, 5, 30, 3);
    feeds[3].data<int32_t>()[4] = bad;
    CHECK_THROWS_WITH(run(session, plan, feeds),
                      Catch::Contains(text("row 4: label ", bad, " is outside [0, 3)")));
  }
}

TEST_CASE("two dense layers of few rows become one step, the same for any number of threads and in every run") {
  const std::vector<std::vector<int64_t>> sizes = {
      {1, 784, 512, 10}, {3, 50, 70, 64}, {8, 33, 31, 5}, {2, 1, 1, 1}, {1, 64, 64, 4}};
  for (const std::vector<int64_t>& size : sizes) {
    CAPTURE(size[0], size[1], size[2], size[3]);
    std::vector<Tensor> first;
    for (const int threads : {1, 2, 3}) {
      Session session = make_session(threads);
      Network network(session.catalog(), DType::Float32, size[0], size[1], size[2], size[3]);
      const auto plan = session.compile(network.graph, "pair");
      CHECK(count(*plan, "dense_pair") == 1);
      CHECK(count(*plan, "dense") == 0);
      const std::vector<Tensor> feeds = network.feeds();
      if (first.empty()) first = run(session, plan, feeds);
      for (int repeat = 0; repeat < 3; ++repeat) CHECK(same(run(session, plan, feeds), first));
    }
    Session session = make_session();
    Network parts(session.catalog(), DType::Float64, size[0], size[1], size[2], size[3]);
    parts.graph.tap(parts.hidden, 2);
    const auto apart = session.compile(parts.graph, "parts");
    CHECK(count(*apart, "dense_pair") == 0);
    Network single(session.catalog(), DType::Float32, size[0], size[1], size[2], size[3]);
    std::vector<Tensor> feeds = single.feeds();
    for (Tensor& feed : feeds) feed = as_double(feed);
    CHECK(distance(first[0], run(session, apart, feeds)[0]) < kFloat32);
  }
}

TEST_CASE("layers of many rows, or with many columns, or whose hidden units are wanted stay two") {
  Session session = make_session();
  const auto fused = [&](const Graph& graph) { return count(*session.compile(graph, "job"), "dense_pair"); };
  const auto make = [&](int64_t rows, int64_t columns) {
    return Network(session.catalog(), DType::Float32, rows, 20, 40, columns);
  };
  CHECK(fused(make(8, 64).graph) == 1);
  CHECK(fused(make(9, 64).graph) == 0);
  CHECK(fused(make(8, 65).graph) == 0);
  Network watched = make(1, 4);
  watched.graph.tap(watched.hidden, 2);
  CHECK(fused(watched.graph) == 0);
}

TEST_CASE("a product of few columns is the same for any number of threads") {
  Session two = make_session(2), one = make_session(1);
  const Attrs attrs{{"transpose_b", true}};
  for (const std::vector<int64_t>& size : std::vector<std::vector<int64_t>>{{9, 64, 1}, {100, 512, 10}, {301, 71, 16}}) {
    CAPTURE(size[0], size[1], size[2]);
    const Tensor a = random_values({DType::Float32, {size[0], size[1]}}, 1);
    const Tensor b = random_values({DType::Float32, {size[2], size[1]}}, 2);
    const Tensor c = two.evaluate("matmul", {a, b}, attrs)[0];
    CHECK(distance(c, two.evaluate("matmul", {as_double(a), as_double(b)}, attrs)[0]) < kFloat32);
    CHECK(same(c, one.evaluate("matmul", {a, b}, attrs)[0]));
  }
}
