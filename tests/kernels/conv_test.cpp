// Convolution: golden values, and float32 through oneDNN and for real time against packed products in float64.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Tensor count_up(const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.data<float>()[i] = static_cast<float>(i + 1);
  return tensor;
}

Tensor full(const Shape& shape, float value) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  std::fill_n(tensor.data<float>(), tensor.count(), value);
  return tensor;
}

Attrs with(Attrs attrs, const std::string& name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

struct Case {
  std::string name;
  Shape x, filter;
  Attrs attrs;
};

std::vector<Case> sweep() {
  const std::string nhwc = "NHWC", same = "SAME", lower = "SAME_LOWER", upper = "SAME_UPPER";
  std::vector<Case> cases = {
      {"LeNet 1", {5, 1, 28, 28}, {32, 1, 5, 5}, {{"padding", same}}},
      {"LeNet 2", {5, 32, 14, 14}, {64, 32, 5, 5}, {{"padding", same}}},
      {"one place", {1, 16, 3, 3}, {16, 16, 3, 3}, {}},
      {"1x1", {2, 17, 7, 5}, {19, 17, 1, 1}, {}},
      {"explicit", {2, 3, 9, 11}, {8, 3, 3, 4}, {{"pads", Ints{0, 0, 0, 0, 3, 1, 0, 2}}}},
      {"pads wider than the kernel", {1, 3, 5, 5}, {4, 3, 2, 2}, {{"pads", Ints{3, 4}}}},
      {"depthwise", {2, 32, 9, 9}, {32, 1, 3, 3}, {{"groups", int64_t{32}}, {"padding", same}}},
      {"depth multiplier", {2, 3, 9, 9}, {6, 1, 3, 3}, {{"groups", int64_t{3}}}},
      {"groups of 16", {2, 32, 8, 8}, {32, 16, 3, 3}, {{"groups", int64_t{2}}, {"padding", same}}},
      {"odd groups", {2, 9, 8, 8}, {15, 3, 3, 3}, {{"groups", int64_t{3}}, {"strides", Ints{2}}}},
      {"channels last", {2, 9, 8, 32}, {48, 3, 3, 32}, {{"data_format", nhwc}, {"padding", same}}},
      {"channels last, groups", {2, 9, 8, 32}, {16, 3, 3, 16}, {{"data_format", nhwc}, {"groups", int64_t{2}}}},
      {"channels last, depthwise", {2, 9, 8, 35}, {35, 3, 3, 1}, {{"data_format", nhwc}, {"groups", int64_t{35}}}},
      {"channels last, one filter to a group",
       {2, 9, 8, 8},
       {4, 3, 3, 2},
       {{"data_format", nhwc}, {"groups", int64_t{4}}}},
      {"channels last, 1x1", {2, 7, 5, 17}, {19, 1, 1, 17}, {{"data_format", nhwc}}},
      {"deep", {2, 300, 4, 4}, {20, 300, 3, 3}, {{"padding", same}}},
      {"depthwise, far strides", {1, 3, 5, 6}, {3, 1, 1, 1}, {{"groups", int64_t{3}}, {"strides", Ints{1 << 23}}}},
      {"depthwise, stride 2",
       {2, 5, 19, 9},
       {5, 1, 3, 5},
       {{"groups", int64_t{5}}, {"padding", same}, {"strides", Ints{2}}}},
      {"channels last, odd", {2, 9, 8, 3}, {5, 2, 3, 3}, {{"data_format", nhwc}, {"strides", Ints{2, 1}}}},
  };
  for (const std::string& padding : {std::string("VALID"), lower, upper}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t dilation : {1, 2}) {
        for (const Shape& kernel : {Shape{6, 5, 3, 3}, Shape{16, 5, 2, 4}}) {
          cases.push_back({text(padding, " stride ", stride, " dilation ", dilation, " ", kernel),
                           {2, 5, 12, 11},
                           kernel,
                           {{"padding", padding}, {"strides", Ints{stride}}, {"dilations", Ints{dilation}}}});
        }
      }
    }
  }
  return cases;
}

// A sum of n products of values below 1 carries an error of about sqrt(n) roundings of 6e-8; the longest here has 800.
constexpr double kFloat32 = 5e-6;

