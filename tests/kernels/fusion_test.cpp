// Fusions: a network's blocks become few steps over blocked layouts, and give the values of their parts.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Attrs with(Attrs attrs, const std::string& name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

int64_t count(const Plan& plan, const std::string& op) {
  const std::vector<std::string> steps = labels(plan);
  return std::count_if(steps.begin(), steps.end(), [&](const auto& step) { return step.rfind(op + " ", 0) == 0; });
}

std::vector<Tensor> random_feeds(const Graph& graph) {
  std::vector<Tensor> feeds;
  for (const NodeId feed : graph.feeds()) {
    feeds.push_back(random_values(graph.type(graph.node(feed).outputs[0]), 10 + static_cast<uint32_t>(feeds.size())));
  }
  return feeds;
}

std::vector<Tensor> as_double(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> result;
  for (const Tensor& tensor : tensors) result.push_back(moonflow::testing::as_double(tensor));
  return result;
}

// The sums here have a few hundred terms, each rounded at 6e-8, and squares on top.
constexpr double kFloat32 = 1e-5;

// x -> conv2d -> bias_add -> relu -> max_pool2d with all gradients, as a network has them.
struct Block {
  Graph graph;
  ValueId x, filter, bias, conv, biased, active, pooled;
  std::vector<ValueId> grads;

  Block(const Catalog& catalog, DType dtype, int64_t channels, int64_t filters, const std::string& format)
      : graph(catalog) {
    const bool last = format == "NHWC";
    const Attrs attrs = {{"padding", std::string("SAME")}, {"data_format", format}};
    x = graph.feed("x", {dtype, last ? Shape{3, 8, 9, channels} : Shape{3, channels, 8, 9}});
    filter = graph.feed("filter", {dtype, last ? Shape{filters, 3, 3, channels} : Shape{filters, channels, 3, 3}});
    bias = graph.feed("bias", {dtype, {filters}});
    conv = graph.append("conv2d", {x, filter}, attrs, "conv")[0];
    biased = graph.append("bias_add", {conv, bias}, {{"data_format", format}}, "bias")[0];
    active = graph.append("relu", {biased}, {}, "relu")[0];
    pooled = graph.append("max_pool2d", {active}, with(attrs, "ksize", Ints{2}), "pool")[0];
    const ValueId seed = graph.append("ones_like", {pooled}, {}, "seed")[0];
    const ValueId weighted = graph.append("multiply", {pooled, pooled}, {}, "loss")[0];
    grads = gradients(graph, {weighted}, {seed}, {x, filter, bias});
    graph.tap(pooled, 1);
    for (const ValueId grad : grads) graph.tap(grad, 2);
  }
};

}  // namespace

TEST_CASE("a block of a network is fused, keeps blocked layouts, and still gives the values of its parts") {
  Session session = make_session();
  for (const std::string& format : {std::string("NCHW"), std::string("NHWC")}) {
    for (const int64_t filters : {6, 32}) {  // 6 pads its blocks of channels
      CAPTURE(format, filters);
      Block block(session.catalog(), DType::Float32, 5, filters, format);
      const auto plan = session.compile(block.graph, "block");
      const std::vector<Tensor> feeds = random_feeds(block.graph);
      const std::vector<Tensor> values = run(session, plan, feeds);

      // In float64 nothing is laid out in blocks, and tapping the inner values keeps the parts apart.
      Block parts(session.catalog(), DType::Float64, 5, filters, format);
      for (const ValueId inner : {parts.conv, parts.biased, parts.active}) parts.graph.tap(inner, 3);
      const std::vector<Tensor> expected = run(session, session.compile(parts.graph, "parts"), as_double(feeds));
      REQUIRE(values.size() == 4);
      for (size_t i = 0; i < values.size(); ++i) CHECK(distance(values[i], expected[i]) < kFloat32);

      CHECK(count(*plan, "conv2d_bias") == 1);
      CHECK(count(*plan, "conv2d_filter_bias_grad") == 1);
      CHECK(count(*plan, "max_pool2d_grad") == 1);
      for (const char* part : {"conv2d", "bias_add", "relu", "relu_grad", "bias_grad"}) CHECK(count(*plan, part) == 0);
    }
  }
}

TEST_CASE("a tapped inner value is not fused away") {
  Session session = make_session();
  Block block(session.catalog(), DType::Float32, 4, 16, "NCHW");
  block.graph.tap(block.conv, 9);
  const auto plan = session.compile(block.graph, "block");
  CHECK(count(*plan, "conv2d") == 1);
  CHECK(count(*plan, "bias_add") == 1);
}

namespace {

// x W^T + b, perhaps relu, with all gradients.
struct Layer {
  Graph graph;
  ValueId product, out;

  Layer(const Catalog& catalog, DType dtype, int64_t rows, bool relu) : graph(catalog) {
    const ValueId x = graph.feed("x", {dtype, {rows, 37}}), weight = graph.feed("weight", {dtype, {20, 37}}),
                  bias = graph.feed("bias", {dtype, {20}});
    product = graph.append("matmul", {x, weight}, {{"transpose_b", true}}, "product")[0];
    out = graph.append("bias_add", {product, bias}, {}, "bias")[0];
    if (relu) out = graph.append("relu", {out}, {}, "relu")[0];
    const ValueId loss = graph.append("multiply", {out, out}, {}, "loss")[0];
    const ValueId seed = graph.append("ones_like", {loss}, {}, "seed")[0];
    graph.tap(out, 1);
    for (const ValueId grad : gradients(graph, {loss}, {seed}, {x, weight, bias})) graph.tap(grad, 2);
  }
};

}  // namespace

TEST_CASE("a layer of matmul, bias and relu becomes one dense step, and gives the values of its parts") {
  Session session = make_session();
  for (const bool relu : {false, true}) {
    for (const int64_t rows : {1, 5, 100}) {  // few rows take another way through oneDNN
      CAPTURE(relu, rows);
      Layer layer(session.catalog(), DType::Float32, rows, relu);
      const auto plan = session.compile(layer.graph, "layer");
      const std::vector<Tensor> feeds = random_feeds(layer.graph), values = run(session, plan, feeds);

      Layer parts(session.catalog(), DType::Float64, rows, relu);
      parts.graph.tap(parts.product, 3);
      const std::vector<Tensor> expected = run(session, session.compile(parts.graph, "parts"), as_double(feeds));
      REQUIRE(values.size() == 4);
      for (size_t i = 0; i < values.size(); ++i) CHECK(distance(values[i], expected[i]) < kFloat32);
      CHECK(count(*plan, "dense") == 1);
      for (const char* part : {"bias_add", "relu"}) CHECK(count(*plan, part) == 0);
    }
  }
}
