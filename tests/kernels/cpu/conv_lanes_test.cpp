// The own kernels for convolutions of 1x1 and of each channel: against float64 at all edges of images and blocks, for
// any number of threads, and on the device for real time.
#include <catch2/catch.hpp>
#include <limits>

#include "kernels/cpu/conv.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

struct Case {
  std::string name;
  Shape x, filter;
  Attrs attrs;
};

Attrs with(Attrs attrs, const std::string& name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

std::vector<Case> cases() {
  std::vector<Case> cases = {
      {"one place", {1, 16, 1, 1}, {16, 16, 1, 1}, {}},
      {"one place of channels that do not fill blocks", {2, 19, 1, 1}, {21, 19, 1, 1}, {}},
      {"few places", {1, 96, 3, 3}, {160, 96, 1, 1}, {}},
      {"many filters", {1, 24, 12, 12}, {144, 24, 1, 1}, {}},
      {"an odd number of blocks", {1, 144, 12, 12}, {24, 144, 1, 1}, {}},
      {"neither channels nor filters that fill blocks", {2, 37, 5, 7}, {50, 37, 1, 1}, {}},
      {"more places than are taken together", {1, 17, 33, 29}, {24, 17, 1, 1}, {}},
      {"more channels than are summed in one go", {1, 300, 5, 6}, {40, 300, 1, 1}, {}},
      {"many images", {9, 20, 2, 3}, {16, 20, 1, 1}, {}},
  };
  const auto add = [&](const std::string& name, int64_t height, int64_t width, Shape taps, Attrs attrs) {
    for (const int64_t channels : {32, 19}) {
      cases.push_back({text(name, ", ", height, " by ", width),
                       {2, channels, height, width},
                       {channels, 1, taps[0], taps[1]},
                       with(attrs, "groups", channels)});
    }
  };
  const std::string same = "SAME", upper = "SAME_UPPER";
  for (const int64_t height : {1, 2, 3, 8, 13}) {
    for (const int64_t width : {1, 2, 3, 7, 8, 9, 17, 24}) {
      add("each channel", height, width, {3, 3}, {{"padding", same}});
      add("strides", height, width, {3, 3}, {{"padding", same}, {"strides", Ints{2}}});
      add("strides, padding above", height, width, {3, 3}, {{"padding", upper}, {"strides", Ints{2}}});
    }
  }
  for (const int64_t width : {2, 6, 11, 20}) {
    add("two rows of taps and three", 5, width, {2, 3},
        {{"pads", Ints{0, 0, 0, 0, 2, 1, 1, 1}}, {"strides", Ints{3, 1}}});
    add("five rows of taps", 6, width, {5, 3}, {{"padding", same}, {"dilations", Ints{2, 1}}});
    add("padding above and below wider than the filter", 4, width, {3, 3}, {{"pads", Ints{5, 1}}});
  }
  add("dilations", 9, 12, {3, 3}, {{"dilations", Ints{2, 3}}});
  return cases;
}

// The convolution with all that is fused to it.
std::vector<Tensor> results(Session& session, const Case& sample, bool in_double = false) {
  const auto values = [&](const Shape& shape, int seed, double shift = 0) {
    const Tensor drawn = random_values({DType::Float32, shape}, seed, shift - 1, shift + 1);
    return in_double ? as_double(drawn) : drawn;
  };
  const Tensor x = values(sample.x, 1), filter = values(sample.filter, 2);
  std::vector<Tensor> results;
  const auto add = [&](const std::string& op, const std::vector<Tensor>& inputs, const char* activation) {
    results.push_back(planned(session, op, inputs, with(sample.attrs, "activation", std::string(activation)))[0]);
  };
  const Tensor bias = values({sample.filter[0]}, 3);
  add("conv2d_bias", {x, filter, bias}, "none");
  add("conv2d_bias", {x, filter, bias}, "relu");
  add("conv2d_bias", {x, filter, values({sample.filter[0]}, 3, 6)}, "relu6");
  const Tensor addend = values(results[0].shape(), 4);
  add("conv2d_bias_add", {x, filter, bias, addend}, "none");
  add("conv2d_bias_add", {x, filter, bias, addend}, "relu");
  return results;
}

}  // namespace

