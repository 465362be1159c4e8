// Pooling: golden values, float32 against float64, in rows and in blocks of channels, and where gradients go.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Attrs with(Attrs attrs, const std::string& name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

const std::vector<double> kCountUp = {1, 2, 3, 4, 5, 6, 7, 8, 9};

Tensor image(const std::vector<double>& values, const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

std::vector<std::pair<Shape, Attrs>> sweep() {
  std::vector<std::pair<Shape, Attrs>> cases = {
      {{3, 32, 28, 28}, {{"ksize", Ints{2}}, {"padding", std::string("SAME")}}},
      {{2, 3, 7, 9}, {{"ksize", Ints{3}}, {"strides", Ints{2}}, {"pads", Ints{0, 0, 0, 0, 2, 1, 0, 2}}}},
      {{2, 5, 6, 20}, {{"ksize", Ints{2}}, {"data_format", std::string("NHWC")}}},
      {{2, 6, 6, 27}, {{"ksize", Ints{3, 2}}, {"strides", Ints{1}}, {"data_format", std::string("NHWC")}}},
  };
  for (const char* padding : {"VALID", "SAME_LOWER", "SAME_UPPER"}) {
    for (const Ints& size : {Ints{2}, Ints{3}, Ints{2, 3}, Ints{5, 1}}) {
      for (const int64_t stride : {1, 2, 3, 4}) {
        for (const bool ceil_mode : {false, true}) {
          cases.push_back({{2, 3, 11, 10},
                           {{"ksize", size},
                            {"strides", Ints{stride}},
                            {"padding", std::string(padding)},
                            {"ceil_mode", ceil_mode}}});
        }
      }
    }
  }
  return cases;
}

}  // namespace

TEST_CASE("SAME pads at the top and left, and an average leaves padding out") {
  Session session = make_session();
  const Tensor x = image(kCountUp, {1, 1, 3, 3});
  const auto pool = [&](const char* op, const char* padding) {
    return numbers(session.evaluate(op, {x}, {{"ksize", Ints{2}}, {"padding", std::string(padding)}})[0]);
  };
  CHECK(pool("max_pool2d", "SAME") == std::vector<double>{1, 3, 7, 9});
  CHECK(pool("max_pool2d", "SAME_UPPER") == std::vector<double>{5, 6, 8, 9});
  CHECK(pool("avg_pool2d", "SAME") == std::vector<double>{1, 2.5, 5.5, 7});
  CHECK(pool("avg_pool2d", "SAME_UPPER") == std::vector<double>{3, 4.5, 7.5, 9});
  CHECK(pool("avg_pool2d", "VALID") == std::vector<double>{3});
}

TEST_CASE("ceil_mode takes the last window that sticks out") {
  Session session = make_session();
  const Tensor x = image(kCountUp, {1, 1, 3, 3});
  const Attrs attrs = {{"ksize", Ints{2}}, {"ceil_mode", true}};
  CHECK(numbers(session.evaluate("max_pool2d", {x}, attrs)[0]) == std::vector<double>{5, 6, 8, 9});
  CHECK(numbers(session.evaluate("avg_pool2d", {x}, attrs)[0]) == std::vector<double>{3, 4.5, 7.5, 9});
}

