// Sums of which several blocks have had a part each.
#pragma once

#include "kernels/cuda/elements.h"

namespace moonflow::cuda {

// Adds the parts of sum i in their order, in double, so that no two runs differ; `parts` holds them part by part.
template <class Part, class Out>
struct AddParts {
  const Part* parts;
  Out* out;
  int64_t count, sums;  // of parts, and in each of them
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    double sum = 0;
    for (int64_t part = 0; part < count; ++part) sum += parts[part * sums + i];
    out[i] = Out(static_cast<Computed<Out>>(sum));
  }
};

// The same of many parts, where a thread for each sum would be mostly waiting: the warps of a block take turns, each
// thread with one of 32 neighbouring sums, and what they have is added in their order.
template <class Part, class Out>
struct AddManyParts {
  static constexpr int kThreads = 512, kTurns = kThreads / kWarp;
  static constexpr int64_t kSharedBytes = kThreads * sizeof(double);
  AddParts<Part, Out> of;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    double* const of_turns = block.template shared<double>();
    const int lane = block.thread() % kWarp, turn = block.thread() / kWarp;
    const int64_t i = block.index() * kWarp + lane;
    double sum = 0;
    if (i < of.sums) {
      MOONFLOW_UNROLL_BY(4)
      for (int64_t part = turn; part < of.count; part += kTurns) sum += of.parts[part * of.sums + i];
    }
    of_turns[block.thread()] = sum;
    block.sync();
    if (turn > 0 || i >= of.sums) return;
    for (int other = 1; other < kTurns; ++other) sum += of_turns[other * kWarp + lane];
    of.out[i] = Out(static_cast<Computed<Out>>(sum));
  }
};

template <class Part, class Out>
void add_parts(Stream& stream, const AddParts<Part, Out>& add) {
  using Many = AddManyParts<Part, Out>;
  if (add.count < 2 * Many::kTurns) return for_each(stream, add.sums, add);
  launch(stream, (add.sums + kWarp - 1) / kWarp, Many{add}, Many::kSharedBytes);
}

}  // namespace moonflow::cuda
