// The fused steps around dense layers, at sizes and with inputs left out that their examples do not have.
#include <cmath>

#include "beside_cpu.h"
#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

Tensor values(const Shape& shape, unsigned seed, double low = -1, double high = 1) {
  return drawn({DType::Float32, shape}, seed, low, high);
}

// A classifier's inputs: x, weight, labels, bias, y, mask, dy.
struct Case {
  int64_t rows, in, units;
};

std::vector<Tensor> classifier_inputs(const Case& c, DType labels) {
  const Shape x{c.rows, c.in};
  return {values(x, 1),
          values({c.units, c.in}, 2, -0.3, 0.3),
          is_floating(labels) ? values({c.rows, c.units}, 3, 0, 2.0 / static_cast<double>(c.units))
                              : drawn({labels, {c.rows, 1}}, 3, 0, static_cast<double>(c.units)),
          values({c.units}, 4),
          values(x, 5),
          drawn({DType::Int8, x}, 6, 0, 2),
          values(is_floating(labels) ? Shape{c.rows} : Shape{c.rows, 1}, 7)};
}

const Tensor kLeftOut;
const Tensor kRate = Tensor::of<float>({}, {0.3f});

// Of a layer: variable, bias, gradient, x, learning rate.
std::vector<Tensor> layer(int64_t rows, int64_t units, int64_t in, bool bias, unsigned seed) {
  return {values({units, in}, seed), bias ? values({units}, seed + 1) : kLeftOut, values({rows, units}, seed + 2),
          values({rows, in}, seed + 3), kRate};
}

std::vector<Tensor> stored(const Shape& shape, unsigned seed) {
  return {values(shape, seed), kLeftOut, values(shape, seed + 1), kLeftOut, kRate};
}

std::vector<Tensor> counter(int64_t from, int64_t by) {
  return {Tensor::of<int64_t>({}, {from}), kLeftOut, Tensor::of<int64_t>({}, {by}), kLeftOut, kRate};
}

std::vector<Tensor> all(const std::vector<std::vector<Tensor>>& groups) {
  std::vector<Tensor> inputs;
  for (const std::vector<Tensor>& group : groups) inputs.insert(inputs.end(), group.begin(), group.end());
  return inputs;
}

// Where factors, the two inputs from `first` on, may be rounded to TF32 an op is as near as that allows, and as near as
// ever where they are held exactly.
void check_tf32(const BesideCpu& beside, const char* op, std::vector<Tensor> inputs, int first, const Attrs& attrs,
                double rounded) {
  const auto check = [&](double tolerance) {
    const Trial trial = beside.trial(op, inputs, attrs);
    const Launched got = launch(trial, *beside.card, nullptr, {{}, {}, true});
    BesideCpu::check_alike(got, beside.expected(trial), tolerance);
  };
  check(rounded);
  for (Tensor* factor : {&inputs[first], &inputs[first + 1]}) {
    *factor = factor->copy();
    for (int64_t i = 0; i < factor->count(); ++i)
      factor->data<float>()[i] = std::round(factor->data<float>()[i] * 512) / 512;
  }
  check(1e-5);
}

}  // namespace

TEST_CASE("the last layer of a classifier gives its loss and the way back, whatever of it there is") {
  const BesideCpu beside;
  const char* const op = "dense_softmax_cross_entropy";
  // A row for each block, and several with some left over; few units and as many as there may be; rows of the inputs
  // that a block takes as a whole, by pairs and one by one, and longer ones.
  const Case cases[] = {{1, 1, 1},     {5, 300, 64}, {100, 512, 10}, {9, 33, 16},
                        {1061, 40, 3}, {11, 513, 2}, {1059, 7, 33}};
  for (const Case& c : cases) {
    for (const DType labels : {DType::Int64, DType::UInt8, DType::Float32}) {
      CAPTURE(c.rows, c.in, c.units, labels);
      const std::vector<Tensor> inputs = classifier_inputs(c, labels);
      beside.check(op, inputs, {{"rate", 0.25}, {"shown", true}});
      beside.check(op, {inputs[0], inputs[1], inputs[2]}, {{"seed", -2.0}});
      if (labels == DType::UInt8) continue;  // as other labels, once they are read
      for (const int left_out : {3, 4, 5, 6}) {
        std::vector<Tensor> some = inputs;
        some[left_out] = kLeftOut;
        beside.check(op, some, {{"rate", 0.5}, {"seed", 0.1}, {"back", left_out != 6}});
      }
    }
  }
}

TEST_CASE("a label outside the classes is noted by the last layer of a classifier") {
  const BesideCpu beside;
  std::vector<Tensor> inputs = classifier_inputs({9, 20, 4}, DType::Int32);
  inputs[2].data<int32_t>()[6] = -1;
  const Trial trial = beside.trial("dense_softmax_cross_entropy", inputs);
  CHECK_THROWS_WITH(launch(trial, *beside.cpu), Catch::Contains("row 6: label -1 is outside [0, 4)"));
  const Launched got = launch(trial, *beside.card);  // the rows beside it are whole
  CHECK(got.damage == "");
}