TEST_CASE("a window of -inf has that maximum, one of NaN has NaN, and beside a number NaN does not count") {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values = {-kInf, -kInf, kNaN, kNaN, -kInf, -kInf, kNaN, kNaN,
                                      kNaN,  -kInf, 1,    kNaN, -kInf, kNaN,  kNaN, 2};
  const auto check = [&](const Tensor& most) {
    const std::vector<double> found = numbers(most);
    const std::vector<double> wanted = {-kInf, kNaN, -kInf, 2};
    const size_t repeats =
        found.size() / wanted.size();  // of each, or of all, by where the channels are: all are alike
    const bool last = most.shape()[1] == 2;
    for (size_t i = 0; i < found.size(); ++i) {
      const double one = wanted[last ? i / repeats : i % wanted.size()];
      CHECK((found[i] == one || (std::isnan(found[i]) && std::isnan(one))));
    }
  };
  Session session = make_session();
  for (const int64_t channels : {1, 16}) {
    for (const bool last : {false, true}) {
      CAPTURE(channels, last);
      const Attrs format = {{"data_format", std::string(last ? "NHWC" : "NCHW")}};
      const Shape shape = last ? Shape{1, 4, 4, channels} : Shape{1, channels, 4, 4};
      Tensor x = Tensor::allocate({DType::Float32, shape});
      for (int64_t i = 0; i < x.count(); ++i)
        x.data<float>()[i] = static_cast<float>(values[static_cast<size_t>(last ? i / channels : i % 16)]);
      check(session.evaluate("max_pool2d", {x}, with(format, "ksize", Ints{2}))[0]);
      check(session.evaluate("max_pool2d", {as_double(x)}, with(format, "ksize", Ints{2}))[0]);

      // In the form that a convolution gives, here the average of channels that are alike.
      Tensor filter =
          Tensor::allocate({DType::Float32, last ? Shape{channels, 1, 1, channels} : Shape{channels, channels, 1, 1}});
      std::fill_n(filter.data<float>(), filter.count(), 1 / static_cast<float>(channels));
      Graph graph(session.catalog());
      const ValueId image =
          graph.append("conv2d", {graph.feed("x", x.type()), graph.constant(filter, "filter")}, format, "conv")[0];
      graph.tap(graph.append("max_pool2d", {image}, with(format, "ksize", Ints{2}), "pool")[0], 1);
      check(run(session, session.compile(graph, "job"), {x})[0]);
    }
  }
}

TEST_CASE("windows side by side give what they give one by one") {
  Session session = make_session();
  auto cases = sweep();
  // Wider than what is held of an image at a time.
  for (const int64_t stride : {1, 2, 3, 200}) {
    const Attrs attrs = {{"ksize", Ints{3}}, {"strides", Ints{stride}}, {"padding", std::string("SAME")}};
    cases.push_back({{1, 2, 5, 1300}, attrs});
  }
  cases.push_back({{1, 1, 3, 700}, {{"ksize", Ints{1, 700}}}});
  cases.push_back({{1, 1, 3, 700}, {{"ksize", Ints{3, 128}}, {"strides", Ints{1}}}});
  const Attrs to_last = {{"perm", Ints{0, 2, 3, 1}}}, to_first = {{"perm", Ints{0, 3, 1, 2}}};
  for (const auto& [shape, attrs] : cases) {
    if (attrs.find("data_format") || attrs.find("pads")) continue;  // it is of the other form, or in its order
    CAPTURE(shape.str(), str(attrs.at("ksize")));
    // Of few different values, so that windows have equal maxima.
    Tensor x = as_double(random_values({DType::Float64, shape}, 1, -4, 4));
    for (int64_t i = 0; i < x.count(); ++i) x.data<double>()[i] = std::round(x.data<double>()[i]);
    const Tensor x_last = session.evaluate("transpose", {x}, to_last)[0];
    const Attrs last = with(attrs, "data_format", std::string("NHWC"));
    const auto beside = [&](const Tensor& by_rows, const Tensor& one_by_one) {
      return distance(by_rows, session.evaluate("transpose", {one_by_one}, to_first)[0]);
    };
    const Tensor most = session.evaluate("max_pool2d", {x}, attrs)[0];
    CHECK(beside(most, session.evaluate("max_pool2d", {x_last}, last)[0]) == 0);
    CHECK(beside(session.evaluate("avg_pool2d", {x}, attrs)[0], session.evaluate("avg_pool2d", {x_last}, last)[0]) <
          1e-15);
    const Tensor dy = random_values(most.type(), 2), dy_last = session.evaluate("transpose", {dy}, to_last)[0];
    for (const bool relu : {false, true}) {
      CHECK(beside(session.evaluate("max_pool2d_grad", {dy, x}, with(attrs, "relu", relu))[0],
                   session.evaluate("max_pool2d_grad", {dy_last, x_last}, with(last, "relu", relu))[0]) < 1e-14);
    }
  }
}

