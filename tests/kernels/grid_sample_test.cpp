// Images at the places of a grid: beside the sum over all pixels that its formula is, that each gradient is the
// transpose of it, and what lies far away or is no number.
#include <catch2/catch.hpp>

#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

const std::vector<std::string> kModes = {"nearest", "bilinear", "bicubic"},
                               kPaddings = {"zeros", "border", "reflection"};

Attrs attributes(const std::string& mode, const std::string& padding, bool align_corners = false) {
  return {{"mode", mode}, {"padding_mode", padding}, {"align_corners", align_corners}};
}

Tensor tensor(const std::vector<double>& values, const Shape& shape) {
  Tensor tensor = Tensor::allocate({DType::Float32, shape});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

// The pixel that stands at place `i` of an axis, in steps from one to the next; -1 for none.
int64_t pixel_at(int64_t i, int64_t size, const std::string& padding, bool align_corners) {
  if (padding == "zeros") return i < 0 || i >= size ? -1 : i;
  if (padding == "border") return std::max<int64_t>(0, std::min(i, size - 1));
  while (i < 0 || i >= size) {
    if (align_corners)
      i = size == 1 ? 0 : i < 0 ? -i : 2 * (size - 1) - i;
    else
      i = i < 0 ? -1 - i : 2 * size - 1 - i;
  }
  return i;
}

double weight(double d, const std::string& mode) {
  d = std::abs(d);
  if (mode == "nearest") return d < 0.5 ? 1 : 0;
  if (mode == "bilinear") return std::max(0.0, 1 - d);
  const double a = -0.75;
  if (d <= 1) return (a + 2) * d * d * d - (a + 3) * d * d + 1;
  return d < 2 ? a * d * d * d - 5 * a * d * d + 8 * a * d - 4 * a : 0;
}

// By the formula: the sum over all places of the plane and a margin around it.
std::vector<double> by_formula(const Tensor& x, const Tensor& grid, const std::string& mode, const std::string& padding,
                               bool align_corners) {
  const Shape& shape = x.shape();
  const int64_t height = shape[2], width = shape[3], places = grid.shape()[1] * grid.shape()[2];
  const std::vector<double> values = numbers(x), at = numbers(grid);
  const auto place = [&](double g, int64_t size) {
    return align_corners ? (g + 1) / 2 * (size - 1) : ((g + 1) * size - 1) / 2;
  };
  std::vector<double> out;
  for (int64_t plane = 0; plane < shape[0] * shape[1]; ++plane) {
    for (int64_t i = 0; i < places; ++i) {
      const double* const g = &at[2 * (plane / shape[1] * places + i)];
      const double column = place(g[0], width), row = place(g[1], height);
      double sum = 0;
      for (int64_t r = -3 * height; r < 4 * height; ++r) {
        for (int64_t c = -3 * width; c < 4 * width; ++c) {
          const double share = weight(row - r, mode) * weight(column - c, mode);
          const int64_t from_row = pixel_at(r, height, padding, align_corners),
                        from_column = pixel_at(c, width, padding, align_corners);
          if (share == 0 || from_row < 0 || from_column < 0) continue;
          sum += share * values[(plane * height + from_row) * width + from_column];
        }
      }
      out.push_back(sum);
    }
  }
  return out;
}

template <class Check>
void for_each_kind(const Check& check) {
  for (const std::string& mode : kModes) {
    for (const std::string& padding : kPaddings) {
      for (const bool align_corners : {false, true}) {
        CAPTURE(mode, padding, align_corners);
        check(mode, padding, align_corners);
      }
    }
  }
}

}  // namespace

TEST_CASE("an image at the places of a grid is the sum that the formula is") {
  Session session = make_session();
  const Tensor grid = random_values({DType::Float64, {2, 5, 67, 2}}, 2, -2.5, 2.5);  // more places than go at once
  for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{2, 1, 1, 7}, Shape{2, 2, 1, 1}}) {
    CAPTURE(shape);
    const Tensor x = random_values({DType::Float64, shape}, 1);
    for_each_kind([&](const std::string& mode, const std::string& padding, bool align_corners) {
      const Tensor got = session.evaluate("grid_sample", {x, grid}, attributes(mode, padding, align_corners))[0];
      const std::vector<double> expected = by_formula(x, grid, mode, padding, align_corners), values = numbers(got);
      REQUIRE(values.size() == expected.size());
      double worst = 0;
      for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(values[i] - expected[i]));
      CHECK(worst < 1e-12);
    });
  }
}

