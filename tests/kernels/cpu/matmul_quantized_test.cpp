// Products with a weight of 8 bits: against the product of the rounded weight in float64, and in plans.
#include "kernels/cpu/matmul_quantized.h"

#include <array>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/cpu/device.h"
#include "values.h"

using namespace moonflow;
using namespace moonflow::testing;

namespace {

// A weight (columns, inner), or (inner, columns), and what it is in 8 bits.
struct Weight {
  Product sizes;
  Tensor values;
  std::vector<char> quantized;

  Weight(const Product& product, Tensor weight) : sizes(product), values(std::move(weight)) {
    const Layout layout = cpu::quantized_layout(sizes);
    CHECK(cpu::is_quantized(layout));
    quantized.resize(layout.bytes, 0x55);
    const auto device = make_cpu_device(2);
    const auto stream = device->make_stream();
    void* const input = values.data();
    void* const output = quantized.data();
    device->reorder(values.type(), Layout{}, layout)(LaunchCall{*stream, &input, &output, nullptr});
  }

  float at(int64_t column, int64_t k) const {
    return values.data<float>()[sizes.transpose_b ? column * sizes.inner + k : k * sizes.columns + column];
  }
  // The nearest multiple of a 127th of the largest of its column.
  double rounded(int64_t column, int64_t k) const {
    double most = 0;
    for (int64_t l = 0; l < sizes.inner; ++l) most = std::max(most, std::abs(double(at(column, l))));
    return most == 0 ? 0 : std::nearbyint(at(column, k) * 127 / most) * most / 127;
  }

  std::vector<float> times(const Tensor& a, int threads, bool backwards = false) const {
    const cpu::ThreadLimit limit(threads);
    std::vector<float> out(sizes.rows * sizes.columns, 7), scratch(cpu::quantized_scratch_bytes(sizes) / 4 + 1);
    cpu::multiply_quantized(sizes, a.data<float>(), quantized.data(), out.data(), scratch.data(), backwards);
    return out;
  }
};

Tensor weight_of(const Product& sizes, uint32_t seed) {
  return random_values(
      {DType::Float32, sizes.transpose_b ? Shape{sizes.columns, sizes.inner} : Shape{sizes.inner, sizes.columns}},
      seed);
}

}  // namespace

TEST_CASE("a product with a weight of 8 bits is that of the rounded weight, the same for any number of threads") {
  for (const bool transpose_b : {false, true}) {
    for (const auto& [rows, columns, inner] :
         {std::array<int64_t, 3>{1, 100, 1000}, {1, 9, 31}, {2, 70, 256}, {3, 41, 513}, {8, 17, 300}, {1, 1, 1}}) {
      CAPTURE(transpose_b, rows, columns, inner);
      const Product sizes{1, rows, columns, inner, false, transpose_b};
      const Weight weight(sizes, weight_of(sizes, 1));
      const Tensor a = random_values({DType::Float32, {rows, inner}}, 2, -3, 3);
      const std::vector<float> out = weight.times(a, 2);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          double sum = 0, bound = 1e-6;
          for (int64_t k = 0; k < inner; ++k) {
            const double x = a.data<float>()[i * inner + k], w = weight.rounded(j, k);
            sum += x * w;
            bound += 3 * std::abs(w) / 32768;  // a is rounded too; its largest is below 3
          }
          CHECK(std::abs(out[i * columns + j] - sum) <= bound);
        }
      }
      CHECK(weight.times(a, 1) == out);
      CHECK(weight.times(a, 2, true) == out);
    }
  }
}

TEST_CASE("a product of whole numbers with a weight of them is exact in 8 bits") {
  const auto whole = [](const Shape& shape, double most, uint32_t seed) {
    Tensor values = random_values({DType::Float32, shape}, seed, -most, most);
    for (int64_t i = 0; i < values.count(); ++i) values.data<float>()[i] = std::round(values.data<float>()[i]);
    return values;
  };
  const Product sizes{1, 3, 50, 700, false, true};
  const Weight weight(sizes, whole({50, 700}, 90, 5));
  const Tensor a = whole({3, 700}, 255, 6);
  const std::vector<float> out = weight.times(a, 2);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 50; ++j) {
      int64_t sum = 0;
      for (int64_t k = 0; k < 700; ++k)
        sum += static_cast<int64_t>(a.data<float>()[i * 700 + k]) * static_cast<int64_t>(weight.at(j, k));
      CHECK(out[i * 50 + j] == static_cast<float>(sum));
    }
  }
}

TEST_CASE("a product with a weight of 8 bits keeps what is not a number, and zeros") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const Product sizes{1, 4, 20, 600, false, true};
  Tensor values = weight_of(sizes, 3), a = random_values({DType::Float32, {4, 600}}, 4);
  a.data<float>()[599] = nan;
  a.data<float>()[600] = -infinity;
  std::fill_n(a.data<float>() + 1200, 600, 0.0f);
  std::fill_n(values.data<float>(), 600, 0.0f);
  values.data<float>()[2 * 600 + 7] = infinity;
  const std::vector<float> out = Weight(sizes, std::move(values)).times(a, 2);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 20; ++j) {
      CAPTURE(i, j);
      const float y = out[i * 20 + j];
      if (i < 2 || j == 2) {
        CHECK(std::isnan(y));
      } else if (i == 2 || j == 0) {
        CHECK(y == 0);
      } else {
        CHECK((std::isfinite(y) && y != 0));
      }
    }
  }
}

TEST_CASE("a product of few rows keeps its weight in 8 bits where the graph says so, and it is large and lasts") {
  const auto steps = [](bool quantizes, int64_t rows, int64_t columns, bool is_fed) {
    Session session = make_session();
    Graph graph(session.catalog());
    graph.quantizes_weights = quantizes;
    const ValueId x = graph.feed("x", {DType::Float32, {rows, 512}});
    const TensorType type{DType::Float32, {columns, 512}};
    const ValueId w = is_fed ? graph.feed("w", type) : graph.variable("w", type);
    graph.tap(graph.append("matmul", {x, w}, {{"transpose_b", true}}, "product")[0], 1);
    const auto plan = session.compile(graph, "job");
    int count = 0;
    for (const Step& step : plan->steps)
      for (const Layout& layout : step.input_layouts) count += cpu::is_quantized(layout);
    return count;
  };
  CHECK(steps(true, 1, 64, false) == 1);
  CHECK(steps(true, 8, 64, false) == 1);
  CHECK(steps(false, 1, 64, false) == 0);
  CHECK(steps(true, 9, 64, false) == 0);  // it waits for its arithmetic
  CHECK(steps(true, 1, 63, false) == 0);  // little is read
  CHECK(steps(true, 1, 64, true) == 0);   // rounding it would be the work
}
