// Updates of picked rows on the card: few picks and many of one row, rows longer than a block, and a fault before.
#include <cmath>

#include "beside_cpu.h"
#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// An update of `rows` rows of `columns`, of which `picks` are picked below `below`.
Trial trial_of(const BesideCpu& beside, const char* op, DType dtype, int64_t rows, const Shape& columns, int64_t picks,
               int64_t below) {
  Shape table = columns, dy = columns;
  table.insert(0, rows);
  dy.insert(0, picks);
  const Tensor indices = drawn({DType::Int32, {picks}}, 7, 0, static_cast<double>(below));
  const Tensor order = launch(beside.trial("picks_by_row", {indices}, {{"rows", rows}}), *beside.cpu).outputs[0];
  std::vector<Tensor> inputs{drawn({dtype, table}, 1)};
  const bool is_adam = op == std::string("rows_adam_update");
  if (is_adam) inputs.push_back(drawn({dtype, table}, 2));
  if (is_adam || op == std::string("rows_adagrad_update")) inputs.push_back(drawn({dtype, table}, 3, 0, 1));
  inputs.push_back(drawn({dtype, dy}, 4));
  inputs.push_back(Tensor::of<float>({}, {0.1f}));
  if (is_adam) inputs.push_back(Tensor::of<int64_t>({}, {3}));
  inputs.insert(inputs.end(), {Tensor(), indices, order});
  return beside.trial(op, inputs, {{"gradient_scale", 0.5}});
}

}  // namespace

TEST_CASE("rows are updated on the card as on the CPU") {
  const BesideCpu beside;
  for (const char* op : {"rows_sgd_update", "rows_adagrad_update", "rows_adam_update"}) {
    for (const DType dtype : {DType::Float32, DType::Float64}) {
      beside.check(trial_of(beside, op, dtype, 50, {64}, 40, 50));
      beside.check(trial_of(beside, op, dtype, 300, {}, 300, 20));
      beside.check(trial_of(beside, op, dtype, 9, {3, 5}, 30, 1));
      beside.check(trial_of(beside, op, dtype, 20, {600}, 5, 20));
      beside.check(trial_of(beside, op, dtype, 20, {4}, 0, 20));
      beside.check(trial_of(beside, op, dtype, 20, {0}, 3, 20));
    }
  }
}

TEST_CASE("the factor 0 leaves rows alone on the card, and another one scales what they are picked for") {
  const BesideCpu beside;
  for (const char* op : {"rows_sgd_update", "rows_adagrad_update", "rows_adam_update"}) {
    for (const float factor : {0.0f, 0.25f}) {
      Trial trial = trial_of(beside, op, DType::Float32, 50, {64}, 40, 50);
      const size_t dy = trial.inputs.size() - (op == std::string("rows_adam_update") ? 6 : 5);
      if (factor == 0) trial.inputs[dy].data<float>()[1] = NAN;
      trial.inputs[trial.inputs.size() - 3] = Tensor::of<float>({}, {factor});
      const Launched got = beside.check(trial);
      CHECK(same(got.inputs[0], trial.inputs[0]) == (factor == 0));
    }
  }
}

TEST_CASE("the picks of a row are summed on the card as on the CPU") {
  const BesideCpu beside;
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    for (const Shape& shape : {Shape{40, 64}, Shape{300}, Shape{9, 3, 5}, Shape{5, 600}, Shape{0, 4}, Shape{3, 0}}) {
      const Tensor indices = drawn({DType::Int32, {shape[0]}}, 7, 0, 20);
      const Trial sorted = beside.trial("picks_by_row", {indices}, {{"rows", int64_t{20}}});
      beside.check("sum_picks", {drawn({dtype, shape}, 4), indices, launch(sorted, *beside.cpu).outputs[0]}, {});
    }
  }
}

TEST_CASE("picks are sorted and checked on the card as on the CPU") {
  const BesideCpu beside;
  for (const DType dtype : {DType::UInt8, DType::Int32, DType::Int64})
    for (const int64_t count : {1, 70, 3000})
      beside.check("picks_by_row", {drawn({dtype, {count}}, 3, 0, 90)}, {{"rows", int64_t{90}}});
}

TEST_CASE("a run that has found a fault changes no row") {
  const Bench bench;
  for (const char* op : {"rows_sgd_update", "rows_adagrad_update", "rows_adam_update"}) {
    const Trial trial = trial_of(bench, op, DType::Float32, 50, {64}, 40, 50);
    const Launched got = bench.shifted(trial, 0, [&](Stream& stream) { cuda::find_fault(*bench.card, stream); });
    CHECK(same(got.inputs[0], trial.inputs[0]));
  }
}