TEST_CASE("an image in the blocks that a convolution gives is pooled there, for real time as well") {
  const bool for_real_time = GENERATE(false, true);
  Session session(all_ops(), for_real_time ? make_real_time_cpu_device() : make_cpu_device(2));
  const int64_t channels = for_real_time ? 32 : 24;  // what needs no padding, and what leaves half of a block to it
  const Tensor x = random_values({DType::Float32, {2, channels, 13, 12}}, 1),
               filter = random_values({DType::Float32, {channels, channels, 3, 3}}, 2);
  const Attrs same = {{"padding", std::string("SAME")}, {"algorithm", std::string("winograd")}};
  const Tensor image = session.evaluate("conv2d", {x, filter}, same)[0];
  size_t in_blocks = 0;
  for (const auto& [size, stride, padding] : std::vector<std::tuple<Ints, int64_t, const char*>>{
           {{2}, 2, "VALID"}, {{3}, 2, "SAME"}, {{3}, 1, "SAME"}, {{3, 2}, 3, "SAME_LOWER"}, {{13, 12}, 1, "VALID"}}) {
    const Attrs attrs = {{"ksize", size}, {"strides", Ints{stride}}, {"padding", std::string(padding)}};
    CAPTURE(str(size), stride, padding);
    const TensorType out = session.evaluate("max_pool2d", {image}, attrs)[0].type();
    const Tensor dy = random_values(out, 3), square = session.evaluate("square", {image})[0];
    const Attrs for_image = with(attrs, "shape", image.shape().dims());
    Graph graph(session.catalog());
    const ValueId convolved =
        graph.append("conv2d", {graph.feed("x", x.type()), graph.feed("filter", filter.type())}, same, "conv")[0];
    const ValueId squared = graph.append("square", {convolved}, {}, "square")[0], given = graph.feed("dy", dy.type());
    graph.tap(graph.append("max_pool2d", {convolved}, attrs, "max")[0], 1);
    graph.tap(graph.append("avg_pool2d", {convolved}, attrs, "average")[0], 2);
    graph.tap(graph.append("max_pool2d_grad", {given, squared}, attrs, "max_grad")[0], 3);
    const ValueId average = graph.append("avg_pool2d", {squared}, attrs, "another")[0];
    graph.tap(graph.append("avg_pool2d_grad", {average}, for_image, "average_grad")[0], 4);
    const auto plan = session.compile(graph, "job");
    for (const Step& step : plan->steps) {
      in_blocks += step.label.find("pool2d") != std::string::npos && !step.input_layouts.back().row_major();
    }
    const std::vector<Tensor> got = run(session, plan, {x, filter, dy});
    CHECK(distance(got[0], session.evaluate("max_pool2d", {image}, attrs)[0]) < 1e-5);
    CHECK(distance(got[1], session.evaluate("avg_pool2d", {image}, attrs)[0]) < 1e-5);
    CHECK(distance(got[2], session.evaluate("max_pool2d_grad", {dy, square}, attrs)[0]) < 1e-5);
    const Tensor mean = session.evaluate("avg_pool2d", {square}, attrs)[0];
    CHECK(distance(got[3], session.evaluate("avg_pool2d_grad", {mean}, for_image)[0]) < 1e-5);
  }
  CHECK(in_blocks == 25);  // five poolings each
}

TEST_CASE("images of no channels, and no images, are pooled to as many") {
  Session session = make_session();
  for (const Shape& shape : {Shape{2, 4, 4, 0}, Shape{0, 4, 4, 3}}) {
    const Attrs attrs = {{"ksize", Ints{2}}, {"data_format", std::string("NHWC")}};
    const Tensor x = Tensor::allocate({DType::Float32, shape});
    const Tensor out = session.evaluate("max_pool2d", {x}, attrs)[0];
    CHECK(out.shape() == Shape{shape[0], 2, 2, shape[3]});
    CHECK(session.evaluate("avg_pool2d", {x}, attrs)[0].shape() == out.shape());
    CHECK(session.evaluate("max_pool2d_grad", {out, x}, attrs)[0].shape() == shape);
    CHECK(session.evaluate("avg_pool2d_grad", {out}, with(attrs, "shape", shape.dims()))[0].shape() == shape);
  }
}

TEST_CASE("the gradient of max pooling goes to the first of equal maxima") {
  Session session = make_session();
  const Tensor x = image({1, 1, 0, 1, 1, 2, 2, 0, 2}, {1, 1, 3, 3}), dy = image({1, 10, 100, 1000}, {1, 1, 2, 2});
  // Windows of 2x2 in steps of 1: the first holds only ones, the others have a 2 at their own first place.
  CHECK(numbers(session.evaluate("max_pool2d_grad", {dy, x}, {{"ksize", Ints{2}}, {"strides", Ints{1}}})[0]) ==
        std::vector<double>{1, 0, 0, 0, 0, 1010, 100, 0, 0});
}

