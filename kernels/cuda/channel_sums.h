// Sums of each channel over everything else, in one order whatever the card: gradients of biases.
#pragma once

#include <functional>

#include "engine/op.h"

namespace moonflow::cuda {

// A value as `outer` values of one plane per channel; planes of one element where the channels are last in memory.
struct ChannelPlanes {
  int64_t outer, channels, plane;
};

// Sums of `dtype`, stored as `result`: the same, or float32 for what is narrow. Says how much scratch a launch needs.
using ChannelSumLaunch = std::function<void(Stream&, const void* x, void* sums, void* scratch)>;
ChannelSumLaunch channel_sums(const ChannelPlanes& planes, DType dtype, DType result, int64_t& scratch_bytes);

}  // namespace moonflow::cuda