TEST_CASE("layers, stored gradients and a counter go down in one launch") {
  const BesideCpu beside;
  const auto check = [&](const std::vector<std::vector<Tensor>>& groups, double tolerance = 1e-5) {
    beside.check("dense_sgd_update", all(groups), {{"gradient_scale", 0.2}}, tolerance);
  };
  check({layer(100, 10, 33, true, 1), stored({4099}, 11), counter(41, 1), layer(9, 40, 5, false, 21)});
  check({counter(-3, 5)});
  check({stored({0}, 1), layer(0, 3, 4, true, 11), stored({3, 5}, 21)});
  check({layer(3, 725, 750, true, 1), layer(100, 68, 132, true, 11)});  // tiles with edges, rows of whole packs
  // Gradients that the library stores: one with a bias, one without, and neither changes what the other has left in
  // scratch.
  check({layer(300, 64, 128, true, 1), layer(300, 70, 132, false, 11), layer(20, 5, 6, true, 21)}, 1e-4);
  std::vector<std::vector<Tensor>> many;  // than a launch has room for
  for (unsigned i = 0; i < 130; ++i)
    many.push_back(i % 3 == 0 ? layer(4, 2 + i % 40, 3, i % 2 == 0, i) : stored({1 + i % 70}, i));
  check(many);
}

TEST_CASE("layers whose factors may be rounded to TF32 go down as far, and just as far where nothing is rounded away") {
  const BesideCpu beside;
  // Less than a strip, and more than are on their way at once; rows of whole packs and others; several tiles.
  const Case cases[] = {{1, 1, 1}, {5, 30, 10}, {100, 132, 68}, {100, 65, 130}, {83, 66, 33}, {120, 64, 64}};
  for (const Case& c : cases) {
    CAPTURE(c.rows, c.in, c.units);
    for (const bool bias : {false, true}) {
      const std::vector<Tensor> inputs = layer(c.rows, c.units, c.in, bias, 1);
      check_tf32(beside, "dense_sgd_update", inputs, 2, {{"gradient_scale", 0.2}}, 1e-3);
    }
  }
}

TEST_CASE("a small layer whose sums are shared by warps in TF32 gives what TF32 holds, with bias and relu") {
  const BesideCpu beside;
  // Tiles with edges, rows of whole packs and others, and fewer runs of a sum than warps have on their way.
  const Case cases[] = {{100, 784, 512}, {33, 500, 130}, {50, 1001, 200}, {250, 130, 160}};
  for (const Case& c : cases) {
    CAPTURE(c.rows, c.in, c.units);
    const std::vector<Tensor> inputs = {values({c.rows, c.in}, 1), values({c.units, c.in}, 2), values({c.units}, 3)};
    // A product of factors below 1 is off by 1e-4, five times that is seldom, and the errors of a sum have either sign.
    const double rounded = 5e-4 * std::sqrt(static_cast<double>(c.in));
    check_tf32(beside, "dense", inputs, 0, {{"activation", std::string("relu")}}, rounded);
    check_tf32(beside, "dense", {inputs[0], inputs[1], kLeftOut}, 0, {}, rounded);
  }
}

TEST_CASE("a sum of many rows into a bias is as exact as it would be apart") {
  const BesideCpu beside;
  std::vector<Tensor> group = layer(1024, 33, 2, true, 1);
  for (int64_t i = 0; i < group[2].count(); ++i) group[2].data<float>()[i] += 1000;  // sums of a million
  group[3] = Tensor::zeros(group[3].type());
  beside.check("dense_sgd_update", group, {{"gradient_scale", 1e-6}}, 3e-7);
}

TEST_CASE("after a fault a step changes neither layers nor others nor the counter") {
  Bench bench;
  const OpDef& op = bench.catalog->at("dense_sgd_update");
  const Trial trial{&op, complete(op, {}),
                    all({layer(20, 5, 40, true, 1), stored({70}, 11), counter(3, 1), layer(300, 64, 128, true, 21)})};
  const Launched got = bench.shifted(trial, 0, [&](Stream& stream) { cuda::find_fault(*bench.card, stream); });
  const Launched without = bench.shifted(trial, 0);
  for (size_t i = 0; i < trial.inputs.size(); ++i) {
    if (!trial.inputs[i]) continue;
    CAPTURE(i);
    CHECK(same(got.inputs[i], trial.inputs[i]));
    if (op.updates(i)) CHECK_FALSE(same(without.inputs[i], trial.inputs[i]));
  }
}

TEST_CASE("the way back through a layer goes on through dropout and relu, by tiles, dots and the library") {
  const BesideCpu beside;
  const Case cases[] = {{1, 1, 1}, {5, 7, 300}, {100, 512, 10}, {33, 65, 17}, {260, 250, 520}};
  for (const Case& c : cases) {
    CAPTURE(c.rows, c.in, c.units);
    const Shape x{c.rows, c.in};
    const Tensor dy = values({c.rows, c.units}, 1), weight = values({c.units, c.in}, 2), y = values(x, 3);
    const Tensor mask = drawn({DType::Int8, x}, 4, 0, 2);
    // Of a sum, which the op divides by the part that dropout has kept, and its error with it.
    const double tolerance = 2e-7 * (8 + static_cast<double>(c.units) / 8);
    beside.check("dense_input_grad", {dy, weight, y}, {}, tolerance);
    beside.check("dense_input_grad", {dy, weight, y, mask}, {{"rate", 0.25}}, tolerance / 0.75);
    beside.check("dense_input_grad", {dy, weight, kLeftOut, mask}, {{"rate", 0.5}}, tolerance / 0.5);
  }
}
