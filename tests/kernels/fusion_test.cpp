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

// How far what a plan gives is from what the same graph in float64 gives, at most. There nothing is laid out in blocks,
// and a graph whose inner values are tapped keeps its parts apart.
double distance_from(const Graph& exact, Session& session, const std::shared_ptr<Plan>& plan,
                     const std::vector<Tensor>& feeds) {
  const std::vector<Tensor> values = run(session, plan, feeds),
                            expected = run(session, session.compile(exact, "exact"), as_double(feeds));
  double farthest = 0;
  for (size_t i = 0; i < values.size(); ++i) farthest = std::max(farthest, distance(values[i], expected.at(i)));
  return farthest;
}

// The sums here have a few hundred terms, each rounded at 6e-8, and squares on top.
constexpr double kFloat32 = 1e-5;

// Whether the first step of an op, which there must be, gives its result row-major.
bool gives_rows(const Plan& plan, const std::string& op) {
  const auto step = std::find_if(plan.steps.begin(), plan.steps.end(),
                                 [&](const Step& step) { return step.label.rfind(op, 0) == 0; });
  REQUIRE(step != plan.steps.end());
  return step->output_layouts[0].row_major();
}

// x -> conv2d -> bias_add -> relu -> max_pool2d with all gradients, as a network has them.
struct Block {
  Graph graph;
  ValueId x, filter, bias, conv, biased, active, pooled;
  std::vector<ValueId> grads;

  Block(const Catalog& catalog, DType dtype, int64_t channels, int64_t filters, const std::string& format,
        int64_t width = 9, const std::string& algorithm = "auto", int64_t taps = 3, bool x_has_gradient = true)
      : graph(catalog) {
    const bool last = format == "NHWC";
    const Attrs attrs = {{"padding", std::string("SAME")}, {"data_format", format}};
    x = graph.feed("x", {dtype, last ? Shape{3, 8, width, channels} : Shape{3, channels, 8, width}});
    filter = graph.feed("filter",
                        {dtype, last ? Shape{filters, taps, taps, channels} : Shape{filters, channels, taps, taps}});
    bias = graph.feed("bias", {dtype, {filters}});
    conv = graph.append("conv2d", {x, filter}, with(attrs, "algorithm", algorithm), "conv")[0];
    biased = graph.append("bias_add", {conv, bias}, {{"data_format", format}}, "bias")[0];
    active = graph.append("relu", {biased}, {}, "relu")[0];
    pooled = graph.append("max_pool2d", {active}, with(attrs, "ksize", Ints{2}), "pool")[0];
    const ValueId seed = graph.append("ones_like", {pooled}, {}, "seed")[0];
    const ValueId weighted = graph.append("multiply", {pooled, pooled}, {}, "loss")[0];
    grads = gradients(graph, {weighted}, {seed},
                      x_has_gradient ? std::vector<ValueId>{x, filter, bias} : std::vector<ValueId>{filter, bias});
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

      Block parts(session.catalog(), DType::Float64, 5, filters, format);
      for (const ValueId inner : {parts.conv, parts.biased, parts.active}) parts.graph.tap(inner, 3);
      CHECK(distance_from(parts.graph, session, plan, random_feeds(block.graph)) < kFloat32);

      CHECK(count(*plan, "conv2d_bias") == 1);
      CHECK(count(*plan, "conv2d_filter_bias_grad") == 1);
      CHECK(count(*plan, "max_pool2d_grad") == 1);
      for (const char* part : {"conv2d", "bias_add", "relu", "relu_grad", "bias_grad"}) CHECK(count(*plan, part) == 0);
    }
  }
}

namespace {

// Two convolutions over one axis, each with bias and relu, and pooling between them as an image of one row, with all
// gradients.
struct RowOfConvolutions {
  Graph graph;