TEST_CASE("float32 pooling agrees with float64, and its gradients with their definition") {
  Session session = make_session();
  for (const auto& [shape, attrs] : sweep()) {
    CAPTURE(shape.str(), str(attrs.at("ksize")));
    const Tensor x = random_values({DType::Float32, shape}, 1), x64 = as_double(x);
    const Tensor most = session.evaluate("max_pool2d", {x}, attrs)[0];
    CHECK(distance(most, session.evaluate("max_pool2d", {x64}, attrs)[0]) == 0);
    const Tensor mean = session.evaluate("avg_pool2d", {x}, attrs)[0];
    CHECK(distance(mean, session.evaluate("avg_pool2d", {x64}, attrs)[0]) < 1e-6);

    const Tensor dy = random_values(most.type(), 2), dy64 = as_double(dy);
    const Tensor max_grad = session.evaluate("max_pool2d_grad", {dy64, x64}, attrs)[0];
    CHECK(distance(session.evaluate("max_pool2d_grad", {dy, x}, attrs)[0], max_grad) < 1e-6);
    CHECK(dot(x64, max_grad) == Approx(dot(most, dy)).epsilon(1e-10));  // x reaches out only through the maxima
    const Attrs for_x = with(attrs, "shape", shape.dims());
    const Tensor avg_grad = session.evaluate("avg_pool2d_grad", {dy64}, for_x)[0];
    CHECK(distance(session.evaluate("avg_pool2d_grad", {dy}, for_x)[0], avg_grad) < 1e-6);
    CHECK(dot(x64, avg_grad) == Approx(dot(session.evaluate("avg_pool2d", {x64}, attrs)[0], dy64)).epsilon(1e-10));
  }
}

TEST_CASE("2 x 2 windows that tile a channels-last image send each gradient to the first maximum, also after relu") {
  Session session = make_session();
  // Small whole numbers, so that windows have equal maxima, and maxima that relu stops.
  const Tensor x = random_values({DType::Float32, {3, 6, 8, 20}}, 1, -3, 2),
               dy = random_values({DType::Float32, {3, 3, 4, 20}}, 2);
  for (int64_t i = 0; i < x.count(); ++i) x.data<float>()[i] = std::round(x.data<float>()[i]);
  for (const bool relu : {false, true}) {
    const Attrs attrs = {{"ksize", Ints{2}}, {"data_format", std::string("NHWC")}, {"relu", relu}};
    CHECK(distance(session.evaluate("max_pool2d_grad", {dy, x}, attrs)[0],
                   session.evaluate("max_pool2d_grad", {as_double(dy), as_double(x)}, attrs)[0]) == 0);
  }
}

TEST_CASE("the gradient of max pooling may be written over the pooled image") {
  Session session = make_session();
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const bool relu : {false, true}) {
      const Attrs attrs = {{"ksize", Ints{3}}, {"strides", Ints{1}}};
      const Tensor x = random_values({dtype, {2, 16, 6, 6}}, 1), dy = random_values({dtype, {2, 16, 4, 4}}, 2);
      Graph graph(session.catalog());
      const ValueId image = graph.append("negative", {graph.feed("x", x.type())}, {}, "image")[0];
      const ValueId gradient = graph.feed("dy", dy.type());
      const auto pool_grad = graph.append("max_pool2d_grad", {gradient, image}, with(attrs, "relu", relu), "grad");
      graph.tap(pool_grad[0], 1);
      const auto plan = session.compile(graph, "job");
      CHECK(plan->steps.back().inputs[1] == plan->steps.back().outputs[0]);
      const Tensor apart =
          session.evaluate("max_pool2d_grad", {dy, session.evaluate("negative", {x})[0]}, with(attrs, "relu", relu))[0];
      CHECK(distance(run(session, plan, {x, dy})[0], apart) == 0);
    }
  }
}

TEST_CASE("faults of pooling are named") {
  Session session = make_session();
  const Tensor x = image(kCountUp, {1, 1, 3, 3});
  const auto fault = [&](Attrs attrs) { return message_of([&] { session.evaluate("max_pool2d", {x}, attrs); }); };
  CHECK(fault({{"ksize", Ints{4}}}) == "a window of 4 with dilation 1 covers 4, the padded image has only 3 + 0 + 0");
  CHECK(fault({{"ksize", Ints{2}}, {"pads", Ints{2}}}) ==
        "padding of 2 and 2 leaves a window of size 2 without any element of x");
  CHECK(fault({{"ksize", Ints{}}}) == "ksize is {}, wanted one number or one each for height and width");
}