// Of float32 on the session's device and of float64, which are products of another order.
void check_sweep(Session& session) {
  for (const Case& sample : sweep()) {
    CAPTURE(sample.name);
    const Tensor x = random_values({DType::Float32, sample.x}, 1),
                 filter = random_values({DType::Float32, sample.filter}, 2);
    const Tensor y = session.evaluate("conv2d", {x, filter}, sample.attrs)[0];
    CHECK(distance(y, session.evaluate("conv2d", {as_double(x), as_double(filter)}, sample.attrs)[0]) < kFloat32);

    const Tensor dy = random_values({DType::Float32, y.shape()}, 3);
    const Attrs for_x = with(sample.attrs, "shape", sample.x.dims());
    const Tensor dx = session.evaluate("conv2d_input_grad", {dy, filter}, for_x)[0];
    const Tensor dx64 = session.evaluate("conv2d_input_grad", {as_double(dy), as_double(filter)}, for_x)[0];
    CHECK(distance(dx, dx64) < kFloat32);

    const Attrs for_filter = with(sample.attrs, "shape", sample.filter.dims());
    const std::vector<Tensor> grads = session.evaluate("conv2d_filter_bias_grad", {dy, x}, for_filter);
    const std::vector<Tensor> grads64 =
        session.evaluate("conv2d_filter_bias_grad", {as_double(dy), as_double(x)}, for_filter);
    CHECK(distance(grads[0], grads64[0]) < kFloat32);
    CHECK(distance(grads[1], grads64[1]) < kFloat32);
    CHECK(distance(session.evaluate("conv2d_filter_grad", {dy, x}, for_filter)[0], grads64[0]) < kFloat32);

    for (const std::string activation : {"relu", "relu6"}) {
      const double shift = activation == "relu6" ? 6 : 0;  // to where a relu6 ends
      const Tensor bias = random_values({DType::Float32, {sample.filter[0]}}, 4, shift - 1, shift + 1);
      const Attrs active = with(sample.attrs, "activation", activation);
      // Sums that end at 6 were larger, and so were their roundings.
      CHECK(distance(session.evaluate("conv2d_bias", {x, filter, bias}, active)[0],
                     session.evaluate("conv2d_bias", {as_double(x), as_double(filter), as_double(bias)}, active)[0]) <
            (activation == "relu6" ? 4 * kFloat32 : kFloat32));
    }
  }
}

}  // namespace

TEST_CASE("a 3x3 window of ones over 1..16 gives the sums and the filter gradient of the original") {
  // The filter gradient is example (b) of the original's documentation.
  Session session = make_session();
  const Tensor x = count_up({1, 1, 4, 4}), filter = full({1, 1, 3, 3}, 1);
  const Tensor y = session.evaluate("conv2d", {x, filter})[0];
  CHECK(numbers(y) == std::vector<double>{54, 63, 90, 99});
  const Tensor dfilter =
      session.evaluate("conv2d_filter_grad", {full({1, 1, 2, 2}, 1), x}, {{"shape", Ints{1, 1, 3, 3}}})[0];
  CHECK(numbers(dfilter) == std::vector<double>{14, 18, 22, 30, 34, 38, 46, 50, 54});
  const Tensor dx =
      session.evaluate("conv2d_input_grad", {full({1, 1, 2, 2}, 1), filter}, {{"shape", Ints{1, 1, 4, 4}}})[0];
  CHECK(numbers(dx) == std::vector<double>{1, 2, 2, 1, 2, 4, 4, 2, 2, 4, 4, 2, 1, 2, 2, 1});
}

TEST_CASE("SAME puts an odd pad at the top and left, SAME_UPPER at the bottom and right") {
  Session session = make_session();
  const Tensor x = count_up({1, 1, 2, 2}), filter = full({1, 1, 2, 2}, 1);
  const auto conv = [&](const char* padding) {
    return numbers(session.evaluate("conv2d", {x, filter}, {{"padding", std::string(padding)}})[0]);
  };
  CHECK(conv("SAME") == std::vector<double>{1, 3, 4, 10});
  CHECK(conv("SAME_LOWER") == std::vector<double>{1, 3, 4, 10});
  CHECK(conv("SAME_UPPER") == std::vector<double>{10, 6, 7, 4});
}

