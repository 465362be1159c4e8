// The oracle: every op of the catalog on every one of its examples. A new op joins by existing.
#include "oracle.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/lacks_gradient.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

struct Bench {
  std::shared_ptr<const Catalog> catalog = all_ops();
  std::shared_ptr<Device> device = make_cpu_device(2);

  template <class Check>
  void for_each_trial(const Check& check) const {
    oracle::for_each_trial(*catalog, [&](const Trial& trial) {
      INFO(trial.describe());
      try {
        check(trial);
      } catch (const Error& error) {
        FAIL_CHECK("threw " << error.describe());
      }
    });
  }

  // Checks that a launch kept to its buffers, and gave what the device gives in rows.
  void check_alike(const Trial& trial, const Launched& got) const {
    const Launched expected = launch(trial, *device);
    CHECK(got.has_kernel == expected.has_kernel);
    CHECK(got.damage == "");
    const auto close = [&](const Tensor& a, const Tensor& b) { return distance(a, b) < tolerance(trial, a.dtype()); };
    for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(close(got.outputs[i], expected.outputs[i]));
    for (size_t i = 0; i < trial.inputs.size(); ++i)
      if (trial.inputs[i] && trial.op->updates(i)) CHECK(close(got.inputs[i], expected.inputs[i]));
  }
};

}  // namespace

TEST_CASE("every op says what it does, and has an example that fits it") {
  const Bench bench;
  for (const auto& [name, op] : bench.catalog->ops()) {
    INFO(name);
    CHECK_FALSE(op.doc.empty());
    CHECK_FALSE(op.examples.empty());
    CHECK(op.infer);
    CHECK((op.cpu || !op.alias.empty()));
    for (const Example& example : op.examples) CHECK_NOTHROW(draw(op, example, 1).infer());
  }
}

TEST_CASE("every gradient refuses a dy of another dtype, which a kernel would read past its end") {
  const Bench bench;
  size_t tried = 0;
  for (const auto& [name, op] : bench.catalog->ops()) {
    const bool is_gradient = name.find("_grad") != std::string::npos;
    for (size_t i = 0; is_gradient && i < op.inputs.size(); ++i) {
      const bool is_dy = op.inputs[i].name == "dy" || op.inputs[i].name == "dout";
      // Beside no other float it is the dtype of the result itself.
      const Trial trial = draw(op, op.examples[0], 1);
      const std::vector<int>& apart = op.narrow.keeps_float32;  // a float32 beside narrow ones
      int floats = 0;
      for (size_t k = 0; k < trial.inputs.size(); ++k) {
        const bool is_apart = std::count(apart.begin(), apart.end(), static_cast<int>(k)) > 0;
        floats += trial.inputs[k] && is_floating(trial.inputs[k].dtype()) && !is_apart;
      }
      if (!is_dy || floats < 2) continue;
      for (const DType dtype : {DType::Float64, DType::BFloat16, DType::Int32}) {
        Trial other = trial;
        other.inputs[i] = Tensor::allocate({dtype, trial.inputs[i].shape()});
        INFO(other.describe());
        CHECK_THROWS_AS(other.infer(), Error);
        ++tried;
      }
    }
  }
  CHECK(tried > 100);
}

TEST_CASE("every op keeps to its buffers and leaves its inputs alone") {
  const Bench bench;
  bench.for_each_trial([&](const Trial& trial) {
    const Launched once = launch(trial, *bench.device);
    CHECK(once.damage == "");
    const Launched again = launch(trial, *bench.device);
    for (size_t i = 0; i < once.outputs.size(); ++i) CHECK(same(once.outputs[i], again.outputs[i]));
  });
}

