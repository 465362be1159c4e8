// The own kernels for convolution: Winograd's arithmetic, the edges of images and blocks, the error, and what chooses
// them. With pooling they are in fusion_test.cpp.
#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/winograd.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Attrs with(Attrs attrs, const std::string& name, const char* value) {
  attrs.set(name, std::string(value));
  return attrs;
}
Attrs with_shape(Attrs attrs, const Shape& shape) {
  attrs.set("shape", shape.dims());
  return attrs;
}

// A convolution with everything that is computed from it, in the order out, dx, dfilter, dbias.
struct Case {
  std::string name;
  Shape x, filter;
  Attrs attrs;

  std::vector<Tensor> results(Session& session, const char* algorithm, bool in_double = false) const {
    const Attrs all = with(attrs, "algorithm", algorithm);
    const auto given = [&](const Tensor& tensor) { return in_double ? as_double(tensor) : tensor; };
    const Tensor image = given(random_values({DType::Float32, x}, 1)),
                 taps = given(random_values({DType::Float32, filter}, 2)),
                 bias = given(random_values({DType::Float32, {filter[0]}}, 3));
    std::vector<Tensor> results = planned(session, "conv2d_bias", {image, taps, bias}, with(all, "activation", "relu"));
    const Tensor dy = given(random_values({DType::Float32, results[0].shape()}, 4));
    results.push_back(planned(session, "conv2d_input_grad", {dy, taps}, with_shape(all, x))[0]);
    for (const Tensor& grad : planned(session, "conv2d_filter_bias_grad", {dy, image}, with_shape(all, filter))) {
      results.push_back(grad);
    }
    return results;
  }
};

// Whose last tiles have one to four rows and columns.
void add_edges(std::vector<Case>& cases) {
  for (const int64_t taps : {3, 5}) {
    for (const int64_t height : {1, 2, 5, 6}) {
      for (const int64_t width : {2, 3, 6, 8, 9}) {
        cases.push_back({text("edges, ", height, " by ", width),
                         {3, 16, height, width},
                         {32, 16, taps, taps},
                         {{"padding", std::string("SAME")}}});
      }
    }
  }
}

std::vector<Case> cases() {
  const Attrs valid, same = {{"padding", std::string("SAME")}}, nhwc = {{"data_format", std::string("NHWC")}};
  std::vector<Case> cases = {
      {"one tile", {1, 16, 4, 4}, {16, 16, 3, 3}, same},
      {"less than a tile", {1, 16, 5, 3}, {16, 16, 3, 3}, valid},
      {"one place", {2, 16, 5, 5}, {16, 16, 5, 5}, valid},
      {"channels that do not fill blocks", {2, 5, 9, 13}, {37, 5, 3, 3}, same},
      {"the same for 5x5", {2, 21, 13, 9}, {3, 21, 5, 5}, same},
      {"a panel and a half", {3, 32, 8, 8}, {48, 32, 5, 5}, same},
      {"rows longer than a unit of work", {1, 16, 6, 131}, {16, 16, 3, 3}, valid},
      {"the same for 5x5", {2, 16, 7, 70}, {32, 16, 5, 5}, valid},
      {"many images", {33, 16, 7, 7}, {16, 16, 3, 3}, same},
      {"uneven pads", {2, 16, 9, 11}, {16, 16, 3, 3}, {{"pads", Ints{0, 0, 0, 0, 2, 1, 0, 2}}}},
      {"pads wider than the filter", {1, 16, 5, 6}, {16, 16, 3, 3}, {{"pads", Ints{5, 4}}}},
      {"channels last", {2, 9, 10, 32}, {48, 3, 3, 32}, nhwc},
      {"channels last, 5x5", {2, 9, 10, 16}, {32, 5, 5, 16}, with(nhwc, "padding", "SAME")},
      {"LeNet", {20, 32, 14, 14}, {64, 32, 5, 5}, same},
      {"weights beyond the cache", {3, 96, 20, 12}, {80, 96, 3, 3}, same},
      {"a residual block", {4, 64, 16, 16}, {64, 64, 3, 3}, same},
  };
  add_edges(cases);
  return cases;
}