  RowOfConvolutions(const Catalog& catalog, DType dtype, bool channels_last, int64_t filters) : graph(catalog) {
    const std::string format = channels_last ? "NWC" : "NCW", image_format = channels_last ? "NHWC" : "NCHW";
    const auto shape = [&](int64_t first, int64_t channels, int64_t width) {
      return channels_last ? Shape{first, width, channels} : Shape{first, channels, width};
    };
    std::vector<ValueId> inputs;
    const auto feed = [&](const std::string& name, const Shape& of) {
      inputs.push_back(graph.feed(name, {dtype, of}));
      return inputs.back();
    };
    const auto layer = [&](const std::string& name, ValueId x, const Shape& filter) {
      const Attrs attrs = {{"padding", std::string("SAME")}, {"data_format", format}};
      const ValueId out = graph.append("conv1d", {x, feed(name + "-filter", filter)}, attrs, name)[0];
      const ValueId bias = feed(name + "-bias", {filter[0]});
      const ValueId biased = graph.append("bias_add", {out, bias}, {{"data_format", format}}, name + "-biased")[0];
      return graph.append("relu", {biased}, {}, name + "-active")[0];
    };
    const auto reshaped = [&](ValueId x, const Shape& to, const std::string& name) {
      return graph.append("reshape", {x}, {{"shape", to.dims()}}, name)[0];
    };
    const ValueId first = layer("first", feed("x", shape(3, 20, 30)), shape(filters, 20, 5));
    const ValueId image = reshaped(first, channels_last ? Shape{3, 1, 30, filters} : Shape{3, filters, 1, 30}, "image");
    const Attrs windows = {{"ksize", Ints{1, 2}}, {"strides", Ints{1, 2}}, {"data_format", image_format}};
    const ValueId pooled = graph.append("max_pool2d", {image}, windows, "pooled")[0];
    const ValueId row = reshaped(pooled, shape(3, filters, 15), "row");
    const ValueId out = layer("second", row, shape(1, filters, 3));
    const ValueId seed = graph.append("ones_like", {out}, {}, "seed")[0];
    const ValueId loss = graph.append("multiply", {out, out}, {}, "loss")[0];
    graph.tap(row, 1);
    graph.tap(reshaped(out, {3, 15}, "flat"), 2);
    for (const ValueId grad : gradients(graph, {loss}, {seed}, inputs)) graph.tap(grad, 3);
  }
};

}  // namespace