TEST_CASE("what moves elements takes narrow ones as they are, and a table of them row by row") {
  const Bench bench;
  for (const char* name : {"transpose", "reverse", "broadcast_to", "tile", "slice", "strided_slice", "pad", "concat",
                           "stack", "gather", "gather_nd", "dim_gather"}) {
    for (const DType dtype : {DType::BFloat16, DType::Float16}) {
      // A NaN that whoever computes with it makes another one of.
      const uint16_t signaling = dtype == DType::BFloat16 ? 0x7f81 : 0x7c01;
      const OpDef& op = bench.catalog->at(name);
      const std::vector<Trial> trials = with_floats(draw(op, op.examples[0], 1), dtype);
      REQUIRE(!trials.empty());
      for (const Trial& trial : trials) {
        INFO(trial.describe());
        for (const Tensor& input : trial.inputs)
          if (input && is_narrow(input.dtype()))
            std::fill_n(static_cast<uint16_t*>(input.data()), input.count(), signaling);
        const Tensor out = launch(trial, *bench.device).outputs[0];
        const auto* const bits = static_cast<const uint16_t*>(out.data());
        const int64_t kept = std::count(bits, bits + out.count(), signaling);
        CHECK((op.name == "pad" ? kept > 0 : kept == out.count()));
      }
    }
  }
}

TEST_CASE("what memory held before is in no result") {
  const Bench bench;
  const auto rows = [](const TensorType&) { return Layout{}; };
  bench.for_each_trial([&](const Trial& trial) {
    for (const Layouts& layouts : {Layouts{}, layouts_of(trial, *bench.device, rows)}) {
      const Launched one = launch(trial, *bench.device, nullptr, layouts);
      const Launched other = launch(trial, *bench.device, nullptr, layouts, Before::Ordinary);
      for (size_t i = 0; i < one.outputs.size(); ++i) CHECK(same(one.outputs[i], other.outputs[i]));
      for (size_t i = 0; i < trial.inputs.size(); ++i)
        if (trial.inputs[i] && trial.op->updates(i)) CHECK(same(one.inputs[i], other.inputs[i]));
    }
  });
}

TEST_CASE("every op keeps to its buffers in the layouts that it asks for") {
  const Bench bench;
  const std::shared_ptr<Device> real_time = make_real_time_cpu_device();
  const bool for_real_time = GENERATE(false, true);
  Device& device = for_real_time ? *real_time : *bench.device;
  INFO("for real time: " << for_real_time);
  const auto rows = [](const TensorType&) { return Layout{}; };
  size_t tried = 0;
  bench.for_each_trial([&](const Trial& trial) {
    for (const bool lasting : {false, true}) {
      const Layouts layouts = layouts_of(trial, device, rows, false, lasting);
      const auto is_own = [](const Layout& layout) { return !layout.row_major(); };
      if (std::none_of(layouts.inputs.begin(), layouts.inputs.end(), is_own) &&
          std::none_of(layouts.outputs.begin(), layouts.outputs.end(), is_own))
        continue;
      ++tried;
      INFO("inputs that last: " << lasting);
      bench.check_alike(trial, launch(trial, device, nullptr, layouts));
    }
  });
  CHECK(tried > 0);
}

TEST_CASE("every op keeps to its buffers on the device for real time, and gives what it gives on the other") {
  const Bench bench;
  const std::shared_ptr<Device> real_time = make_real_time_cpu_device();
  bench.for_each_trial([&](const Trial& trial) { bench.check_alike(trial, launch(trial, *real_time)); });
}

TEST_CASE("every op gives the types it infers, in a plan as in a launch") {
  const Bench bench;
  bench.for_each_trial([&](const Trial& trial) {
    const std::vector<TensorType> inferred = trial.infer();
    const std::vector<Tensor> planned = run_plan(trial, bench.device);
    const Launched launched = launch(trial, *bench.device);
    REQUIRE(planned.size() == inferred.size());
    for (size_t i = 0; i < planned.size(); ++i) {
      CHECK(planned[i].type() == inferred[i]);
      // A plan may choose private layouts, and with them another order of summation.
      const double allowed = is_narrow(inferred[i].dtype) ? two_roundings(inferred[i].dtype) : 1e-5;
      if (launched.has_kernel) CHECK(distance(planned[i], launched.outputs[i]) < allowed);
    }
  });
}