// Whose outputs windows of 2x2 cover.
std::vector<Case> cases_of_few_channels() {
  const Attrs valid, same = {{"padding", std::string("SAME")}}, nhwc = {{"data_format", std::string("NHWC")}};
  return {
      {"LeNet", {5, 1, 28, 28}, {32, 1, 5, 5}, same},
      {"a colour image", {3, 3, 32, 32}, {64, 3, 3, 3}, same},
      {"odd sizes", {2, 3, 9, 13}, {16, 3, 3, 5}, {{"pads", Ints{0, 0, 0, 0, 1, 0, 0, 1}}}},
      {"filters that do not fill blocks", {2, 2, 6, 10}, {21, 2, 3, 3}, same},
      {"a single image", {1, 1, 4, 6}, {48, 1, 7, 7}, same},
      {"one window", {1, 1, 4, 4}, {16, 1, 3, 3}, valid},
      {"taps that are not square", {2, 2, 7, 10}, {16, 2, 2, 5}, valid},
      {"pads wider than the filter", {1, 1, 6, 4}, {16, 1, 3, 3}, {{"pads", Ints{5, 4}}}},
      {"channels last", {2, 8, 10, 3}, {48, 3, 3, 3}, with(nhwc, "padding", "SAME")},
      {"many images", {33, 1, 6, 6}, {16, 1, 3, 3}, same},
  };
}

// The same, with channels enough for a sparse gradient of the filter.
std::vector<Case> cases_of_sparse_gradients() {
  const Attrs valid, same = {{"padding", std::string("SAME")}}, nhwc = {{"data_format", std::string("NHWC")}};
  return {
      {"LeNet", {20, 32, 14, 14}, {64, 32, 5, 5}, same},
      {"channels that do not fill blocks", {3, 21, 6, 8}, {19, 21, 3, 3}, same},
      {"the same for 5x5", {2, 5, 10, 6}, {37, 5, 5, 5}, same},
      {"one window", {1, 16, 4, 4}, {16, 16, 3, 3}, valid},
      {"tiles that do not fill, in both directions", {2, 16, 18, 34}, {16, 16, 3, 3}, same},
      {"the same for 5x5", {2, 16, 34, 18}, {16, 16, 5, 5}, same},
      {"uneven pads", {2, 16, 9, 11}, {16, 16, 3, 3}, {{"pads", Ints{0, 0, 0, 0, 2, 1, 0, 1}}}},
      {"pads wider than the filter", {1, 16, 6, 4}, {16, 16, 3, 3}, {{"pads", Ints{5, 4}}}},
      {"channels last", {2, 8, 10, 32}, {48, 3, 3, 32}, with(nhwc, "padding", "SAME")},
      {"sums beyond the cache", {2, 48, 8, 8}, {80, 48, 5, 5}, same},
      {"more tiles than notes are kept of", {8, 5, 96, 96}, {32, 5, 3, 3}, same},
  };
}

// The output, the gradient of the filter and that of the bias, with pooling. In float64 packed products compute them.
std::vector<Tensor> pooled_results(Session& session, const Case& sample, bool in_double) {
  const Attrs attrs = with(sample.attrs, "algorithm", "direct");
  const auto given = [&](const Tensor& tensor) { return in_double ? as_double(tensor) : tensor; };
  const Tensor image = given(random_values({DType::Float32, sample.x}, 1)),
               taps = given(random_values({DType::Float32, sample.filter}, 2)),
               bias = given(random_values({DType::Float32, {sample.filter[0]}}, 3));
  const std::vector<Tensor> out = planned(session, "conv2d_relu_pool", {image, taps, bias}, attrs);
  const Tensor dy = given(random_values({DType::Float32, out[0].shape()}, 4));
  Tensor places = Tensor::allocate(out[1].type());
  for (int64_t i = 0; i < places.count(); ++i) places.data<uint8_t>()[i] = static_cast<uint8_t>(i * 7 % 5);
  const std::vector<Tensor> grads =
      planned(session, "conv2d_relu_pool_filter_grad", {dy, places, image}, with_shape(attrs, sample.filter));
  return {out[0], grads[0], grads[1], out[1]};
}

