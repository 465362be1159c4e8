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

TEST_CASE("an axis of another length mixes the places around each point") {
  Session session = make_session();
  const Tensor row = image({0, 10, 40}, {3});
  const auto resampled = [&](const Tensor& x, Attrs attrs, int64_t axis = 0) {
    return numbers(session.evaluate("resample_axis", {x}, with(std::move(attrs), "axis", axis))[0]);
  };
  // Points -1/4, 1/4, 3/4 ... of an axis of twice the length, whose border goes on; or is all that there is.
  const Attrs twice = {{"size", 6}, {"slope", 0.5}, {"offset", -0.25}};
  CHECK(resampled(row, twice) == std::vector<double>{0, 2.5, 7.5, 17.5, 32.5, 40});
  CHECK(resampled(row, with(twice, "extends", false)) == std::vector<double>{0, 2.5, 7.5, 17.5, 32.5, 40});
  // The point 1 and what is less than two places away: (0 * 1/2 + 10 + 40 * 1/2) / 2.
  CHECK(resampled(row, {{"size", 1}, {"slope", 0.0}, {"offset", 1.0}, {"spread", 2.0}}) == std::vector<double>{15});
  // Keys' weights half a place away, with a = -1/2: -1/16, 9/16, 9/16, -1/16; the border counts for what is beyond it.
  const Attrs cubic = {
      {"size", 1}, {"slope", 1.0}, {"offset", 0.5}, {"filter", std::string("cubic")}, {"coefficient", -0.5}};
  CHECK(resampled(row, cubic) == std::vector<double>{(9 * 10 - 40) / 16.0});
  CHECK(resampled(row, with(cubic, "extends", false))[0] == Approx((9 * 10 - 40) / 17.0));
  // Backwards, and from beyond both ends.
  const Attrs back = {{"size", 4}, {"slope", -1.5}, {"offset", 3.0}};
  CHECK(resampled(row, back) == std::vector<double>{40, 25, 0, 0});
  CHECK(resampled(row, with(with(back, "extends", false), "stays_inside", true)) == std::vector<double>{40, 25, 0, 0});
  // Along the other axis, and in rows of any width.
  for (const int64_t width : {1, 2, 3, 4, 5, 4099}) {
    CAPTURE(width);
    const Tensor x = random_values({DType::Float32, {2, 3, width}}, 1);
    const std::vector<double> values = numbers(x), got = resampled(x, twice, 1);
    for (const int64_t j : {int64_t{0}, width - 1}) {
      CHECK(got[(6 + 2) * width + j] == Approx(0.25 * values[3 * width + j] + 0.75 * values[4 * width + j]));
    }
  }
}

TEST_CASE("what has no part in a place does not spoil it") {
  Session session = make_session();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = image({1, 2, nan, 4, 5}, {5});
  for (const char* filter : {"linear", "cubic"}) {
    // Points 0, 0.1, 0.2 ...; those on a place are that place alone.
    const std::vector<double> out = numbers(session.evaluate(
        "resample_axis", {x}, {{"axis", 0}, {"size", 41}, {"slope", 0.1}, {"filter", std::string(filter)}})[0]);
    const int reach = filter == std::string("linear") ? 1 : 2;
    for (int o = 0; o <= 40; ++o) {
      CAPTURE(filter, o);
      const bool is_near = o > 10 * (2 - reach) && o < 10 * (2 + reach);
      CHECK(std::isnan(out[o]) == (is_near && (o % 10 != 0 || o == 20)));
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

TEST_CASE("the gradient of an axis of another length is the transpose of it") {
  Session session = make_session();
  for (const char* filter : {"linear", "cubic"}) {
    for (const bool extends : {true, false}) {
      for (const bool inside : {true, false}) {
        for (const auto& [size, slope, offset, spread] :
             std::vector<std::tuple<int, double, double, double>>{{13, 0.5, -0.3, 1.0},
                                                                  {3, 2.4, 0.7, 2.4},
                                                                  {5, 1.5, -2.0, 1.0},
                                                                  {4, -2.0, 7.5, 2.0},
                                                                  {1, 0.0, 3.3, 7.0}}) {
          CAPTURE(filter, extends, inside, size, slope, offset, spread);
          const Shape shape{3, 7, 2};
          const Attrs attrs = {{"axis", 1},
                               {"size", size},
                               {"slope", slope},
                               {"offset", offset},
                               {"filter", std::string(filter)},
                               {"spread", spread},
                               {"extends", extends},
                               {"stays_inside", inside}};
          const Tensor x = as_double(random_values({DType::Float32, shape}, 1));
          const Tensor out = session.evaluate("resample_axis", {x}, attrs)[0];
          if (std::isnan(dot(out, out))) continue;  // a place that nothing is a part of
          const Tensor dy = as_double(random_values({DType::Float32, out.shape()}, 2));
          const Tensor dx = session.evaluate("resample_axis_grad", {dy}, with(attrs, "shape", shape.dims()))[0];
          CHECK(dot(x, dx) == Approx(dot(out, dy)).epsilon(1e-12));
        }
      }
    }
  }
}

TEST_CASE("an image of no channels costs nothing, however high it is") {
  Session session = make_session();
  const Tensor x =
      Tensor::allocate({DType::Float32, {1, 0, int64_t{1} << 40, 7}});  // a table of its rows fits no memory
  CHECK(session.evaluate("reflection_pad2d", {x}, {{"padding", Ints{0}}})[0].shape() == x.shape());
  CHECK(
      session.evaluate("reflection_pad2d_grad", {x}, {{"padding", Ints{0}}, {"shape", x.shape().dims()}})[0].shape() ==
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
  const auto axis_fault = [&](int64_t size, double offset, double spread, const char* filter) {
    return fault("resample_axis", {{"axis", 2},
                                   {"size", size},
                                   {"slope", 1.0},
                                   {"offset", offset},
                                   {"spread", spread},
                                   {"filter", std::string(filter)}});
  };
  CHECK(axis_fault(0, 0, 1, "linear") == "an axis of 2 places cannot become one of 0; both need one at least");
  CHECK(axis_fault(int64_t{1} << 24, 0, 1, "linear") == "an axis of 2 becomes one of 16777216, wanted less than 2^24");
  CHECK(axis_fault(2, 1e300, 1, "linear") == "the places lie from 1e+300 to 1e+300, which is too far away");
  CHECK(axis_fault(2, 0, 9, "linear") == "spread is 9, wanted 1 to 3 for an axis of 2 places");
  CHECK(axis_fault(2, 0, 1, "area") == "filter is \"area\", wanted \"linear\" or \"cubic\"");
  CHECK(fault("reflection_pad2d", {{"padding", Ints{1, 2}}}) ==
        "padding is {1, 2}, wanted one number or {left, right, top, bottom}");
}
