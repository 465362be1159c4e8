// A value seen channel by channel, in rows or with its channels last.
#pragma once

#include "kernels/cuda/axes.h"
#include "kernels/cuda/device.h"
#include "kernels/reduction.h"

namespace moonflow::cuda {

// Element i belongs to channel i / inner % channels; a channel has `places` elements, the first at channel * inner.
struct Channels {
  int64_t channels, inner, places;
  LongDivisor by_inner, by_channels;

  // Input `x` of the call, whose attribute "axis" says where the channels are.
  Channels(const KernelCall& call, int x) {
    const Shape& shape = call.inputs[x].shape;
    const int axis = wrap_axis(call.attrs.integer("axis"), shape.rank());
    const bool last = is_channels_last(call.input_layouts[x]);
    channels = shape[axis];
    inner = last ? 1 : shape.count(axis + 1, shape.rank());
    places = shape.count(0, axis) * shape.count(axis + 1, shape.rank());
    by_inner = LongDivisor(inner);
    by_channels = LongDivisor(channels);
  }

  int64_t count() const { return places * channels; }
  // What is summed for each channel.
  reduce::Groups groups() const {
    return reduce::Groups({inner > 0 ? places / inner : 0, channels, inner}, {true, false, true});
  }
  MOONFLOW_DEVICE int64_t of(int64_t i) const {
    int64_t channel;
    by_channels.quotient(by_inner.quotient(i), channel);
    return channel;
  }
};

// Images keep their channels last where the first input that is one has them there; `axis` is that of the channels.
inline void keep_channels_last(LayoutCall& call, int64_t axis) {
  const auto is_image = [](const TensorType& type) { return type.shape.rank() > 2; };
  bool last = false;
  for (size_t i = 0; i < call.inputs.size() && !last; ++i) {
    if (!call.present[i] || !is_image(call.input_types[i])) continue;
    last = is_channels_last(call.inputs[i]) && wrap_axis(axis, call.input_types[i].shape.rank()) == 1;
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool follows = last && call.present[i] && is_image(call.input_types[i]);
    call.inputs[i] = follows ? channels_last(call.input_types[i]) : Layout{};
  }
  for (size_t i = 0; i < call.outputs.size(); ++i)
    call.outputs[i] = last && is_image(call.output_types[i]) ? channels_last(call.output_types[i]) : Layout{};
}

}  // namespace moonflow::cuda