TEST_CASE("the gradient for the image is the transpose of grid_sample, and that for the grid its slope") {
  Session session = make_session();
  const Tensor x = random_values({DType::Float64, {2, 3, 4, 5}}, 1),
               grid = random_values({DType::Float64, {2, 9, 31, 2}}, 2, -2.5, 2.5),
               dy = random_values({DType::Float64, {2, 3, 9, 31}}, 3),
               step = random_values({DType::Float64, grid.shape()}, 4);
  for_each_kind([&](const std::string& mode, const std::string& padding, bool align_corners) {
    const Attrs attrs = attributes(mode, padding, align_corners);
    Attrs with_shape = attrs;
    with_shape.set("shape", x.shape().dims());
    const Tensor out = session.evaluate("grid_sample", {x, grid}, attrs)[0];
    const Tensor dx = session.evaluate("grid_sample_image_grad", {grid, dy}, with_shape)[0];
    CHECK(dot(x, dx) == Approx(dot(out, dy)).epsilon(1e-12));
    const Tensor dgrid = session.evaluate("grid_sample_grid_grad", {x, grid, dy}, attrs)[0];
    // Along a step that is too short for a place to leave its pixels.
    const double length = 1e-7;
    const auto along = [&](double by) {
      Tensor moved = as_double(grid);
      for (int64_t i = 0; i < moved.count(); ++i) moved.data<double>()[i] += by * step.data<double>()[i];
      return dot(session.evaluate("grid_sample", {x, moved}, attrs)[0], dy);
    };
    CHECK(dot(dgrid, step) == Approx((along(length) - along(-length)) / (2 * length)).margin(1e-5));
  });
}

TEST_CASE("the threads of a session change no bit of an image at other places, or of its gradients") {
  const Tensor x = random_values({DType::Float32, {3, 5, 37, 41}}, 1),
               grid = random_values({DType::Float32, {3, 50, 60, 2}}, 2, -1.5, 1.5),
               dy = random_values({DType::Float32, {3, 5, 50, 60}}, 3);
  Session one = make_session(1), two = make_session(2);
  for (const std::string& mode : kModes) {
    const Attrs attrs = attributes(mode, "reflection");
    Attrs with_shape = attrs;
    with_shape.set("shape", x.shape().dims());
    const auto alike = [&](const char* op, const std::vector<Tensor>& inputs, const Attrs& attrs) {
      CHECK(same(one.evaluate(op, inputs, attrs)[0], two.evaluate(op, inputs, attrs)[0]));
    };
    alike("grid_sample", {x, grid}, attrs);
    alike("grid_sample_image_grad", {grid, dy}, with_shape);
    alike("grid_sample_grid_grad", {x, grid, dy}, attrs);
  }
}

TEST_CASE("a place that is far away or no number reads and writes nothing that is not there") {
  Session session = make_session();
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({1, 2, 3, 4}, {1, 1, 2, 2});
  const Tensor grid = tensor({1e30, 0, -inf, -inf, nan, 0, 0, nan, inf, 1e30, -1e30, 1e9}, {1, 1, 6, 2});
  const Tensor dy = tensor({1, 1, 1, 1, 1, 1}, {1, 1, 1, 6});
  for_each_kind([&](const std::string& mode, const std::string& padding, bool align_corners) {
    const Attrs attrs = attributes(mode, padding, align_corners);
    const std::vector<double> out = numbers(session.evaluate("grid_sample", {x, grid}, attrs)[0]);
    CHECK(std::isnan(out[2]));
    CHECK(std::isnan(out[3]));
    if (padding == "zeros") CHECK(std::vector<double>{out[0], out[1], out[4], out[5]} == std::vector<double>(4, 0.0));
    if (padding == "border") {
      CHECK(out[1] == Approx(1));
      CHECK(out[4] == Approx(4));
      CHECK(out[5] == Approx(3));
    }
    if (padding == "reflection") CHECK(std::isfinite(out[0]));  // wherever that is
    Attrs with_shape = attrs;
    with_shape.set("shape", x.shape().dims());
    session.evaluate("grid_sample_image_grad", {grid, dy}, with_shape);
    session.evaluate("grid_sample_grid_grad", {x, grid, dy}, attrs);
  });
}

