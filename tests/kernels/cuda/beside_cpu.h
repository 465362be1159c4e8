// An op on the given card beside the same op on the CPU, on values that a test chooses.
#pragma once

#include <functional>

#include <catch2/catch.hpp>

#include "channels_last.h"
#include "given_card.h"

namespace moonflow::oracle {

struct BesideCpu {
  std::shared_ptr<const Catalog> catalog = all_ops();
  std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_given_card();

  Trial trial(const char* op, std::vector<Tensor> inputs, const Attrs& attrs = {}) const {
    const OpDef& def = catalog->at(op);
    Trial trial{&def, complete(def, attrs), std::move(inputs)};
    while (trial.inputs.size() < def.inputs.size()) trial.inputs.emplace_back();
    return trial;
  }

  // How near results of a dtype must be.
  struct Tolerance {
    Tolerance(double bound) : of([bound](DType) { return bound; }) {}
    template <class F, class = std::enable_if_t<std::is_invocable_v<F, DType>>>
    Tolerance(F by_dtype) : of(by_dtype) {}
    std::function<double(DType)> of;
    void check(const Tensor& got, const Tensor& expected) const { CHECK(distance(got, expected) <= of(got.dtype())); }
  };

  // What the CPU computes. Its Winograd convolution is less precise than what is asked of the card.
  Launched expected(const Trial& trial) const {
    Trial exact = trial;
    if (exact.attrs.find("algorithm")) exact.attrs.set("algorithm", std::string("direct"));
    return launch(exact, *cpu);
  }

  // Checks that a launch of the card kept to its buffers and gave what the CPU did, in outputs and variables.
  static void check_alike(const Launched& got, const Launched& expected, const Tolerance& tolerance) {
    CHECK(got.damage == "");
    for (size_t i = 0; i < got.outputs.size(); ++i) {
      INFO("output " << i);
      tolerance.check(got.outputs[i], expected.outputs[i]);
    }
    for (size_t i = 0; i < got.inputs.size(); ++i) {
      INFO("input " << i);
      if (got.inputs[i]) tolerance.check(got.inputs[i], expected.inputs[i]);
    }
  }

  // Checks that both agree, and gives what the card computed.
  Launched check(const Trial& trial, const Tolerance& tolerance = 1e-5) const {
    INFO(trial.describe());
    const Launched got = launch(trial, *card);
    check_alike(got, expected(trial), tolerance);
    return got;
  }
  // The same, and that images with their channels last, which the kernel must keep, give the same result.
  Launched check_both_layouts(const Trial& trial, const Tolerance& tolerance = 1e-5) const {
    const Launched rows = check(trial, tolerance);
    INFO("channels last: " << trial.describe());
    const std::optional<Layouts> layouts = channels_last_layouts(trial, *card);
    REQUIRE(layouts);
    for (size_t i = 0; i < trial.inputs.size(); ++i)
      if (trial.inputs[i] && has_places(trial.inputs[i].type())) CHECK(cuda::is_channels_last(layouts->inputs[i]));
    for (size_t i = 0; i < rows.outputs.size(); ++i)
      if (has_places(rows.outputs[i].type()) && rows.outputs[i].shape().rank() == trial.inputs[0].shape().rank())
        CHECK(cuda::is_channels_last(layouts->outputs[i]));
    const Launched last = launch(trial, *card, nullptr, *layouts);
    CHECK(last.damage == "");
    for (size_t i = 0; i < rows.outputs.size(); ++i) tolerance.check(last.outputs[i], rows.outputs[i]);
    return rows;
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
