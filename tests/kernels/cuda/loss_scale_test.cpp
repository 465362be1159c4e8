// A dynamic loss scale on the card: one look at all gradients, and updates that change nothing.
#include <catch2/catch.hpp>
#include <limits>

#include "beside_cpu.h"
#include "shifted.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

Tensor scalar(float value) { return Tensor::of<float>({}, {value}); }

}  // namespace

TEST_CASE("the card finds one element that is not finite among many values") {
  BesideCpu beside;
  // More values than one launch takes along, of every dtype, one of them longer than a block's share.
  std::vector<Tensor> values;
  for (int64_t i = 0; i < 400; ++i) {
    constexpr DType kDTypes[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16};
    const DType dtype = kDTypes[i % 4];
    values.push_back(drawn({dtype, {i == 200 ? 30001 : i % 7}}, static_cast<unsigned>(i)));
  }
  const auto all_finite = [&] {
    return beside.check("all_finite", values).outputs[0].data<float>()[0];
  };
  CHECK(all_finite() == 1);
  for (const size_t which : {1, 5, 200, 396, 398}) {
    CAPTURE(which);
    const Tensor before = values[which];
    values[which] = before.copy();
    visit_stored(before.dtype(), [&](auto zero) {
      using T = decltype(zero);
      values[which].data<T>()[before.count() - 1] = T(which == 5 ? INFINITY : NAN);
    });
    CHECK(all_finite() == 0);
    values[which] = before;
  }
  CHECK(all_finite() == 1);
}

TEST_CASE("the card's loss scale falls and rises as the CPU's") {
  BesideCpu beside;
  for (const float finite : {0.0f, 1.0f}) {
    for (const int64_t good : {0, 1, 2}) {
      for (const float scale : {1.0f, 1024.0f, std::numeric_limits<float>::max()})
        beside.check("dynamic_loss_scale_update", {scalar(scale), Tensor::of<int64_t>({}, {good}), scalar(finite)},
                     {{"increment_period", int64_t{3}}});
    }
  }
}

TEST_CASE("an update on the card with the factor 0 changes nothing, beside one that does") {
  BesideCpu beside;
  const auto variable = [](unsigned seed, int64_t count) { return drawn({DType::Float32, {count}}, seed, 0.6, 1); };
  for (const int companions : {0, 1, 2}) {
    const std::string op = companions == 0 ? "sgd_update" : companions == 1 ? "momentum_update" : "adam_update";
    std::vector<Tensor> inputs;
    std::vector<size_t> kept;
    for (unsigned i = 0; i < 6; ++i) {
      const int64_t count = i == 4 ? 5003 : 3;
      for (int c = 0; c <= companions; ++c) {
        if (i % 2 == 0) kept.push_back(inputs.size());
        inputs.push_back(variable(10 * i + static_cast<unsigned>(c), count));
      }
      inputs.push_back(variable(90 + i, count));
      if (i % 2 == 0) inputs.back().data<float>()[1] = NAN;
      inputs.push_back(scalar(0.1f));
      if (companions == 2) inputs.push_back(Tensor::of<int64_t>({}, {3}));
      inputs.push_back(i == 3 ? Tensor() : scalar(i % 2 == 0 ? 0 : 0.25f));
    }
    const Launched got = beside.check(op.c_str(), inputs);
    for (const size_t i : kept) CHECK(same(got.inputs[i], inputs[i]));
    const size_t group = inputs.size() / 6;
    for (const size_t moved : {group, 3 * group, 5 * group}) CHECK_FALSE(same(got.inputs[moved], inputs[moved]));
  }
}

TEST_CASE("a run that has found a fault leaves the loss scale alone") {
  Bench bench;
  const OpDef& op = bench.catalog->at("dynamic_loss_scale_update");
  const Trial trial{&op, complete(op, {}), {scalar(64), Tensor::of<int64_t>({}, {5}), scalar(0)}};
  const Launched got = bench.shifted(trial, 0, [&](Stream& stream) { cuda::find_fault(*bench.card, stream); });
  for (size_t i = 0; i < 3; ++i) CHECK(same(got.inputs[i], trial.inputs[i]));
}