template <int kTaps, bool kNarrow>
void check_arithmetic() {
  using W = cpu::Winograd<kTaps>;
  constexpr int outputs = kNarrow ? 2 : 4;
  double taps[kTaps], inputs[W::kPoints], points[W::kPoints], weights[W::kPoints], outs[outputs], dtaps[kTaps];
  for (int i = 0; i < kTaps; ++i) taps[i] = 1.25 * i - 2;
  for (int i = 0; i < W::kPoints; ++i) points[i] = inputs[i] = (i * 5 % 7) - 2.5;
  W::template spread<kNarrow>(points);
  for (int i = 0; i < W::kPoints; ++i) {
    if (kNarrow && !W::is_narrow(i)) points[i] = 0;
  }
  W::evaluate(taps, weights);
  for (int i = 0; i < W::kPoints; ++i) weights[i] *= points[i] * W::scale(i);
  W::template collect<kNarrow>(weights, outs);
  for (int y = 0; y < outputs; ++y) {
    double sum = 0;
    for (int k = 0; k < kTaps; ++k) sum += inputs[y + k] * taps[k];
    CHECK(outs[y] == Approx(sum).epsilon(1e-6));  // its numbers are rounded to float32
  }

  double dy[4] = {1, -2, 0.5, 3};
  for (int y = outputs; y < 4; ++y) dy[y] = 0;
  W::evaluate(dy, weights, outputs - 1);
  for (int i = 0; i < W::kPoints; ++i) weights[i] *= points[i] * W::scale(i);
  W::collect(weights, dtaps);
  for (int k = 0; k < kTaps; ++k) {
    double sum = 0;
    for (int y = 0; y < outputs; ++y) sum += inputs[y + k] * dy[y];
    CHECK(dtaps[k] == Approx(sum).epsilon(1e-6).margin(kNarrow ? 5e-6 : 0));  // its sums cancel more
  }
}

}  // namespace

TEST_CASE("along one axis Winograd's points give the outputs and the filter's gradient") {
  check_arithmetic<3, false>();
  check_arithmetic<3, true>();
  check_arithmetic<5, false>();
  check_arithmetic<5, true>();
}

TEST_CASE("Winograd's convolution agrees with float64 in all directions and at all edges") {
  Session session = make_session();
  for (const Case& sample : cases()) {
    CAPTURE(sample.name, sample.filter);
    const std::vector<Tensor> results = sample.results(session, "winograd"), direct = sample.results(session, "direct"),
                              exact = sample.results(session, "direct", true);
    REQUIRE(results.size() == 4);
    // What the documentation of conv2d promises. `distance` measures by the largest result, or by 1 where that is less.
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(results[i], exact[i]) < 2e-5);
      if (i < 3) CHECK(distance(results[i], direct[i]) > 0);  // so it was another algorithm
    }
  }
}

TEST_CASE("Winograd's convolution with relu6 is that with relu, ended at 6") {
  Session session = make_session();
  bool ended = false;
  for (const Case& sample : cases()) {
    CAPTURE(sample.name, sample.filter);
    const auto active = [&](const char* activation) {
      const std::vector<Tensor> inputs{random_values({DType::Float32, sample.x}, 1),
                                       random_values({DType::Float32, sample.filter}, 2),
                                       random_values({DType::Float32, {sample.filter[0]}}, 3)};
      return numbers(planned(session, "conv2d_bias", inputs,
                             with(with(sample.attrs, "algorithm", "winograd"), "activation", activation))[0]);
    };
    std::vector<double> expected = active("relu");
    for (double& value : expected) {
      ended = ended || value > 6;
      value = std::min(value, 6.0);
    }
    CHECK(active("relu6") == expected);
  }
  CHECK(ended);
}