TEST_CASE("convolutions of 1x1 and of each channel agree with float64, and have the same bits for any threads") {
  Session one = make_session(1), two = make_session(2), three = make_session(3);
  Session real_time(all_ops(), make_real_time_cpu_device());
  for (const Case& sample : cases()) {
    CAPTURE(sample.name, sample.x, sample.filter);
    const Conv conv = conv_of(complete(one.catalog().at("conv2d"), sample.attrs), sample.x, sample.filter, 2);
    for (const ConvKind kind : {ConvKind::ForwardBias, ConvKind::ForwardAdd}) CHECK(cpu::lanes_fit(conv, kind));
    const std::vector<Tensor> alone = results(one, sample), exact = results(one, sample, true);
    for (size_t i = 0; i < alone.size(); ++i) {
      CAPTURE(i);
      // At most 300 products of values below 1, and a bias of up to 7, each rounded at 6e-8.
      CHECK(distance(alone[i], exact[i]) < 5e-6);
    }
    for (Session* session : {&two, &three, &real_time}) {
      const std::vector<Tensor> others = results(*session, sample);
      for (size_t i = 0; i < alone.size(); ++i) CHECK(distance(others[i], alone[i]) == 0);
    }
  }
}

TEST_CASE("a convolution of 1x1 and one of each channel let a NaN through their activations, and no further") {
  Session session = make_session();
  Tensor x = random_values({DType::Float32, {1, 16, 5, 9}}, 1);
  x.data<float>()[2 * 45 + 2 * 9 + 3] = std::numeric_limits<float>::quiet_NaN();  // channel 2, row 2, column 3
  const Tensor bias = random_values({DType::Float32, {16}}, 3);
  const auto nans = [&](const Tensor& filter, Attrs attrs) {
    std::vector<int64_t> places;
    const std::vector<double> y =
        numbers(planned(session, "conv2d_bias", {x, filter, bias}, with(attrs, "activation", std::string("relu6")))[0]);
    for (size_t i = 0; i < y.size(); ++i)
      if (y[i] != y[i]) places.push_back(static_cast<int64_t>(i));
    return places;
  };
  std::vector<int64_t> points, window;
  for (int64_t filter = 0; filter < 16; ++filter) points.push_back(filter * 45 + 2 * 9 + 3);
  for (int64_t row = 1; row < 4; ++row)
    for (int64_t column = 2; column < 5; ++column) window.push_back(2 * 45 + row * 9 + column);
  CHECK(nans(random_values({DType::Float32, {16, 16, 1, 1}}, 2), {}) == points);
  CHECK(nans(random_values({DType::Float32, {16, 1, 3, 3}}, 2),
             {{"groups", int64_t{16}}, {"padding", std::string("SAME")}}) == window);
}

TEST_CASE("a sum behind a convolution of 1x1 is made by it, unless it is watched") {
  Session session = make_session();
  for (const bool watched : {false, true}) {
    Graph graph(session.catalog());
    const ValueId x = graph.feed("x", {DType::Float32, {2, 16, 5, 5}}),
                  filter = graph.feed("filter", {DType::Float32, {16, 16, 1, 1}}),
                  bias = graph.feed("bias", {DType::Float32, {16}});
    const ValueId y = graph.append("conv2d", {x, filter}, {}, "conv")[0];
    const ValueId biased = graph.append("bias_add", {y, bias}, {}, "bias")[0];
    const ValueId sum = graph.append("add", {biased, x}, {}, "sum")[0];
    const ValueId out = graph.append("relu", {sum}, {}, "out")[0];
    graph.tap(out, 1);
    if (watched) graph.tap(biased, 2);
    CHECK(count(*session.compile(graph, "block"), "conv2d_bias_add") == (watched ? 0 : 1));
  }
}
