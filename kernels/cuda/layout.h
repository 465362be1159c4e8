// The layouts of the CUDA device, and values from one into another.
#pragma once

#include <string_view>

#include "engine/device.h"

namespace moonflow::cuda {

constexpr std::string_view kChannelsLast = "NHWC";

// The layout of images and filters in which channels come last. `type` is (batch, channels, height, width), or the like
// with one or three axes of space.
inline Layout channels_last(const TensorType& type) {
  return {{kChannelsLast.begin(), kChannelsLast.end()}, type.bytes()};
}
inline bool is_channels_last(const Layout& layout) {
  return std::string_view(reinterpret_cast<const char*>(layout.description.data()), layout.description.size()) ==
         kChannelsLast;
}

// Of `type` between rows and channels last.
Launch reorder(const TensorType& type, const Layout& from, const Layout& to);

}  // namespace moonflow::cuda