TEST_CASE("an op that may overwrite an input gives the same when it does") {
  const Bench bench;
  bench.for_each_trial([&](const Trial& trial) {
    const std::vector<TensorType> types = trial.infer();
    for (const Sharing& share : trial.op->inplace) {
      if (!trial.inputs[share.input] || trial.inputs[share.input].type() != types[share.output]) continue;
      const Launched apart = launch(trial, *bench.device), shared = launch(trial, *bench.device, &share);
      CHECK(shared.damage == "");
      for (size_t i = 0; i < types.size(); ++i) CHECK(same(apart.outputs[i], shared.outputs[i]));
    }
  });
}

TEST_CASE("results in float32 are close to those in float64, and in narrow dtypes to those in float32") {
  const Bench bench;
  bench.for_each_trial([&](const Trial& trial) {
    if (trial.op->random) return;
    const std::vector<Trial> others = swapped(trial);
    if (others.empty()) return;
    const Launched here = launch(trial, *bench.device), there = launch(others[0], *bench.device);
    // A few hundred roundings of 6e-8 each, and derivatives of the examples' functions up to some tens.
    const auto close = [](const Tensor& a, const Tensor& b) {
      for (const DType dtype : {a.dtype(), b.dtype()})
        if (is_narrow(dtype)) return distance(a, b) < two_roundings(dtype);
      return distance(a, b) < 3e-5;
    };
    for (size_t i = 0; i < here.outputs.size(); ++i) CHECK(close(here.outputs[i], there.outputs[i]));
    for (size_t i = 0; i < trial.inputs.size(); ++i)
      if (trial.inputs[i] && trial.op->updates(i)) CHECK(close(here.inputs[i], there.inputs[i]));
  });
}

TEST_CASE("results have the same bits for one thread and two") {
  const Bench bench;
  const std::shared_ptr<Device> one = make_cpu_device(1);
  bench.for_each_trial([&](const Trial& trial) {
    // The exception: oneDNN gives each thread a part of the batch and adds up the threads' filter gradients.
    if (trial.op->name.find("filter") != std::string::npos) return;
    const Launched alone = launch(trial, *one), together = launch(trial, *bench.device);
    for (size_t i = 0; i < alone.outputs.size(); ++i) CHECK(same(alone.outputs[i], together.outputs[i]));
    for (size_t i = 0; i < trial.inputs.size(); ++i)
      if (trial.inputs[i] && trial.op->updates(i)) CHECK(same(alone.inputs[i], together.inputs[i]));
  });
}

TEST_CASE("every gradient matches central differences in float64") {
  const Bench bench;
  bench.for_each_trial([&](const Trial& trial) {
    if (!trial.op->grad || trial.op->grad.target<LacksGradient>() || trial.op->random) return;
    const bool in_float64 = std::any_of(trial.inputs.begin(), trial.inputs.end(),
                                        [](const Tensor& input) { return input && input.dtype() == DType::Float64; });
    if (!in_float64) return;
    const std::vector<TensorType> types = trial.infer();
    size_t compared = 0;
    bool has_floating_output = false;
    for (size_t output = 0; output < types.size(); ++output) {
      if (types[output].dtype != DType::Float64) continue;
      has_floating_output = true;
      for (const Comparison& c : compare_gradients(trial, static_cast<int>(output), bench.device)) {
        ++compared;
        // Half the digits of float64 for a difference, less the third derivative times the step's square.
        if (std::abs(c.engine - c.difference) <= 1e-6 * std::max(1.0, std::abs(c.difference))) continue;
        FAIL_CHECK("output " << output << ", input " << c.input << "[" << c.element << "]: engine " << c.engine
                             << ", difference " << c.difference);
        break;
      }
    }
    if (has_floating_output) CHECK(compared > 0);
  });
}
