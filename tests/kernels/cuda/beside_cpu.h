// An op on the simulated card beside the same op on the CPU, on values that a test chooses.
#pragma once

#include <catch2/catch.hpp>

#include "kernels/simulated/device.h"
#include "oracle.h"

namespace moonflow::oracle {

struct BesideCpu {
  std::shared_ptr<const Catalog> catalog = make_catalog();
  std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_simulated_device();

  Trial trial(const char* op, std::vector<Tensor> inputs, const Attrs& attrs = {}) const {
    const OpDef& def = catalog->at(op);
    Trial trial{&def, complete(def, attrs), std::move(inputs)};
    const bool many = def.inputs[0].kind == InputDef::Many;
    while (!many && trial.inputs.size() < def.inputs.size()) trial.inputs.emplace_back();
    return trial;
  }

  // Checks that both agree to `tolerance`, and gives what the card computed.
  Launched check(const Trial& trial, double tolerance = 1e-5) const {
    INFO(trial.describe());
    const Launched expected = launch(trial, *cpu), got = launch(trial, *card);
    CHECK(got.damage == "");
    for (size_t i = 0; i < got.outputs.size(); ++i) {
      INFO("output " << i);
      CHECK(distance(got.outputs[i], expected.outputs[i]) < tolerance);
    }
    for (size_t i = 0; i < got.inputs.size(); ++i)
      if (trial.inputs[i] && trial.op->updates(i)) CHECK(distance(got.inputs[i], expected.inputs[i]) < tolerance);
    return got;
  }
  Launched check(const char* op, std::vector<Tensor> inputs, const Attrs& attrs = {}, double tolerance = 1e-5) const {
    return check(trial(op, std::move(inputs), attrs), tolerance);
  }
};

// Values of any dtype: floats uniform in [low, high), integers in [0, high).
inline Tensor drawn(const TensorType& type, unsigned seed, double low = -1, double high = 1) {
  std::mt19937 random(seed);
  Tensor tensor = Tensor::allocate(type);
  visit_stored(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const double value = low + (high - low) * (random() / 4294967296.0);
      tensor.data<T>()[i] = static_cast<T>(is_floating(type.dtype) ? value : (value < 0 ? 0 : value));
    }
  });
  return tensor;
}

}  // namespace moonflow::oracle