TEST_CASE("padding may be pairs for each axis, one number for each axis, or one for each spatial axis") {
  Session session = make_session();
  const Tensor x = count_up({1, 1, 2, 2}), filter = full({1, 1, 2, 2}, 1);
  const auto conv = [&](Ints pads) { return session.evaluate("conv2d", {x, filter}, {{"pads", pads}})[0]; };
  CHECK(numbers(conv({0, 0, 0, 0, 1, 0, 1, 0})) == std::vector<double>{1, 3, 4, 10});
  CHECK(conv({0, 0, 1, 2}).shape() == Shape{1, 1, 3, 5});
  CHECK(conv({1, 2}).shape() == Shape{1, 1, 3, 5});
  CHECK(conv({1}).shape() == Shape{1, 1, 3, 3});
}

TEST_CASE("float32 through oneDNN agrees with packed products in float64") {
  Session session = make_session();
  check_sweep(session);
}

TEST_CASE("float32 on the device for real time agrees with float64") {
  Session session(all_ops(), make_real_time_cpu_device());
  check_sweep(session);
}

TEST_CASE("the gradients are the transposes of the convolution") {
  // It is linear in x and in the filter, so <conv(x, w), dy> = <x, dx> = <w, dw>.
  Session session = make_session();
  for (const Case& sample : sweep()) {
    CAPTURE(sample.name);
    const Tensor x = random_values({DType::Float64, sample.x}, 1),
                 filter = random_values({DType::Float64, sample.filter}, 2);
    const Tensor y = session.evaluate("conv2d", {x, filter}, sample.attrs)[0];
    const Tensor dy = random_values(y.type(), 3);
    const Tensor dx =
        session.evaluate("conv2d_input_grad", {dy, filter}, with(sample.attrs, "shape", sample.x.dims()))[0];
    const Tensor dfilter =
        session.evaluate("conv2d_filter_grad", {dy, x}, with(sample.attrs, "shape", sample.filter.dims()))[0];
    CHECK(dot(x, dx) == Approx(dot(y, dy)).epsilon(1e-10).margin(1e-10));
    CHECK(dot(filter, dfilter) == Approx(dot(y, dy)).epsilon(1e-10).margin(1e-10));
  }
}

TEST_CASE("the filter gradient has the same bits each time") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {20, 32, 14, 14}}, 1),
               dy = random_values({DType::Float32, {20, 64, 14, 14}}, 2);
  const Attrs attrs = {{"padding", std::string("SAME")}, {"shape", Ints{64, 32, 5, 5}}};
  const Tensor first = session.evaluate("conv2d_filter_grad", {dy, x}, attrs)[0];
  for (int i = 0; i < 5; ++i) CHECK(distance(session.evaluate("conv2d_filter_grad", {dy, x}, attrs)[0], first) == 0);
}

TEST_CASE("channels last gives the values of channels first") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {2, 6, 7, 3}}, 1),
               filter = random_values({DType::Float32, {4, 3, 2, 3}}, 2);
  const Attrs first = {{"perm", Ints{0, 3, 1, 2}}}, last = {{"perm", Ints{0, 2, 3, 1}}};
  const Tensor y = session.evaluate("conv2d", {x, filter}, {{"data_format", std::string("NHWC")}})[0];
  const Tensor twin = session.evaluate(
      "conv2d", {session.evaluate("transpose", {x}, first)[0], session.evaluate("transpose", {filter}, first)[0]})[0];
  CHECK(distance(y, session.evaluate("transpose", {twin}, last)[0]) < kFloat32);
}

