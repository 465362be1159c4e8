// Bytes of floats whose range a run finds: as the formula has them, for any number of elements and of threads.
#include "kernels/dynamic_quantize.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/image_layouts.h"
#include "oracle.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

struct Bench {
  std::shared_ptr<const Catalog> catalog = all_ops();
  const OpDef& op = catalog->at("dynamic_quantize");
  std::shared_ptr<Device> device = make_cpu_device(2);

  Trial trial(const Shape& shape, float low, float high) const {
    return draw(op, {{{DType::Float32, shape}}, {}, low, high}, 1);
  }
  void check(const Trial& trial, const Layouts& layouts = {}) const {
    INFO(trial.describe());
    const Tensor& x = trial.inputs[0];
    const Launched got = launch(trial, *device, nullptr, layouts);
    CHECK(got.damage == "");
    float least = 0, most = 0;
    for (int64_t i = 0; i < x.count(); ++i) {
      least = std::min(least, static_cast<float>(element(x, i)));
      most = std::max(most, static_cast<float>(element(x, i)));
    }
    const float scale = most == least ? 1.0f : (most - least) / 255;
    const float zero = std::nearbyint(-least / scale);
    CHECK(element(got.outputs[1], 0) == scale);
    CHECK(element(got.outputs[2], 0) == zero);
    int64_t wrong = 0;
    for (int64_t i = 0; i < x.count(); ++i) {
      const float place = std::nearbyint(static_cast<float>(element(x, i)) / scale) + zero;
      wrong += element(got.outputs[0], i) != std::max(0.0f, std::min(255.0f, place));
    }
    CHECK(wrong == 0);
  }
};

}  // namespace

TEST_CASE("floats become bytes of the range that they have, with 0 in it") {
  const Bench bench;
  for (const int64_t count : {0, 1, 15, 64, 1000, 16384, 200001}) {
    for (const auto& [low, high] : {std::pair(-1.0f, 1.0f), std::pair(2.0f, 3.0f), std::pair(-7.0f, -0.25f)})
      bench.check(bench.trial({count}, low, high));
  }
  bench.check(bench.trial({50}, 0, 0));
}

TEST_CASE("floats that are no numbers become some byte") {
  const Bench bench;
  const Trial trial = bench.trial({100}, -1, 1);
  float* const x = static_cast<float*>(trial.inputs[0].data());
  x[3] = NAN, x[40] = INFINITY, x[99] = -INFINITY;
  CHECK(launch(trial, *bench.device).damage == "");
}

TEST_CASE("an image is made bytes as it lies") {
  const Bench bench;
  const Trial trial = bench.trial({2, 20, 3, 4}, -1, 2);
  const ImageFormat format = image_format("NCHW", 2);
  const auto last = [&](const TensorType& type) { return cpu::channels_last(type, format); };
  const Layouts layouts = layouts_of(trial, *bench.device, last);
  CHECK(layouts.inputs[0] == last(trial.inputs[0].type()));
  CHECK(layouts.outputs[0] == last({DType::UInt8, {2, 20, 3, 4}}));
  bench.check(trial, layouts);
  const auto blocks = [&](const TensorType& type) { return cpu::in_blocks(type, {}, format); };
  CHECK(layouts_of(trial, *bench.device, blocks).inputs[0].row_major());
}
