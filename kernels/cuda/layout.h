// The layouts of the CUDA device, and values from one into another.
#pragma once

#include <string_view>

#include "engine/op.h"

namespace moonflow::cuda {

constexpr std::string_view kChannelsLast = "NHWC";

inline std::string_view name_of(const Layout& layout) {
  return {reinterpret_cast<const char*>(layout.description.data()), layout.description.size()};
}

// The layout of images and filters in which channels come last. `type` is (batch, channels, height, width), or the like
// with one or three axes of space.
inline Layout channels_last(const TensorType& type) {
  return {{kChannelsLast.begin(), kChannelsLast.end()}, type.bytes()};
}
inline bool is_channels_last(const Layout& layout) { return name_of(layout) == kChannelsLast; }

// The same of an image or a filter with few channels: at each place there are zeros behind them, 4 or 8 channels in
// all, of 2 or 4 bytes. `axis` is that of the channels in the type: 1, or the last, and then they only get the zeros.
inline Layout padded_channels_last(const TensorType& type, int axis, int64_t channels) {
  const int64_t places = type.shape.count(0, axis) * type.shape.count(axis + 1, type.shape.rank());
  const std::string name = text(axis == 1 ? "NHWC" : "C", channels);
  return {{name.begin(), name.end()}, places * channels * size_of(type.dtype)};
}
inline bool is_padded(const Layout& layout) { return !layout.row_major() && !is_channels_last(layout); }

// For element-wise kernels, to which the order of the elements is all the same: where each operand has the shape of the
// result or a single element, channels come last in all of them as soon as they do in one.
inline void share_channels_last(LayoutCall& call) {
  const TensorType& out = call.output_types[0];
  bool alike = true, last = false;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool full = call.input_types[i].shape == out.shape;
    alike = alike && (full || call.input_types[i].count() == 1);
    last = last || (full && is_channels_last(call.inputs[i]));
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool full = call.input_types[i].shape == out.shape;
    call.inputs[i] = alike && last && full ? channels_last(call.input_types[i]) : Layout{};
  }
  call.outputs[0] = alike && last ? channels_last(out) : Layout{};
}

// For ops over images: all values lie as input `image` does, in rows or, where that is not the order of the shape,
// channels last. What is left of a whole image is called rows, which it is as well. The attributes have a data_format.
inline void lie_alike(LayoutCall& call, int image) {
  const bool last = is_channels_last(call.inputs[image]) && call.attrs.string("data_format") == "NCHW";
  const TensorType& out = call.output_types[0];
  for (size_t i = 0; i < call.inputs.size(); ++i)
    call.inputs[i] = last ? channels_last(call.input_types[i]) : Layout{};
  call.outputs[0] = last && out.shape.count(2, 4) > 1 ? channels_last(out) : Layout{};
}

// Of `type` between rows and one of the others, or between those.
Launch reorder(const TensorType& type, const Layout& from, const Layout& to);

}  // namespace moonflow::cuda
