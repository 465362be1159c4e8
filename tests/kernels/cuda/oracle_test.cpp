// Every op of the catalog that has a CUDA kernel, on the given card beside the CPU.
#include <cstdlib>
#include <iostream>
#include <set>

#include "beside_cpu.h"

using namespace moonflow;
using namespace moonflow::oracle;

namespace {

// What `launch` computes, by way of a sharing of memory where there is one, is what the CPU computes.
template <class LaunchWith>
void check(const Trial& trial, const Launched& expected, const LaunchWith& launch) {
  const Launched got = *launch(nullptr);
  BesideCpu::check_alike(got, expected, [&](DType dtype) { return tolerance(trial, dtype); });
  for (const Sharing& share : trial.op->inplace) {
    if (!trial.inputs[share.input] || trial.inputs[share.input].type() != got.outputs[share.output].type()) continue;
    const std::optional<Launched> shared = launch(&share);
    if (!shared) continue;
    CHECK(shared->damage == "");
    for (size_t i = 0; i < got.outputs.size(); ++i) CHECK(same(shared->outputs[i], got.outputs[i]));
  }
}

// check(trial) for every trial that both have a kernel for. MOONFLOW_ORACLE_OP in the environment leaves only one op.
template <class Check>
void for_each_shared_trial(const BesideCpu& beside, const Check& check) {
  const char* const only = std::getenv("MOONFLOW_ORACLE_OP");
  for_each_trial(*beside.catalog, [&](const Trial& drawn) {
    if (only && drawn.op->name != only) return;
    const Trial trial = exact_when_narrow(drawn);
    if (!beside.card->kernel(*trial.op) || !beside.cpu->kernel(*trial.op)) return;
    INFO(trial.describe());
    try {
      check(trial);
    } catch (const Error& error) {
      FAIL_CHECK("threw " << error.describe());
    }
  });
}

}  // namespace

// A card gives up the process that touches memory it should not. So what fails can be looked for op by op, each in a
// process of its own: this names them, for MOONFLOW_ORACLE_OP.
TEST_CASE("names of the ops that have a CUDA kernel", "[.][names]") {
  const std::shared_ptr<const Catalog> catalog = all_ops();
  const std::shared_ptr<Device> card = cuda::make_given_card();
  for (const auto& [name, op] : catalog->ops())
    if (card->kernel(op)) std::cout << "op " << name << '\n';
}

TEST_CASE("every CUDA kernel keeps to its buffers and computes what the CPU computes") {
  const BesideCpu beside;
  for_each_shared_trial(beside, [&](const Trial& trial) {
    check(trial, beside.expected(trial),
          [&](const Sharing* share) { return std::optional<Launched>(launch(trial, *beside.card, share)); });
  });
}

TEST_CASE("every CUDA kernel that takes images with their channels last computes the same from them") {
  const BesideCpu beside;
  std::set<std::string> seen;
  for_each_shared_trial(beside, [&](const Trial& trial) {
    const std::optional<Layouts> layouts = channels_last_layouts(trial, *beside.card);
    if (!layouts) return;
    seen.insert(trial.op->name);
    check(trial, beside.expected(trial), [&](const Sharing* share) -> std::optional<Launched> {
      if (share && layouts->inputs[share->input] != layouts->outputs[share->output]) return {};
      return launch(trial, *beside.card, share, *layouts);
    });
  });
  for (const char* op : {"batch_norm_train", "batch_norm_add_relu_grad", "batch_norm_infer", "max_pool2d",
                         "max_pool2d_grad", "avg_pool2d", "avg_pool2d_grad", "reduce_mean"}) {
    INFO(op);
    if (!std::getenv("MOONFLOW_ORACLE_OP")) CHECK(seen.count(op) == 1);
  }
}