TEST_CASE("conv1d is conv2d over images of height 1, in all directions") {
  Session session = make_session();
  // Of many channels and few, of each channel with its own filter, narrow and wide.
  for (const auto& [channels, groups, width, taps, stride] : {std::array<int64_t, 5>{5, 1, 20, 4, 2},
                                                              {32, 1, 21, 3, 1},
                                                              {20, 20, 50, 4, 1},
                                                              {20, 20, 50, 31, 1},
                                                              {18, 18, 70, 17, 2}}) {
    for (const char* format : {"NCW", "NWC"}) {
      CAPTURE(channels, groups, width, taps, stride, format);
      const int64_t filters = groups == 1 ? 6 : channels, each = channels / groups;
      const bool last = format == std::string("NWC");
      const auto image = [&](int64_t count, int64_t places) {
        return last ? Shape{3, places, count} : Shape{3, count, places};
      };
      const auto with_height = [&](const Tensor& tensor) {
        std::vector<int64_t> dims = tensor.shape().dims();
        dims.insert(dims.end() - (last ? 2 : 1), 1);
        return tensor.reshaped(Shape(dims));
      };
      const Attrs attrs = {{"padding", std::string("SAME")}, {"groups", groups}};
      Attrs one = attrs, two = attrs;
      one.set("strides", Ints{stride});
      one.set("data_format", std::string(format));
      two.set("strides", Ints{1, stride});
      two.set("data_format", std::string(last ? "NHWC" : "NCHW"));
      const Tensor x = random_values({DType::Float32, image(channels, width)}, 1);
      const Tensor filter =
          random_values({DType::Float32, last ? Shape{filters, taps, each} : Shape{filters, each, taps}}, 2);
      const Tensor y = session.evaluate("conv1d", {x, filter}, one)[0];
      REQUIRE(y.shape() == image(filters, (width + stride - 1) / stride));
      CHECK(distance(with_height(y), session.evaluate("conv2d", {with_height(x), with_height(filter)}, two)[0]) == 0);
      const Tensor dy = random_values(y.type(), 3);
      const auto agrees = [&](const std::string& name, const Tensor& second, const Tensor& like) {
        Attrs narrow = one, wide = two;
        narrow.set("shape", like.shape().dims());
        wide.set("shape", with_height(like).shape().dims());
        const Tensor grad = session.evaluate("conv1d" + name, {dy, second}, narrow)[0];
        const Tensor exact =
            session.evaluate("conv2d" + name, {as_double(with_height(dy)), as_double(with_height(second))}, wide)[0];
        CHECK(distance(with_height(grad), exact) < 2e-5);
      };
      agrees("_input_grad", filter, x);
      agrees("_filter_grad", x, filter);
    }
  }
}

TEST_CASE("faults of a convolution are named") {
  Session session = make_session();
  const auto fault = [&](const Shape& x, const Shape& filter, Attrs attrs = {}) {
    return message_of([&] { session.evaluate("conv2d", {full(x, 1), full(filter, 1)}, attrs); });
  };
  CHECK(fault({1, 3, 4}, {1, 3, 2, 2}) == "x is (1, 3, 4), wanted rank 4: (batch, channels, height, width)");
  CHECK(fault({1, 3, 4, 4}, {8, 4, 3, 3}) ==
        "x (1, 3, 4, 4) has 3 channels in 1 group, filter (8, 4, 3, 3) wants 4 in each");
  CHECK(fault({1, 3, 4, 4}, {8, 3, 5, 3}) ==
        "a window of 5 with dilation 1 covers 5, the padded image has only 4 + 0 + 0");
  CHECK(fault({1, 4, 4, 4}, {8, 2, 1, 1}, {{"groups", int64_t{3}}}) ==
        "groups is 3, which must divide the 4 channels of x and the 8 filters");
  CHECK(fault({1, 1, 4, 4}, {1, 1, 1, 1}, {{"strides", Ints{0}}}) == "strides is {0}, wanted values in [1, 16777216)");
  CHECK(fault({1, 1, 4, 4}, {1, 1, 1, 1}, {{"strides", Ints{1, 1, 1}}}) ==
        "strides is {1, 1, 1}, wanted one number or one each for height and width");
  CHECK(fault({1, 1, 4, 4}, {1, 1, 1, 1}, {{"padding", std::string("FULL")}}) ==
        "padding is \"FULL\", wanted \"VALID\", \"SAME\", \"SAME_LOWER\", \"SAME_UPPER\" or a pair {before, after} for "
        "each "
        "axis");
  CHECK(fault({1, 1, 4, 4}, {1, 1, 1, 1}, {{"pads", Ints{1, 1, 0, 0, 0, 0, 0, 0}}}) ==
        "padding {1, 1, 0, 0, 0, 0, 0, 0} pads the batch or the channels, wanted zeros there in (batch, channels, "
        "height, "
        "width)");
  CHECK(fault({1, 1, 4, 4}, {1, 1, 1, 1}, {{"data_format", std::string("CHWN")}}) ==
        "data_format is \"CHWN\", wanted \"NCHW\" or \"NHWC\"");
}
