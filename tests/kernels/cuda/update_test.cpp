// Updates of many variables at once, which is one launch of as many as its table holds, and of none after a fault.
#include <cmath>

#include <catch2/catch.hpp>

#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

const TensorType kRate{DType::Float32, {}}, kFactor = kRate, kStep{DType::Int64, {}};

// Inputs of an update: each variable with so many companions of its type, then what comes last.
std::vector<TensorType> groups(const std::vector<Shape>& variables, DType dtype, int tensors,
                               const std::vector<TensorType>& rest) {
  std::vector<TensorType> inputs;
  for (const Shape& shape : variables) {
    inputs.insert(inputs.end(), static_cast<size_t>(tensors), {dtype, shape});
    inputs.insert(inputs.end(), rest.begin(), rest.end());
  }
  return inputs;
}

}  // namespace

TEST_CASE("the variables of a network are updated together") {
  Bench bench;
  const std::vector<Shape> lenet = {{32, 1, 5, 5}, {32}, {64, 32, 5, 5}, {64}, {196, 512}, {512}, {512, 10}, {10}};
  bench.check("sgd_update", groups(lenet, DType::Float32, 2, {kRate, kFactor}), {{"gradient_scale", 0.01}});
  bench.check("momentum_update", groups(lenet, DType::Float32, 3, {kRate, kFactor}), {});
  bench.check("momentum_update", groups(lenet, DType::Float32, 3, {kRate, kFactor}), {{"nesterov", true}});
  bench.check("adam_update", groups(lenet, DType::Float32, 4, {kRate, kStep, kFactor}), {{"weight_decay", 0.01}});
}

TEST_CASE("more variables than a table has rows, some without elements, are all updated") {
  Bench bench;
  std::vector<Shape> many;
  for (int64_t i = 0; i < 150; ++i) many.push_back({i % 7 == 3 ? 0 : 1 + i * 37 % 53});
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16}) {
    bench.check("sgd_update", groups(many, dtype, 2, {kRate, kFactor}), {});
    bench.check("adam_update", groups(many, dtype, 4, {kRate, kStep, kFactor}), {});
  }
  bench.check("sgd_update", groups({{0}, {3, 0}}, DType::Float32, 2, {kRate, kFactor}), {});
}

TEST_CASE("variables are assigned and gradients prepared at any address") {
  Bench bench;
  for (const DType dtype : {DType::Float32, DType::BFloat16, DType::Float16, DType::Int8, DType::Int64}) {
    bench.check("assign", {{dtype, {4099}}, {dtype, {4099}}}, {});
    bench.check("assign_add", {{dtype, {4099}}, {dtype, {4099}}}, {});
  }
  const TensorType gradient{DType::Float32, {4099}};
  bench.check("prepare_gradient", {gradient, gradient}, {{"l1", 0.1}, {"l2", 0.2}});
  bench.check("prepare_gradient", {gradient, gradient, kFactor}, {{"l1", 0.1}, {"l2", 0.2}});
}

TEST_CASE("the common clip factor of a norm is the CPU's on the card, also where it is no number") {
  const BesideCpu beside;
  for (const float norm : {0.5f, 1.0f, 2.0f, INFINITY, NAN})
    beside.check("clip_factor", {Tensor::of<float>({}, {norm})}, {{"clip_norm", 1.0}});
}

TEST_CASE("a run that has found a fault changes no variable") {
  Bench bench;
  const TensorType x{DType::Float32, {70}};
  const std::vector<std::pair<std::string, std::vector<TensorType>>> updates = {
      {"assign", {x, x}},
      {"assign_add", {x, x}},
      {"sgd_update", {x, x, kRate}},
      {"momentum_update", {x, x, x, kRate}},
      {"adam_update", {x, x, x, x, kRate, kStep}}};
  for (const auto& [name, inputs] : updates) {
    const Trial trial = draw(bench.catalog->at(name), {inputs, {}, 0.1, 0.9}, 1);
    const Launched got = bench.shifted(trial, 0, [&](Stream& stream) { cuda::find_fault(*bench.card, stream); });
    INFO(trial.describe());
    for (size_t i = 0; i < inputs.size(); ++i) CHECK(same(got.inputs[i], trial.inputs[i]));
  }
}
