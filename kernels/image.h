// Images: values with a batch axis, a channel axis and one or two spatial axes, and the ways they lie in memory.
// Convolution, pooling and the bias ops read them through this.
#pragma once

#include <string>

#include "engine/op.h"

namespace moonflow {

// Where the channels are: "NCHW" or "NHWC"; "NCW" or "NWC" when there is one spatial axis.
struct ImageFormat {
  int spatial_axes = 2;
  bool channels_last = false;

  int rank() const { return spatial_axes + 2; }
  int channel_axis() const { return channels_last ? rank() - 1 : 1; }
  int spatial_axis(int i) const { return (channels_last ? 1 : 2) + i; }
  // "(batch, channels, height, width)", for messages.
  const char* axes() const;
};

ImageFormat image_format(const std::string& data_format, int spatial_axes);

// The axis of the channels in a value of any rank: the last for "N...C", else 1.
int channel_axis(const std::string& data_format, int rank);

// The sizes of an image, whatever their order. An image with one spatial axis has height 1.
struct ImageSize {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t height = 1;
  int64_t width = 0;

  constexpr int64_t count() const { return batch * channels * height * width; }
  Shape shape(const ImageFormat& format) const;
};

// Checks the rank; `what` names the value in the message.
ImageSize image_size(const Shape& shape, const ImageFormat& format, const char* what);

// How channels lie in memory: element (outer, channel, position) is at
//   ((outer * blocks + channel / lanes) * positions + position) * lanes + channel % lanes.
// NCHW has one lane; NHWC has one block with all channels as lanes; oneDNN's blocked forms have 4, 8 or 16 lanes, and
// it may keep a value in NHWC that is NCHW to the user.
struct ChannelForm {
  int64_t outer = 1;
  int64_t blocks = 1;
  int64_t positions = 1;
  int64_t lanes = 1;
  int64_t channels = 0;  // without the padding of the last block

  int64_t count() const { return outer * blocks * positions * lanes; }
};

}  // namespace moonflow