TEST_CASE("a hole in an image is one in what is made of it, and nowhere else") {
  Session session = make_session();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({1, 2, nan, 4, 5}, {1, 1, 1, 5});
  // The places -1, -0.5, 0, ... 5 of the row, on its only row.
  std::vector<double> places;
  for (int i = -2; i <= 10; ++i) {
    places.push_back((i / 2.0 + 0.5) * 2 / 5 - 1);
    places.push_back(0);
  }
  const Tensor grid = as_double(tensor(places, {1, 1, 13, 2}));
  for (int64_t i = 0; i < grid.count(); ++i) grid.data<double>()[i] = places[i];
  const std::vector<double> out =
      numbers(session.evaluate("grid_sample", {as_double(x), grid}, attributes("bilinear", "zeros"))[0]);
  for (int i = -2; i <= 10; ++i) {
    CAPTURE(i);
    CHECK(std::isnan(out[i + 2]) == (i >= 3 && i <= 5));
  }
}

TEST_CASE("of no channels, no images and no places there is nothing, and of no places a gradient of zeros") {
  Session session = make_session();
  const auto sampled = [&](const Shape& shape, const Shape& of_grid) {
    const Tensor x = Tensor::allocate({DType::Float32, shape}), grid = Tensor::allocate({DType::Float32, of_grid});
    const Tensor out = session.evaluate("grid_sample", {x, grid})[0];
    CHECK(out.shape() == Shape{shape[0], shape[1], of_grid[1], of_grid[2]});
    const Tensor dx = session.evaluate("grid_sample_image_grad", {grid, out}, {{"shape", shape.dims()}})[0];
    CHECK(dx.shape() == shape);
    const Tensor dgrid = session.evaluate("grid_sample_grid_grad", {x, grid, out})[0];
    CHECK(dot(dx, dx) == 0);
    CHECK(dot(dgrid, dgrid) == 0);
  };
  sampled({2, 0, 3, 4}, {2, 2, 2, 2});
  sampled({0, 2, 3, 4}, {0, 2, 2, 2});
  sampled({2, 2, 3, 4}, {2, 0, 2, 2});
}

TEST_CASE("the nearest pixels are taken of any dtype") {
  Session session = make_session();
  const Tensor numbers_of = random_values({DType::Float32, {2, 3, 5, 4}}, 1, 0, 100),
               grid = random_values({DType::Float32, {2, 6, 7, 2}}, 2, -1.5, 1.5);
  for (const std::string& padding : kPaddings) {
    const Attrs attrs = attributes("nearest", padding);
    for (const DType dtype : {DType::Int8, DType::UInt8, DType::Int32, DType::Int64}) {
      const Tensor x = session.evaluate("cast", {numbers_of}, {{"dtype", dtype}})[0];
      const Tensor whole = session.evaluate("cast", {x}, {{"dtype", DType::Float32}})[0];
      const Tensor got = session.evaluate("grid_sample", {x, grid}, attrs)[0];
      CHECK(got.dtype() == dtype);
      CHECK(numbers(got) == numbers(session.evaluate("grid_sample", {whole, grid}, attrs)[0]));
      CHECK(numbers(got) == numbers(session.evaluate("grid_sample", {x, as_double(grid)}, attrs)[0]));
    }
  }
}

TEST_CASE("faults of grid_sample are named") {
  Session session = make_session();
  const auto fault = [&](const TensorType& x, const TensorType& grid, const Attrs& attrs = {}) {
    return message_of([&] { session.evaluate("grid_sample", {Tensor::allocate(x), Tensor::allocate(grid)}, attrs); });
  };
  const TensorType x{DType::Float32, {2, 1, 4, 4}}, grid{DType::Float32, {2, 3, 3, 2}};
  CHECK(fault({DType::Float32, {4, 4}}, grid) == "x is (4, 4), wanted (batch, channels, height, width)");
  CHECK(fault(x, {DType::Float32, {1, 3, 3, 2}}) ==
        "grid is (1, 3, 3, 2), wanted (2, rows, columns, 2) for x (2, 1, 4, 4)");
  CHECK(fault({DType::Float32, {2, 1, 0, 4}}, grid) == "x (2, 1, 0, 4) has no pixels");
  CHECK(fault(x, {DType::Float64, {2, 3, 3, 2}}) == "grid is float64 (2, 3, 3, 2) beside x of float32, wanted float32");
  CHECK(fault({DType::UInt8, {2, 1, 4, 4}}, grid) == "x must be float32 or float64, got uint8");
  CHECK(fault(x, grid, attributes("cubic", "zeros")) ==
        "mode is \"cubic\", wanted \"nearest\", \"bilinear\" or \"bicubic\"");
  CHECK(fault(x, grid, attributes("nearest", "edge")) ==
        "padding_mode is \"edge\", wanted \"zeros\", \"border\" or \"reflection\"");
}
