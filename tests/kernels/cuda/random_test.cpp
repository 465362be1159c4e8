// Random numbers on the simulated device: the CPU's, to the bit, at sizes and addresses of every kind.
#include <catch2/catch.hpp>

#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

const TensorType kScalar{DType::Int64, {}};

void check_same(Bench& bench, const std::string& op, const std::vector<TensorType>& inputs, const Attrs& attrs) {
  const Trial trial = draw(bench.catalog->at(op), {inputs, attrs, -1, 1, 1000}, 3);
  const Launched expected = launch(trial, *bench.cpu);
  for (const int64_t shift : {0, 1}) {
    INFO(trial.describe() << ", " << shift << " elements beside an aligned address");
    const Launched got = bench.shifted(trial, shift);
    for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(same(got.outputs[i], expected.outputs[i]));
  }
}

}  // namespace

TEST_CASE("every device draws the same numbers") {
  Bench bench;
  for (const int64_t count : {1, 2, 3, 255, 70001}) {
    const Attrs of_shape{{"shape", Ints{count}}, {"key", std::string("w")}};
    for (const char* op : {"random_uniform", "random_normal", "truncated_normal"}) {
      for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
        Attrs attrs = of_shape;
        attrs.set("dtype", dtype);
        check_same(bench, op, {kScalar, kScalar}, attrs);
      }
    }
    for (const DType dtype : {DType::Int8, DType::Int32, DType::Int64}) {
      Attrs attrs = of_shape;
      attrs.set("dtype", dtype);
      attrs.set("low", int64_t{-5});
      attrs.set("high", int64_t{100});
      check_same(bench, "random_int", {kScalar, kScalar}, attrs);
    }
    check_same(bench, "random_mask", {kScalar, kScalar}, of_shape);
    const Attrs key{{"key", std::string("w")}};
    for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
      const TensorType x{dtype, {count}};
      check_same(bench, "dropout", {x, kScalar, kScalar}, key);
      check_same(bench, "dropout_grad", {x, {DType::Int8, {count}}}, {});
      check_same(bench, "random_bernoulli", {x, kScalar, kScalar}, key);
      check_same(bench, "random_mask_like", {x, kScalar, kScalar}, key);
    }
  }
}

TEST_CASE("uniform numbers stay below their upper end") {
  Bench bench;
  // Neighbours of each other in float32, so that every second draw is rounded up to the end.
  const Attrs attrs{{"shape", Ints{1000}}, {"key", std::string("w")}, {"low", 1.0}, {"high", 1.0 + 0x1p-23}};
  check_same(bench, "random_uniform", {kScalar, kScalar}, attrs);
}

TEST_CASE("schedules have any number of pieces") {
  Bench bench;
  Ints boundaries;
  Floats values{1};
  for (int64_t i = 0; i < 450; ++i) {
    boundaries.push_back(2 * i);
    values.push_back(1.0 / static_cast<double>(i + 2));
  }
  for (const int64_t step : {0, 1, 398, 399, 400, 401, 402, 897, 898, 899, 5000}) {
    Trial trial = draw(bench.catalog->at("schedule_piecewise_constant"),
                       {{kScalar}, {{"boundaries", boundaries}, {"values", values}}}, 1);
    *trial.inputs[0].data<int64_t>() = step;
    INFO(step);
    CHECK(same(launch(trial, *bench.card).outputs[0], launch(trial, *bench.cpu).outputs[0]));
  }
}

TEST_CASE("constants and ranges fill values of any size") {
  Bench bench;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::UInt8, DType::Int64}) {
    bench.check("constant", {}, {{"value", 7.0}, {"dtype", dtype}, {"shape", Ints{4099}}});
    bench.check("range", {}, {{"start", 3.0}, {"stop", 100.0}, {"step", 0.25}, {"dtype", dtype}});
    bench.check("ones_like", {{dtype, {31, 0}}}, {});
  }
}