TEST_CASE("convolutions over one axis are fused as those over two, and blocks outlast a change of shape") {
  Session session = make_session();
  for (const bool channels_last : {false, true}) {
    for (const int64_t filters : {1, 6, 32}) {  // blocks of one channel, padded and full ones
      CAPTURE(channels_last, filters);
      const RowOfConvolutions row(session.catalog(), DType::Float32, channels_last, filters);
      const auto plan = session.compile(row.graph, "row");
      CHECK(count(*plan, "conv1d_bias") == 2);
      CHECK(count(*plan, "conv1d_filter_bias_grad") == 2);
      for (const char* part : {"conv1d", "bias_add", "relu", "bias_grad"}) CHECK(count(*plan, part) == 0);
      if (filters == 32 && !gives_rows(*plan, "conv1d_bias")) CHECK(!gives_rows(*plan, "max_pool2d"));

      const RowOfConvolutions exact(session.catalog(), DType::Float64, channels_last, filters);
      CHECK(distance_from(exact.graph, session, plan, random_feeds(row.graph)) < kFloat32);
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

TEST_CASE("pooling by two is fused with the convolution before it, in both directions") {
  Session session = make_session();
  for (const std::string& format : {std::string("NCHW"), std::string("NHWC")}) {
    for (const int64_t filters : {16, 48}) {
      for (const int64_t taps : {3, 5}) {
        CAPTURE(format, filters, taps);
        Block block(session.catalog(), DType::Float32, 16, filters, format, 14, "winograd", taps);
        const auto plan = session.compile(block.graph, "block");

        Block parts(session.catalog(), DType::Float64, 16, filters, format, 14, "direct", taps);
        for (const ValueId inner : {parts.conv, parts.biased, parts.active}) parts.graph.tap(inner, 3);
        CHECK(distance_from(parts.graph, session, plan, random_feeds(block.graph)) < 4e-5);  // as conv2d says

        CHECK(count(*plan, "conv2d_relu_pool") == 1);
        CHECK(count(*plan, "conv2d_relu_pool_input_grad") == 1);
        CHECK(count(*plan, "conv2d_relu_pool_filter_grad") == 1);
        for (const char* part : {"conv2d_bias", "max_pool2d", "max_pool2d_grad", "conv2d_input_grad"}) {
          CHECK(count(*plan, part) == 0);
        }
      }
    }
  }
}

TEST_CASE("the first layer of a network, whose image has few channels, is fused with its pooling") {
  Session session = make_session();
  for (const std::string& format : {std::string("NCHW"), std::string("NHWC")}) {
    for (const int64_t channels : {1, 3}) {
      for (const int64_t taps : {3, 5, 7}) {
        CAPTURE(format, channels, taps);
        Block block(session.catalog(), DType::Float32, channels, 48, format, 14, "direct", taps, false);
        const auto plan = session.compile(block.graph, "block");

        Block parts(session.catalog(), DType::Float64, channels, 48, format, 14, "direct", taps, false);
        for (const ValueId inner : {parts.conv, parts.biased, parts.active}) parts.graph.tap(inner, 3);
        CHECK(distance_from(parts.graph, session, plan, random_feeds(block.graph)) < kFloat32);
        CHECK(count(*plan, "conv2d_relu_pool") == 1);
        CHECK(count(*plan, "conv2d_relu_pool_filter_grad") == 1);
        for (const char* part : {"conv2d_bias", "max_pool2d", "max_pool2d_grad"}) CHECK(count(*plan, part) == 0);
      }
    }
  }
}

TEST_CASE("pooling stays apart from a convolution whose result is tapped or read elsewhere") {
  Session session = make_session();
  for (const bool tapped : {true, false}) {
    Block block(session.catalog(), DType::Float32, 16, 16, "NCHW", 14, "winograd");
    if (tapped)
      block.graph.tap(block.active, 9);
    else
      block.graph.tap(block.graph.append("negative", {block.active}, {}, "reader")[0], 9);
    const auto plan = session.compile(block.graph, "block");
    CHECK(count(*plan, "conv2d_relu_pool") == 0);
    CHECK(count(*plan, "max_pool2d") == 1);
    CHECK(count(*plan, "max_pool2d_grad") == 1);
  }
}

TEST_CASE("a network that only predicts is fused with its pooling too") {
  Session session = make_session();
  Graph graph(session.catalog());
  const Attrs attrs = {{"padding", std::string("SAME")}, {"algorithm", std::string("winograd")}};
  const ValueId x = graph.feed("x", {DType::Float32, {2, 20, 10, 6}}),
                filter = graph.feed("filter", {DType::Float32, {17, 20, 3, 3}}),
                bias = graph.feed("bias", {DType::Float32, {17}});
  const ValueId conv = graph.append("conv2d", {x, filter}, attrs, "conv")[0];
  const ValueId biased = graph.append("bias_add", {conv, bias}, {}, "bias")[0];
  const ValueId active = graph.append("relu", {biased}, {}, "relu")[0];
  graph.tap(graph.append("max_pool2d", {active}, {{"ksize", Ints{2}}}, "pool")[0], 1);
  const auto plan = session.compile(graph, "predict");
  const std::vector<Tensor> feeds = random_feeds(graph), values = run(session, plan, feeds);
  CHECK(count(*plan, "conv2d_relu_pool") == 1);

  const std::vector<Tensor> exact = as_double(feeds);
  Tensor expected = session.evaluate("conv2d", {exact[0], exact[1]}, attrs)[0];
  expected = session.evaluate("relu", {session.evaluate("bias_add", {expected, exact[2]})[0]})[0];
  CHECK(distance(values[0], session.evaluate("max_pool2d", {expected}, {{"ksize", Ints{2}}})[0]) < 1e-5);
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
    for (const int64_t rows : {1, 5, 100}) {  // few rows take another way
      CAPTURE(relu, rows);
      Layer layer(session.catalog(), DType::Float32, rows, relu);
      const auto plan = session.compile(layer.graph, "layer");

      Layer parts(session.catalog(), DType::Float64, rows, relu);
      parts.graph.tap(parts.product, 3);
      CHECK(distance_from(parts.graph, session, plan, random_feeds(layer.graph)) < kFloat32);
      CHECK(count(*plan, "dense") == 1);
      for (const char* part : {"bias_add", "relu"}) CHECK(count(*plan, part) == 0);
    }
  }
}

namespace {

// x -> conv2d -> batch_norm_train -> relu -> conv2d -> batch_norm_train -> (+ x) -> relu, with all gradients: the block
// of a residual network. Its first relu may be a relu6.
struct ResidualBlock {
  Graph graph;
  std::vector<ValueId> inner;

  ResidualBlock(const Catalog& catalog, DType dtype, int64_t channels, const std::string& format,
                const std::string& first = "relu")
      : graph(catalog) {
    const bool last = format == "NHWC";
    const Attrs attrs = {{"padding", std::string("SAME")}, {"data_format", format}};
    const Attrs axis = {{"axis", int64_t{last ? 3 : 1}}};
    const Shape weights = last ? Shape{channels, 3, 3, channels} : Shape{channels, channels, 3, 3};
    std::vector<ValueId> wanted{graph.feed("x", {dtype, last ? Shape{3, 7, 9, channels} : Shape{3, channels, 7, 9}})};
    ValueId value = wanted[0];
    for (int i = 0; i < 2; ++i) {
      const ValueId filter = graph.feed(text("filter", i), {dtype, weights}),
                    gamma = graph.feed(text("gamma", i), {dtype, {channels}}),
                    beta = graph.feed(text("beta", i), {dtype, {channels}});
      value = graph.append("conv2d", {value, filter}, attrs, "conv")[0];
      inner.push_back(value);
      value = graph.append("batch_norm_train", {value, gamma, beta}, axis, "norm")[0];
      inner.push_back(value);
      if (i == 1) {
        value = graph.append("add", {value, wanted[0]}, {}, "sum")[0];
        inner.push_back(value);
      }
      value = graph.append(i == 0 ? first : "relu", {value}, {}, "relu")[0];
      wanted.insert(wanted.end(), {filter, gamma, beta});
    }
    const ValueId seed = graph.append("ones_like", {value}, {}, "seed")[0];
    const ValueId loss = graph.append("multiply", {value, value}, {}, "loss")[0];
    graph.tap(value, 1);
    for (const ValueId grad : gradients(graph, {loss}, {seed}, wanted)) graph.tap(grad, 2);
  }
};

}  // namespace

TEST_CASE("a residual block is fused around its batch norms, keeps one layout, and gives the values of its parts") {
  Session session = make_session();
  const std::string first = GENERATE("relu", "relu6");
  for (const std::string& format : {std::string("NCHW"), std::string("NHWC")}) {
    for (const int64_t channels : {6, 32}) {  // 6 pads its blocks of channels
      CAPTURE(first, format, channels);
      ResidualBlock block(session.catalog(), DType::Float32, channels, format, first);
      const auto plan = session.compile(block.graph, "block");
      const std::vector<Tensor> feeds = random_feeds(block.graph);
      for (int64_t c = 0; c < channels; ++c) feeds[2].data<float>()[c] *= 8;  // so that the first gamma leads beyond 6

      ResidualBlock parts(session.catalog(), DType::Float64, channels, format, first);
      for (const ValueId inner : parts.inner) parts.graph.tap(inner, 3);
      // Two layers deep, and divided by deviations below 1: some ten times the error of one layer.
      CHECK(distance_from(parts.graph, session, plan, feeds) < 10 * kFloat32);

      for (const std::string& op :
           {"batch_norm_" + first, std::string("batch_norm_add_relu"), "batch_norm_" + first + "_grad",
            std::string("batch_norm_add_relu_grad")})
        CHECK(count(*plan, op) == 1);
      // The two gradients of the square are summed in the pass that takes them.
      for (const char* part : {"batch_norm_train", "batch_norm_train_grad", "relu", "relu_grad", "relu6", "relu6_grad"})
        CHECK(count(*plan, part) == 0);
      CHECK(count(*plan, "add") == 1);  // of the gradients of x
      for (const Step& step : plan->steps) {
        if (step.label.rfind("batch_norm", 0) == 0) CHECK(!step.input_layouts[0].row_major() == (format == "NCHW"));
      }
    }
  }
}

TEST_CASE("a batch norm whose output is read elsewhere keeps its relu apart") {
  Session session = make_session();
  ResidualBlock block(session.catalog(), DType::Float32, 16, "NCHW");
  block.graph.tap(block.inner[1], 9);
  const auto plan = session.compile(block.graph, "block");
  CHECK(count(*plan, "batch_norm_relu") == 0);
  CHECK(count(*plan, "batch_norm_train") == 1);
  CHECK(count(*plan, "batch_norm_train_grad") == 1);
}

namespace {

// conv2d -> batch_norm_infer -> relu -> conv2d -> batch_norm_infer -> + x -> relu over variables: a residual block that
// predicts, with relu or relu6.
struct PredictingBlock {
  Graph graph;
  std::vector<std::pair<std::string, TensorType>> variables;
  std::vector<ValueId> inner;

  PredictingBlock(const Catalog& catalog, DType dtype, int64_t channels, const std::string& format,
                  const std::string& algorithm, const std::string& activation)
      : graph(catalog) {
    const bool last = format == "NHWC";
    const Attrs attrs = {{"padding", std::string("SAME")}, {"data_format", format}, {"algorithm", algorithm}};
    const Shape weights = last ? Shape{channels, 3, 3, channels} : Shape{channels, channels, 3, 3};
    const auto variable = [&](const std::string& name, const Shape& shape) {
      variables.push_back({name, {dtype, shape}});
      return graph.variable(name, {dtype, shape});
    };
    const ValueId x = graph.feed("x", {dtype, last ? Shape{3, 7, 9, channels} : Shape{3, channels, 7, 9}});
    ValueId value = x;
    for (int i = 0; i < 2; ++i) {
      value = graph.append("conv2d", {value, variable(text("filter", i), weights)}, attrs, "conv")[0];
      inner.push_back(value);
      std::vector<ValueId> inputs{value};
      for (const char* name : {"gamma", "beta", "mean", "variance"})
        inputs.push_back(variable(text(name, i), {channels}));
      value = graph.append("batch_norm_infer", inputs, {{"axis", int64_t{last ? 3 : 1}}}, "norm")[0];
      inner.push_back(value);
      if (i == 1) {
        value = graph.append("add", {x, value}, {}, "sum")[0];
        inner.push_back(value);
      }
      value = graph.append(activation, {value}, {}, activation)[0];
    }
    graph.tap(value, 1);
  }

  // Writes what drawing with the seed gives; variances are positive, and shifts lead beyond 6.
  void write(Session& session, uint32_t seed) const {
    for (const auto& [name, type] : variables) {
      const double high = name[0] == 'b' ? 8 : 1, low = name[0] == 'v' ? 0.5 : -high;
      const Tensor drawn = random_values({DType::Float32, type.shape}, seed++, low, high);
      session.write(name, type.dtype == DType::Float64 ? as_double({drawn})[0] : drawn);
    }
  }
};

}  // namespace

TEST_CASE("a batch norm is folded into a filter that is cast to its dtype") {
  Session session = make_session();
  Graph graph(session.catalog());
  const ValueId x = graph.feed("x", {DType::Float32, {2, 3, 7, 9}});
  const ValueId stored = graph.variable("filter", {DType::Float64, {8, 3, 3, 3}});
  const ValueId filter = graph.append("cast", {stored}, {{"dtype", DType::Float32}}, "cast")[0];
  std::vector<ValueId> inputs{graph.append("conv2d", {x, filter}, {}, "conv")[0]};
  for (const char* name : {"gamma", "beta", "mean", "variance"})
    inputs.push_back(graph.variable(name, {DType::Float32, {8}}));
  graph.tap(graph.append("batch_norm_infer", inputs, {}, "norm")[0], 1);
  CHECK(count(*session.compile(graph, "predict"), "fold_batch_norm") == 1);
}

TEST_CASE("batch norms of a network that predicts are folded into filters, which follow their variables") {
  const std::string activation = GENERATE("relu", "relu6");
  for (const std::string& format : {std::string("NCHW"), std::string("NHWC")}) {
    for (const std::string& algorithm : {std::string("winograd"), std::string("direct")}) {
      for (const int64_t channels : {6, 32}) {
        CAPTURE(activation, format, algorithm, channels);
        Session session = make_session(), exact = make_session();
        PredictingBlock block(session.catalog(), DType::Float32, channels, format, algorithm, activation),
            parts(exact.catalog(), DType::Float64, channels, format, "direct", activation);
        for (const ValueId inner : parts.inner) parts.graph.tap(inner, 3);
        const auto plan = session.compile(block.graph, "block"), plan_of_parts = exact.compile(parts.graph, "parts");
        CHECK(count(*plan, "fold_batch_norm") == 2);
        for (const char* part : {"conv2d", "batch_norm_infer"}) CHECK(count(*plan, part) == 0);
        const bool sums = count(*plan, "conv2d_bias_add") == 1;
        CHECK(sums == (algorithm == "winograd" && (format == "NCHW" || channels == 32)));
        // Where the convolution takes no sum, the sum and its activation are a chain.
        CHECK(count(*plan, activation) + count(*plan, "element_chain") == (sums ? 0 : 1));

        const std::vector<Tensor> feeds = random_feeds(block.graph);
        for (const uint32_t seed : {20, 40}) {  // the second time the filters are already folded
          block.write(session, seed);
          parts.write(exact, seed);
          for (int repeat = 0; repeat < 2; ++repeat) {
            const std::vector<Tensor> values = run(session, plan, feeds),
                                      expected = run(exact, plan_of_parts, as_double(feeds));
            CHECK(distance(values[0], expected[0]) < 4e-5);  // as conv2d says of Winograd's algorithm, twice
          }
        }
      }
    }
  }
}

TEST_CASE("what lies element by element between convolutions keeps a layout whose blocks are padded") {
  Session session = make_session();
  const auto make = [&](DType dtype, bool keeps_zero) {
    Graph graph(session.catalog());
    const Attrs same = {{"padding", std::string("SAME")}};
    const ValueId x = graph.feed("x", {dtype, {2, 6, 7, 7}}), filter = graph.feed("filter", {dtype, {6, 6, 3, 3}});
    const ValueId first = graph.append("conv2d", {x, filter}, same, "first")[0];
    const ValueId second = graph.append("conv2d", {first, filter}, same, "second")[0];
    const ValueId sum = graph.append("add", {first, second}, {}, "sum")[0];
    const ValueId chained = graph.append(keeps_zero ? "tanh" : "cos", {sum}, {}, "chained")[0];
    graph.tap(graph.append("conv2d", {chained, filter}, same, "third")[0], 1);
    if (dtype == DType::Float64) graph.tap(sum, 2);
    return graph;
  };
  for (const bool keeps_zero : {true, false}) {
    CAPTURE(keeps_zero);
    Graph graph = make(DType::Float32, keeps_zero), parts = make(DType::Float64, keeps_zero);
    const auto plan = session.compile(graph, "padded");
    CHECK(distance_from(parts, session, plan, random_feeds(graph)) < 10 * kFloat32);

    CHECK(gives_rows(*plan, "element_chain") == !keeps_zero);
  }
}

TEST_CASE("a mean over the places of an image takes its channels in blocks") {
  Session session = make_session();
  const std::string op = GENERATE("reduce_mean", "reduce_max", "reduce_std");
  const Ints axes = GENERATE(Ints{2, 3}, Ints{0, 2, 3}, Ints{1, 2, 3}, Ints{3});
  for (const int64_t filters : {6, 32}) {  // 6 pads its blocks of channels
    CAPTURE(op, axes, filters);
    const auto make = [&](DType dtype) {
      Graph graph(session.catalog());
      const ValueId x = graph.feed("x", {dtype, {2, 5, 7, 7}});
      const ValueId filter = graph.feed("filter", {dtype, {filters, 5, 3, 3}});
      const ValueId conv = graph.append("conv2d", {x, filter}, {}, "conv")[0];
      graph.tap(graph.append(op, {conv}, {{"axis", axes}}, "pooled")[0], 1);
      return graph;
    };
    Graph graph = make(DType::Float32), exact = make(DType::Float64);
    const auto plan = session.compile(graph, "pooled");
    CHECK(distance_from(exact, session, plan, random_feeds(graph)) < kFloat32);
    const bool in_blocks = filters == 32 && axes != Ints{1, 2, 3} && axes != Ints{3};
    CHECK(plan->steps.back().input_layouts[0].row_major() == !in_blocks);
  }
}

TEST_CASE("what has an element for each channel goes beside an image in blocks of channels") {
  Session session = make_session();
  const Shape beside = GENERATE(Shape{2, 32, 1, 1}, Shape{1, 32, 1, 1}, Shape{32, 1, 1}, Shape{2, 1, 1, 1});
  const bool first = GENERATE(true, false);
  CAPTURE(beside, first);
  const auto make = [&](DType dtype) {
    Graph graph(session.catalog());
    const ValueId x = graph.feed("x", {dtype, {2, 5, 12, 13}}), filter = graph.feed("filter", {dtype, {32, 5, 3, 3}});
    const ValueId channels = graph.feed("channels", {dtype, beside});
    const ValueId conv = graph.append("conv2d", {x, filter}, {}, "conv")[0];
    const std::vector<ValueId> operands = first ? std::vector{channels, conv} : std::vector{conv, channels};
    graph.tap(graph.append("subtract", operands, {}, "difference")[0], 1);
    return graph;
  };
  Graph graph = make(DType::Float32), exact = make(DType::Float64);
  const auto plan = session.compile(graph, "beside");
  CHECK(distance_from(exact, session, plan, random_feeds(graph)) < kFloat32);

  CHECK(gives_rows(*plan, "subtract") == (beside == Shape{2, 1, 1, 1}));
}

TEST_CASE("images are joined and cut along their channels in blocks, where no block is cut") {
  Session session = make_session();
  const int64_t filters = GENERATE(32, 16, 4);  // 4 pads its blocks, which have 8 channels or 16
  const int64_t begin = GENERATE(16, 4);
  CAPTURE(filters, begin);
  const auto make = [&](DType dtype) {
    Graph graph(session.catalog());
    const ValueId x = graph.feed("x", {dtype, {2, 5, 6, 7}}), y = graph.feed("y", {dtype, {2, 16, 4, 5}});
    const ValueId filter = graph.feed("filter", {dtype, {filters, 5, 3, 3}});
    const ValueId conv = graph.append("conv2d", {x, filter}, {}, "conv")[0];
    const ValueId joined = graph.append("concat", {y, conv}, {{"axis", int64_t{-3}}}, "joined")[0];
    const Attrs part = {{"begin", Ints{0, begin}}, {"size", Ints{-1, filters == 4 ? 4 : 16}}};
    graph.tap(graph.append("slice", {joined}, part, "cut")[0], 1);
    return graph;
  };
  Graph graph = make(DType::Float32), exact = make(DType::Float64);
  const auto plan = session.compile(graph, "joined");
  CHECK(distance_from(exact, session, plan, random_feeds(graph)) < kFloat32);

  CHECK(gives_rows(*plan, "concat") == (filters == 4));
  CHECK(gives_rows(*plan, "slice") == (filters == 4 || begin == 4));
}
