// Ops at sizes that their examples do not reach, on the given card beside the CPU.
#pragma once

#include "beside_cpu.h"

namespace moonflow::testing {

class Beside : oracle::BesideCpu {
 public:
  using oracle::BesideCpu::trial;

  // Draws the inputs, launches on both, and checks that outputs and variables are alike and nothing else was touched,
  // also in the layouts that the kernel wants. The tolerance is for float32. Of what is narrow it is three roundings: a
  // result is rounded on either side, and a bias too where the card's library adds it.
  void check(const std::string& op, const std::vector<TensorType>& types, const Attrs& attrs = {},
             double tolerance = 1e-5, double low = -1, double high = 1, int64_t int_below = 2) {
    Example example{types, attrs, low, high, int_below};
    check(oracle::exact_when_narrow(oracle::draw(catalog->at(op), example, ++seed_)), tolerance);
  }

  // The same with inputs of the caller's.
  void check(const oracle::Trial& trial, double tolerance = 1e-5) {
    const Tolerance close([&](DType dtype) {
      const double own = oracle::tolerance(trial, dtype);
      return own > 1e-4 ? 1.5 * own : own < 1e-8 ? own : tolerance;
    });
    INFO(trial.describe());
    try {
      const oracle::Launched wanted = expected(trial), got = oracle::launch(trial, *card);
      REQUIRE(got.has_kernel);
      check_alike(got, wanted, close);
      const oracle::Layouts layouts = oracle::layouts_of(trial, *card, [](const TensorType&) { return Layout{}; });
      check_alike(oracle::launch(trial, *card, nullptr, layouts), wanted, close);
      const oracle::Launched again = oracle::launch(trial, *card);
      for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(oracle::same(got.outputs[i], again.outputs[i]));
    } catch (const Error& error) {
      FAIL_CHECK("threw " << error.describe());
    }
  }

 private:
  unsigned seed_ = 0;
};

}  // namespace moonflow::testing
