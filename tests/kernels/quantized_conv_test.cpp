// Convolution of bytes: exactly the formula, whatever instructions there are, and however images lie.
#include "kernels/quantized_conv.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/blocked.h"
#include "kernels/cpu/image_layouts.h"
#include "oracle.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// The formula, its sums in 64 bits.
std::vector<double> by_formula(const Trial& trial) {
  const Tensor &x = trial.inputs[0], &filter = trial.inputs[1];
  const QuantizedConv sizes = quantized_conv_of(trial.attrs, x.type(), filter.shape());
  const Conv& conv = sizes.conv;
  const auto at = [&](const Tensor& image, const ImageSize& size, int64_t n, int64_t c, int64_t i, int64_t j) {
    const bool last = conv.format.channels_last;
    const int64_t place = last ? ((n * size.height + i) * size.width + j) * size.channels + c
                               : ((n * size.channels + c) * size.height + i) * size.width + j;
    return static_cast<int64_t>(element(image, place));
  };
  std::vector<double> out(conv.out.count());
  const Window &down = conv.windows[0], &across = conv.windows[1];
  for (int64_t n = 0; n < conv.out.batch; ++n) {
    for (int64_t f = 0; f < conv.filters(); ++f) {
      for (int64_t y = 0; y < conv.out.height; ++y) {
        for (int64_t column = 0; column < conv.out.width; ++column) {
          int64_t sum = 0;
          for (int64_t c = 0; c < conv.channels_per_group(); ++c) {
            const int64_t channel = f / conv.filters_per_group() * conv.channels_per_group() + c;
            for (int64_t i = 0; i < down.size; ++i) {
              for (int64_t j = 0; j < across.size; ++j) {
                const int64_t row = down.start(y) + i * down.dilation,
                              place = across.start(column) + j * across.dilation;
                if (row < 0 || row >= down.in || place < 0 || place >= across.in) continue;
                sum += (at(x, conv.image, n, channel, row, place) - sizes.zero_point) *
                       at(filter, conv.filter_size(), f, c, i, j);
              }
            }
          }
          const int64_t to = conv.format.channels_last
                                 ? ((n * conv.out.height + y) * conv.out.width + column) * conv.filters() + f
                                 : ((n * conv.filters() + f) * conv.out.height + y) * conv.out.width + column;
          out[to] = static_cast<double>(sum) * element(trial.inputs[2], f);
          if (trial.inputs[3]) out[to] += element(trial.inputs[3], f);
          if (!sizes.gives_bytes()) continue;
          const double zero = static_cast<double>(sizes.out_zero_point), least = sizes.dtype == DType::Int8 ? -128 : 0;
          out[to] = std::max(least, std::min(std::nearbyint(out[to]) + zero, least + 255));
        }
      }
    }
  }
  return out;
}

struct Bench {
  std::shared_ptr<const Catalog> catalog = all_ops();
  const OpDef& op = catalog->at("quantized_conv2d");
  std::shared_ptr<Device> device = make_cpu_device(2);

  void check(const Trial& trial, const Layouts& layouts) const {
    INFO(trial.describe());
    const Launched got = launch(trial, *device, nullptr, layouts);
    CHECK(got.damage == "");
    const std::vector<double> expected = by_formula(trial);
    double largest = 0;
    // A sum is rounded once, then its product, then that with the bias. No drawn number is so near to a half that it
    // would become another byte.
    for (size_t i = 0; i < expected.size(); ++i)
      largest =
          std::max(largest, std::abs(element(got.outputs[0], i) - expected[i]) / std::max(1.0, std::abs(expected[i])));
    CHECK(largest < 4e-7);
  }
  void check_in_all_layouts(const Trial& trial) const {
    const ImageFormat format = image_format(trial.attrs.string("data_format"), 2);
    const auto rows = [](const TensorType&) { return Layout{}; };
    const auto last = [&](const TensorType& type) {
      return type.shape.rank() == 4 ? cpu::channels_last(type, format) : Layout{};
    };
    const auto blocks = [&](const TensorType& type) {
      return type.shape.rank() == 4 ? cpu::in_blocks(type, {}, format) : Layout{};
    };
    check(trial, {});
    check(trial, layouts_of(trial, *device, rows));
    check(trial, layouts_of(trial, *device, last));
    check(trial, layouts_of(trial, *device, blocks));
  }
};

}  // namespace