TEST_CASE("Winograd's convolution has the same bits for any number of threads, but for the filter's gradient") {
  Session one = make_session(1), two = make_session(2), three = make_session(3);
  for (const Case& sample : cases()) {
    CAPTURE(sample.name);
    const std::vector<Tensor> alone = sample.results(one, "winograd");
    for (Session* session : {&two, &three}) {
      const std::vector<Tensor> together = sample.results(*session, "winograd");
      CHECK(distance(together[0], alone[0]) == 0);
      CHECK(distance(together[1], alone[1]) == 0);
      CHECK(distance(together[2], alone[2]) < 4e-5);  // both within 2e-5 of the truth
    }
  }
}

TEST_CASE("pooled sums over few channels agree with float64 at all edges, and have the same bits for any threads") {
  Session one = make_session(1), two = make_session(2), three = make_session(3);
  for (const Case& sample : cases_of_few_channels()) {
    CAPTURE(sample.name);
    const Conv conv = conv_of(complete(one.catalog().at("conv2d"), sample.attrs), sample.x, sample.filter, 2);
    for (const ConvKind kind : {ConvKind::ForwardPool, ConvKind::PoolFilterGrad}) {
      CHECK(cpu::few_channels_fits(conv, kind));
    }
    const std::vector<Tensor> results = pooled_results(one, sample, false), exact = pooled_results(one, sample, true);
    // Sums of at most a few thousand products of values below 1, each rounded at 6e-8.
    for (size_t i = 0; i < 3; ++i) CHECK(distance(results[i], exact[i]) < 5e-6);
    CHECK(distance(results[3], exact[3]) == 0);  // no maximum is so close to another that rounding moves it
    for (Session* session : {&two, &three}) {
      const std::vector<Tensor> together = pooled_results(*session, sample, false);
      CHECK(distance(together[0], results[0]) == 0);
      CHECK(distance(together[1], results[1]) < 5e-6);
    }
  }
}

TEST_CASE("a pooled filter's gradient is summed as it is sparse, with the same bits for any number of threads") {
  Session one = make_session(1), two = make_session(2), three = make_session(3);
  for (const Case& sample : cases_of_sparse_gradients()) {
    CAPTURE(sample.name);
    const Conv conv = conv_of(complete(one.catalog().at("conv2d"), sample.attrs), sample.x, sample.filter, 2);
    CHECK(cpu::sparse_fits(conv, ConvKind::PoolFilterGrad));
    const std::vector<Tensor> results = pooled_results(one, sample, false), exact = pooled_results(one, sample, true);
    // Sums of at most some thousand products of values below 1, each rounded at 6e-8.
    for (size_t i = 1; i < 3; ++i) CHECK(distance(results[i], exact[i]) < 5e-6);
    for (Session* session : {&two, &three}) {
      const std::vector<Tensor> together = pooled_results(*session, sample, false);
      for (size_t i = 1; i < 3; ++i) CHECK(distance(together[i], results[i]) == 0);
    }
  }
}

TEST_CASE(
    "Winograd's convolution is chosen where it is faster, can be forbidden, and is not taken where it does not fit") {
  Session session = make_session();
  const auto same = [&](const Case& sample, const char* a, const char* b) {
    const std::vector<Tensor> left = sample.results(session, a), right = sample.results(session, b);
    return distance(left[0], right[0]) == 0 && distance(left[1], right[1]) == 0 && distance(left[2], right[2]) == 0;
  };
  const Case lenet{"LeNet", {100, 32, 14, 14}, {64, 32, 5, 5}, {{"padding", std::string("SAME")}}};
  CHECK(same(lenet, "auto", "winograd"));
  CHECK_FALSE(same(lenet, "auto", "direct"));
  const Case small{"a single image", {1, 32, 6, 6}, {64, 32, 3, 3}, {}};
  CHECK(same(small, "auto", "direct"));
  for (const Attrs& attrs :
       {Attrs{{"strides", Ints{2}}}, Attrs{{"dilations", Ints{2}}}, Attrs{{"groups", int64_t{2}}}}) {
    const Case other{"", {4, 32, 14, 14}, {64, attrs.find("groups") ? 16 : 32, 3, 3}, attrs};
    CHECK(same(other, "winograd", "direct"));
  }
  CHECK(message_of([&] { lenet.results(session, "fft"); }) ==
        "algorithm is \"fft\", wanted \"auto\", \"direct\", \"winograd\" or \"timed\"");
}
