// Ops at sizes that their examples do not reach, on the given card beside the CPU.
#pragma once

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "given_card.h"
#include "oracle.h"

namespace moonflow::testing {

class Beside {
 public:
  const Catalog& catalog() const { return *catalog_; }

  // Draws the inputs, launches on both, and checks that outputs and variables are alike and nothing else was touched,
  // also in the layouts that the kernel wants. The tolerance is for float32. Of bfloat16 it is three units of the last
  // place: a result is rounded on either side, and a bias too where the card's library adds it.
  void check(const std::string& op, const std::vector<TensorType>& types, const Attrs& attrs = {},
             double tolerance = 1e-5, double low = -1, double high = 1, int64_t int_below = 2) {
    Example example{types, attrs, low, high, int_below};
    const oracle::Trial trial = oracle::exact_in_bfloat16(oracle::draw(catalog_->at(op), example, ++seed_));
    INFO(trial.describe());
    try {
      oracle::Trial exact = trial;  // the CPU's Winograd convolution is less precise than what is asked of the card
      if (exact.attrs.find("algorithm")) exact.attrs.set("algorithm", std::string("direct"));
      const oracle::Launched expected = oracle::launch(exact, *cpu_), got = oracle::launch(trial, *card_);
      REQUIRE(got.has_kernel);
      CHECK(got.damage == "");
      const auto close = [&](const Tensor& a, const Tensor& b) {
        const double own = oracle::tolerance(trial, a.dtype());
        CHECK(oracle::distance(a, b) < (own > 1e-3 ? 3.0 / 256 : own < 1e-8 ? own : tolerance));
      };
      for (size_t i = 0; i < got.outputs.size(); ++i) close(got.outputs[i], expected.outputs[i]);
      for (size_t i = 0; i < got.inputs.size(); ++i)
        if (trial.inputs[i] && trial.op->updates(i)) close(got.inputs[i], expected.inputs[i]);
      const oracle::Layouts wanted = oracle::layouts_of(trial, *card_, [](const TensorType&) { return Layout{}; });
      const oracle::Launched laid_out = oracle::launch(trial, *card_, nullptr, wanted);
      CHECK(laid_out.damage == "");
      for (size_t i = 0; i < laid_out.outputs.size(); ++i) close(laid_out.outputs[i], expected.outputs[i]);
      const oracle::Launched again = oracle::launch(trial, *card_);
      for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(oracle::same_bytes(got.outputs[i], again.outputs[i]));
    } catch (const Error& error) {
      FAIL_CHECK("threw " << error.describe());
    }
  }

 private:
  std::shared_ptr<const Catalog> catalog_ = make_catalog();
  std::shared_ptr<Device> cpu_ = make_cpu_device(2), card_ = cuda::make_given_card();
  unsigned seed_ = 0;
};

}  // namespace moonflow::testing
