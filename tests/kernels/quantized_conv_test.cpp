// Convolutions and products of bytes: exactly the formula, whatever instructions there are, and however images lie.
#include "kernels/quantized_conv.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/blocked.h"
#include "kernels/cpu/image_layouts.h"
#include "oracle.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

using Inputs = QuantizedInputs;

QuantizedConv sizes_of(const Trial& trial) {
  const Tensor &x = trial.inputs[Inputs::kX], &filter = trial.inputs[Inputs::kFilter];
  const bool is_dense = trial.op->name == "quantized_dense";
  return (is_dense ? quantized_dense_of : quantized_conv_of)(trial.attrs, x.type(), filter.shape());
}

// The formula, its sums in 64 bits.
std::vector<double> by_formula(const Trial& trial) {
  const Tensor &x = trial.inputs[Inputs::kX], &filter = trial.inputs[Inputs::kFilter];
  const Tensor &scale = trial.inputs[Inputs::kScale], &bias = trial.inputs[Inputs::kBias];
  const Tensor &zero = trial.inputs[Inputs::kZero], &filter_zero = trial.inputs[Inputs::kFilterZero];
  const QuantizedConv sizes = sizes_of(trial);
  const Conv& conv = sizes.conv;
  const int64_t of_x = zero ? static_cast<int64_t>(element(zero, 0)) : sizes.zero_point;
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
          const int64_t of_filter = filter_zero ? static_cast<int64_t>(element(filter_zero, f)) : 0;
          int64_t sum = 0;
          for (int64_t c = 0; c < conv.channels_per_group(); ++c) {
            const int64_t channel = f / conv.filters_per_group() * conv.channels_per_group() + c;
            for (int64_t i = 0; i < down.size; ++i) {
              for (int64_t j = 0; j < across.size; ++j) {
                const int64_t row = down.start(y) + i * down.dilation,
                              place = across.start(column) + j * across.dilation;
                if (row < 0 || row >= down.in || place < 0 || place >= across.in) continue;
                sum += (at(x, conv.image, n, channel, row, place) - of_x) *
                       (at(filter, conv.filter_size(), f, c, i, j) - of_filter);
              }
            }
          }
          const int64_t to = conv.format.channels_last
                                 ? ((n * conv.out.height + y) * conv.out.width + column) * conv.filters() + f
                                 : ((n * conv.filters() + f) * conv.out.height + y) * conv.out.width + column;
          out[to] = static_cast<double>(sum);
          if (sizes.gives_sums()) continue;
          out[to] *= element(scale, scale.count() > 1 ? f : 0);
          if (bias) out[to] += element(bias, f);
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
  const OpDef &op = catalog->at("quantized_conv2d"), &dense = catalog->at("quantized_dense");
  std::shared_ptr<Device> device = make_cpu_device(2);

  void check(const Trial& trial, const Layouts& layouts) const {
    INFO(trial.describe());
    const Launched got = launch(trial, *device, nullptr, layouts);
    CHECK(got.damage == "");
    const std::vector<double> expected = by_formula(trial);
    double largest = 0;
    // A sum is rounded once, then its product, then that with the bias. No drawn number is so near to a half that it
    // would become another byte. Sums alone are not rounded at all.
    const double most = sizes_of(trial).gives_sums() ? 0 : 4e-7;
    for (size_t i = 0; i < expected.size(); ++i)
      largest =
          std::max(largest, std::abs(element(got.outputs[0], i) - expected[i]) / std::max(1.0, std::abs(expected[i])));
    CHECK(largest <= most);
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

TEST_CASE("a product of bytes is the formula, whatever its sizes, its zero points and their places") {
  const Bench bench;
  unsigned seed = 0;
  for (const Example& example : bench.dense.examples) bench.check(draw(bench.dense, example, ++seed), {});
  for (const int64_t rows : {1, 2, 5, 17, 33, 70, 300}) {
    for (const int64_t in : {1, 6, 64, 100, 192}) {
      const TensorType x{rows % 2 ? DType::UInt8 : DType::Int8, {rows, in}}, zero{x.dtype, {}};
      for (const int64_t units : {1, 16, 50}) {
        const TensorType weight{DType::Int8, {units, in}}, of_each{DType::Float32, {units}};
        const Example example{{x, weight, of_each, of_each, zero, {DType::Int8, {units}}}, {}, -1, 1, 256};
        Trial trial = draw(bench.dense, example, ++seed);
        bench.check(trial, {});
        bench.check(trial, layouts_of(trial, *bench.device, [](const TensorType&) { return Layout{}; }));
        trial.inputs[Inputs::kScale] = trial.inputs[Inputs::kBias] = {};
        trial.attrs.set("dtype", DType::Int32);
        bench.check(trial, {});
      }
    }
  }
}

TEST_CASE("an image of windows that are single places is convolved as a row, whatever its sizes") {
  const Bench bench;
  unsigned seed = 0;
  for (const int64_t size : {1, 3, 7}) {
    for (const int64_t channels : {12, 64}) {
      const Example example{{{DType::UInt8, {3, channels, size, size}},
                             {DType::Int8, {33, channels, 1, 1}},
                             {DType::Float32, {33}},
                             {DType::Float32, {33}},
                             {DType::UInt8, {}},
                             {DType::Int8, {33}}},
                            {},
                            -1,
                            1,
                            256};
      bench.check_in_all_layouts(draw(bench.op, example, ++seed));
    }
  }
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
  CHECK_THROWS_WITH(draw(bench.op, example, 1).infer(), Catch::Contains("sums, which have neither scale nor bias"));
  example.attrs.set("dtype", DType::Int64);
  CHECK_THROWS_WITH(draw(bench.op, example, 1).infer(), Catch::Contains("wanted float32, uint8, int8 or int32"));
  example.attrs.set("dtype", DType::Int8);
  example.attrs.set("out_zero_point", int64_t{128});
  CHECK_THROWS_WITH(draw(bench.op, example, 1).infer(), Catch::Contains("out_zero_point is 128"));
}

TEST_CASE("a product of bytes refuses sizes that do not meet, and what is said twice or not at all") {
  const Bench bench;
  const auto check = [&](std::vector<TensorType> types, Attrs attrs, const char* text) {
    CHECK_THROWS_WITH(draw(bench.dense, {types, attrs}, 1).infer(), Catch::Contains(text));
  };
  const TensorType x{DType::UInt8, {2, 8}}, weight{DType::Int8, {3, 8}}, scale{DType::Float32, {3}};
  check({x, {DType::Int8, {3, 7}}, scale}, {}, "inner sizes differ: x is (2, 8), weight is (3, 7), so 8 against 7");
  check({x, weight}, {}, "it has no scale, without which dtype is int32");
  check({x, weight, {DType::Float32, {2}}}, {}, "scale is float32 (2), it should be float32 (3)");
  check({x, weight, scale, scale, {DType::Int8, {}}}, {}, "zero is int8 (), it should be uint8 ()");
  check({x, weight, scale, scale, {DType::UInt8, {}}}, {{"zero_point", int64_t{1}}}, "a zero and a zero_point");
  const TensorType many{DType::UInt8, {1, 40000}}, factors{DType::Int8, {3, 40000}}, zeros{DType::Int8, {3}};
  check({many, factors, scale, scale, {DType::UInt8, {}}, zeros}, {}, "with a zero point of weight");
}
