// Every op of the catalog that has a CUDA kernel, on the given card beside the CPU.
#include "oracle.h"

#include <cstdlib>
#include <iostream>

#include <catch2/catch.hpp>

#include "given_card.h"

using namespace moonflow;
using namespace moonflow::oracle;

// A card gives up the process that touches memory it should not. So what fails can be looked for op by op, each in a
// process of its own: this names them, and MOONFLOW_ORACLE_OP in the environment leaves the test below only one.
TEST_CASE("names of the ops that have a CUDA kernel", "[.][names]") {
  const std::shared_ptr<const Catalog> catalog = make_catalog();
  const std::shared_ptr<Device> card = cuda::make_given_card();
  for (const auto& [name, op] : catalog->ops())
    if (card->kernel(op)) std::cout << "op " << name << '\n';
}

TEST_CASE("every CUDA kernel keeps to its buffers and computes what the CPU computes") {
  const std::shared_ptr<const Catalog> catalog = make_catalog();
  const std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_given_card();
  const char* const only = std::getenv("MOONFLOW_ORACLE_OP");
  for_each_trial(*catalog, [&](const Trial& drawn) {
    if (only && drawn.op->name != only) return;
    const Trial trial = exact_in_bfloat16(drawn);
    if (!card->kernel(*trial.op) || !cpu->kernel(*trial.op)) return;
    INFO(trial.describe());
    try {
      Trial exact = trial;  // the CPU's Winograd convolution is less precise than what is asked of the card
      if (exact.attrs.find("algorithm")) exact.attrs.set("algorithm", std::string("direct"));
      const Launched expected = launch(exact, *cpu), got = launch(trial, *card);
      CHECK(got.damage == "");
      const auto close = [&](const Tensor& a, const Tensor& b) {
        const DType dtype = a.dtype();
        return distance(a, b) < (dtype == DType::BFloat16 ? 2.0 / 256 : dtype == DType::Float64 ? 1e-9 : 1e-5);
      };
      for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(close(got.outputs[i], expected.outputs[i]));
      for (size_t i = 0; i < got.inputs.size(); ++i)
        if (trial.inputs[i] && trial.op->updates(i)) CHECK(close(got.inputs[i], expected.inputs[i]));
      for (const Sharing& share : trial.op->inplace) {
        if (!trial.inputs[share.input] || trial.inputs[share.input].type() != got.outputs[share.output].type())
          continue;
        const Launched shared = launch(trial, *card, &share);
        CHECK(shared.damage == "");
        for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(same_bytes(shared.outputs[i], got.outputs[i]));
      }
    } catch (const Error& error) {
      FAIL_CHECK("threw " << error.describe());
    }
  });
}
