// Every op of the catalog that has a CUDA kernel, on the given card beside the CPU.
#include "oracle.h"

#include <cstdlib>
#include <iostream>
#include <set>

#include <catch2/catch.hpp>

#include "channels_last.h"
#include "given_card.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// What `launch` computes, by way of a sharing of memory where there is one, is what the CPU computes.
template <class LaunchWith>
void check(const Trial& trial, const Launched& expected, const LaunchWith& launch) {
  const auto close = [&](const Tensor& a, const Tensor& b) { return distance(a, b) < tolerance(trial, a.dtype()); };
  const Launched got = *launch(nullptr);
  CHECK(got.damage == "");
  for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(close(got.outputs[i], expected.outputs[i]));
  for (size_t i = 0; i < got.inputs.size(); ++i)
    if (trial.inputs[i] && trial.op->updates(i)) CHECK(close(got.inputs[i], expected.inputs[i]));
  for (const Sharing& share : trial.op->inplace) {
    if (!trial.inputs[share.input] || trial.inputs[share.input].type() != got.outputs[share.output].type()) continue;
    const std::optional<Launched> shared = launch(&share);
    if (!shared) continue;
    CHECK(shared->damage == "");
    for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(same_bytes(shared->outputs[i], got.outputs[i]));
  }
}

}  // namespace

// A card gives up the process that touches memory it should not. So what fails can be looked for op by op, each in a
// process of its own: this names them, and MOONFLOW_ORACLE_OP in the environment leaves the tests below only one.
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
      const Launched expected = launch(exact, *cpu);
      check(trial, expected, [&](const Sharing* share) {
        return std::optional<Launched>(launch(trial, *card, share));
      });
    } catch (const Error& error) {
      FAIL_CHECK("threw " << error.describe());
    }
  });
}

TEST_CASE("every CUDA kernel that takes images with their channels last computes the same from them") {
  const std::shared_ptr<const Catalog> catalog = make_catalog();
  const std::shared_ptr<Device> cpu = make_cpu_device(2), card = cuda::make_given_card();
  const char* const only = std::getenv("MOONFLOW_ORACLE_OP");
  std::set<std::string> seen;
  for_each_trial(*catalog, [&](const Trial& drawn) {
    if (only && drawn.op->name != only) return;
    const Trial trial = exact_in_bfloat16(drawn);
    if (!card->kernel(*trial.op) || !cpu->kernel(*trial.op)) return;
    INFO(trial.describe());
    try {
      const std::optional<Layouts> layouts = channels_last_layouts(trial, *card);
      if (!layouts) return;
      seen.insert(trial.op->name);
      Trial exact = trial;
      if (exact.attrs.find("algorithm")) exact.attrs.set("algorithm", std::string("direct"));
      check(trial, launch(exact, *cpu), [&](const Sharing* share) -> std::optional<Launched> {
        if (share && layouts->inputs[share->input] != layouts->outputs[share->output]) return {};
        return launch(trial, *card, share, *layouts);
      });
    } catch (const Error& error) {
      FAIL_CHECK("threw " << error.describe());
    }
  });
  for (const char* op : {"batch_norm_train", "batch_norm_add_relu_grad", "batch_norm_infer", "max_pool2d",
                         "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad", "reduce_mean"}) {
    INFO(op);
    if (!only) CHECK(seen.count(op) == 1);
  }
}
