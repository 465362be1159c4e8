// Resampled images: golden values, what layouts may change, and that each gradient is the transpose of its op.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

Tensor image(const std::vector<double>& values, const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

const Attrs kBilinear = {{"interpolation", std::string("bilinear")}};

Attrs with(Attrs attrs, const std::string& name, AttrValue value) {
  attrs.set(name, std::move(value));
  return attrs;
}

}  // namespace

TEST_CASE("nearest repeats each place, by factors of their own along height and width") {
  Session session = make_session();
  const Tensor x = image({1, 2, 3, 4}, {1, 1, 2, 2});
  CHECK(numbers(session.evaluate("upsample_2d", {x})[0]) ==
        std::vector<double>{1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4});
  const Tensor wide = session.evaluate("upsample_2d", {x}, {{"size", Ints{1, 3}}})[0];
  CHECK(wide.shape() == Shape{1, 1, 2, 6});
  CHECK(numbers(wide) == std::vector<double>{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4});
}

TEST_CASE("bilinear mixes by nearness, with pixels as areas or with corners on corners") {
  Session session = make_session();
  // By hand: output o lies at (o + 1/2) / 2 - 1/2 = -1/4, 1/4, 3/4, 5/4, so the ends are the ends themselves.
  const Tensor row = image({0, 4}, {1, 1, 1, 2});
  CHECK(numbers(session.evaluate("upsample_2d", {row}, with(kBilinear, "size", Ints{1, 2}))[0]) ==
        std::vector<double>{0, 1, 3, 4});
  // o / 3
  const Attrs aligned = with(kBilinear, "align_corners", true);
  const Tensor x = image({0, 3, 6, 9}, {1, 1, 2, 2});
  CHECK(numbers(session.evaluate("upsample_2d", {x}, with(aligned, "size", Ints{1, 2}))[0]) ==
        std::vector<double>{0, 1, 2, 3, 6, 7, 8, 9});
}

TEST_CASE("a reflection leaves out the border itself, and may be as wide as what is inside") {
  Session session = make_session();
  const Tensor x = image({1, 2, 3, 4, 5, 6}, {1, 1, 2, 3});
  const Tensor out = session.evaluate("reflection_pad2d", {x}, {{"padding", Ints{2, 1, 1, 0}}})[0];
  CHECK(out.shape() == Shape{1, 1, 3, 6});
  CHECK(numbers(out) == std::vector<double>{6, 5, 4, 5, 6, 5, 3, 2, 1, 2, 3, 2, 6, 5, 4, 5, 6, 5});
}

TEST_CASE("each gradient is the transpose of its op") {
  Session session = make_session();
  const std::vector<std::pair<std::string, Attrs>> ops = {
      {"upsample_2d", {{"size", Ints{3, 2}}}},
      {"upsample_2d", with(kBilinear, "size", Ints{4, 3})},
      {"upsample_2d", with(with(kBilinear, "size", Ints{2, 7}), "align_corners", true)},
      {"reflection_pad2d", {{"padding", Ints{5, 6, 1, 4}}}},
  };
  for (const auto& [op, attrs] : ops) {
    for (const char* format : {"NCHW", "NHWC"}) {
      CAPTURE(op, str(attrs.begin()->second), format);
      const bool last = std::string(format) == "NHWC";
      const Shape shape = last ? Shape{2, 5, 7, 3} : Shape{2, 3, 5, 7};
      const Attrs all = with(attrs, "data_format", std::string(format));
      const Tensor x = as_double(random_values({DType::Float32, shape}, 1));
      const Tensor out = session.evaluate(op, {x}, all)[0];
      const Tensor dy = as_double(random_values({DType::Float32, out.shape()}, 2));
      const Tensor dx = session.evaluate(op + "_grad", {dy}, with(all, "shape", shape.dims()))[0];
      CHECK(dot(x, dx) == Approx(dot(out, dy)).epsilon(1e-12));
    }
  }
}

TEST_CASE("an image that a convolution leaves in blocks of channels is resampled there") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float32, {2, 16, 6, 6}}, 1),
               filter = random_values({DType::Float32, {32, 16, 3, 3}}, 2);
  const Attrs same = {{"padding", std::string("SAME")}};
  const Tensor convolved = session.evaluate("conv2d", {x, filter}, same)[0];
  for (const Attrs& attrs : {Attrs{}, kBilinear}) {
    Graph graph(session.catalog());
    const ValueId image = graph.feed("x", x.type()), weight = graph.feed("filter", filter.type());
    const ValueId inner = graph.append("conv2d", {image, weight}, same, "conv")[0];
    graph.tap(graph.append("upsample_2d", {inner}, attrs, "larger")[0], 1);
    const auto plan = session.compile(graph, "job");
    bool in_blocks = false;
    for (const Step& step : plan->steps) {
      if (step.label.rfind("upsample_2d", 0) == 0) in_blocks = !step.input_layouts[0].row_major();
    }
    CHECK(in_blocks);
    CHECK(distance(run(session, plan, {x, filter})[0], session.evaluate("upsample_2d", {convolved}, attrs)[0]) < 1e-5);
  }
}

TEST_CASE("an image of no channels costs nothing, however high it is") {
  Session session = make_session();
  const Tensor x = Tensor::allocate({DType::Float32, {1, 0, int64_t{1} << 40, 7}});  // a table of its rows fits no memory
  CHECK(session.evaluate("reflection_pad2d", {x}, {{"padding", Ints{0}}})[0].shape() == x.shape());
  CHECK(session.evaluate("reflection_pad2d_grad", {x}, {{"padding", Ints{0}}, {"shape", x.shape().dims()}})[0].shape() ==
        x.shape());
}

TEST_CASE("faults of resampling are named") {
  Session session = make_session();
  const Tensor x = image({1, 2, 3, 4}, {1, 1, 2, 2});
  const auto fault = [&](const char* op, Attrs attrs) { return message_of([&] { session.evaluate(op, {x}, attrs); }); };
  CHECK(fault("upsample_2d", {{"size", Ints{0}}}) == "size is {0}, wanted values in [1, 16777216)");
  CHECK(fault("upsample_2d", {{"size", Ints{1 << 23}}}) ==
        "an axis of 2 becomes one of 16777216, wanted less than 2^24");
  CHECK(fault("upsample_2d", {{"interpolation", std::string("cubic")}}) ==
        "interpolation is \"cubic\", wanted \"nearest\" or \"bilinear\"");
  CHECK(fault("upsample_2d", {{"align_corners", true}}) == "align_corners is for interpolation \"bilinear\"");
  CHECK(fault("reflection_pad2d", {{"padding", Ints{0, 0, 2, 0}}}) ==
        "padding of 2 and 0 does not fit the height of x, which is 2: a reflection leaves out the border itself, so "
        "wanted values in [0, 2)");
  CHECK(fault("reflection_pad2d", {{"padding", Ints{1, 2}}}) ==
        "padding is {1, 2}, wanted one number or {left, right, top, bottom}");
}