TEST_CASE("a convolution of bytes is the formula, to the last bit of its sums") {
  const Bench bench;
  unsigned seed = 0;
  for (const Example& example : bench.op.examples) bench.check_in_all_layouts(draw(bench.op, example, ++seed));
}

TEST_CASE("a convolution of bytes takes the greatest there are") {
  const Bench bench;
  const auto fill = [](const Tensor& bytes, int value) {
    std::fill_n(static_cast<uint8_t*>(bytes.data()), bytes.count(), static_cast<uint8_t>(value));
  };
  for (const DType dtype : {DType::UInt8, DType::Int8}) {
    for (const int64_t zero : {dtype == DType::Int8 ? -128 : 0, dtype == DType::Int8 ? 127 : 255}) {
      for (const int x : {0, 127, 128, 255}) {
        for (const int weight : {-128, 127}) {
          const Example example{{{dtype, {1, 64, 3, 20}}, {DType::Int8, {17, 64, 3, 3}}, {DType::Float32, {17}}},
                                {{"padding", std::string("SAME")}, {"zero_point", zero}}};
          const Trial trial = draw(bench.op, example, 1);
          fill(trial.inputs[0], x);
          fill(trial.inputs[1], weight);
          bench.check_in_all_layouts(trial);
        }
      }
    }
  }
}

TEST_CASE("a cast of an image leaves it as it lies, so that bytes are convolved as they were computed") {
  const Bench bench;
  const ImageFormat format = image_format("NCHW", 2);
  const auto last = [&](const TensorType& type) { return cpu::channels_last(type, format); };
  const auto blocks = [&](const TensorType& type) { return cpu::in_blocks(type, {}, format); };
  const auto check = [&](DType from, DType to, const auto& offered) {
    const TensorType x{from, {2, 20, 3, 4}}, out{to, x.shape};
    const Trial trial = draw(bench.catalog->at("cast"), {{x}, {{"dtype", to}}, 0, 255, 256}, 1);
    const Layouts layouts = layouts_of(trial, *bench.device, offered);
    CHECK(layouts.inputs[0] == offered(x));
    CHECK(layouts.outputs[0] == offered(out));
    const Launched got = launch(trial, *bench.device, nullptr, layouts);
    CHECK(got.damage == "");
    CHECK(same(got.outputs[0], launch(trial, *bench.device).outputs[0]));
  };
  for (const auto& [from, to] : {std::pair(DType::Float32, DType::UInt8), std::pair(DType::Int8, DType::Float32)}) {
    check(from, to, last);
    check(from, to, blocks);
  }
}

TEST_CASE("a convolution of bytes refuses what it cannot sum, and a zero point that is no byte") {
  const Bench bench;
  const auto infer_of = [&](DType dtype, int64_t channels, int64_t zero) {
    const Example example{{{dtype, {1, channels, 4, 4}}, {DType::Int8, {1, channels, 4, 4}}, {DType::Float32, {1}}},
                          {{"zero_point", zero}}};
    draw(bench.op, example, 1).infer();
  };
  CHECK_NOTHROW(infer_of(DType::UInt8, 4096, 255));
  CHECK_THROWS_WITH(infer_of(DType::UInt8, 4097, 0), Catch::Contains("65552 terms"));
  CHECK_THROWS_WITH(infer_of(DType::UInt8, 1, 256), Catch::Contains("zero_point is 256"));
  CHECK_THROWS_WITH(infer_of(DType::Int8, 1, 128), Catch::Contains("wanted -128 to 127"));
  CHECK_THROWS_WITH(infer_of(DType::Int32, 1, 0), Catch::Contains("x must be uint8 or int8"));
  Example example = bench.op.examples[0];
  example.attrs.set("dtype", DType::Int32);
  CHECK_THROWS_WITH(draw(bench.op, example, 1).infer(), Catch::Contains("wanted float32, uint8 or int8"));
  example.attrs.set("dtype", DType::Int8);
  example.attrs.set("out_zero_point", int64_t{128});
  CHECK_THROWS_WITH(draw(bench.op, example, 1).infer(), Catch::Contains("out_zero_point is 128"));
}
