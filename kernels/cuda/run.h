// What a run on a card has beside its steps: copies that are too small for the card's copy engines, and its end.
#pragma once

#include "kernels/cuda/fault.h"

namespace moonflow::cuda {

// Most bytes that these copy. The copy engines take longer to begin than this takes to cross the bus.
constexpr int64_t kSmallBytes = 32 << 10;

// Between memory of the device or staging, both as aligned as allocations are.
void copy_small(Stream& stream, void* to, const void* from, int64_t bytes);

// As RunEnd says, with its event's flag: a word of staging, or nullptr.
void end_run(Stream& stream, FaultNote* note, const RunEnd& end, int* flag);

}  // namespace moonflow::cuda
