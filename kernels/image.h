// Images: values with a batch axis, a channel axis and one or two spatial axes, and the ways they lie in memory.
// Convolution, pooling and the bias ops read them through this.
#pragma once

#include <optional>
#include <string>

#include <dnnl.hpp>

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

namespace cpu {

// The form of a value whose channels are on `axis`, or nothing when the layout has no such form.
std::optional<ChannelForm> channel_form(const TensorType& type, const Layout& layout, int axis);

// A descriptor of an image or a filter (with or without an axis for groups in front) from the order of the value's axes
// to the order oneDNN thinks in, channels before height and width, and back.
dnnl::memory::desc channels_first(const dnnl::memory::desc& desc, const ImageFormat& format);
dnnl::memory::desc value_order(const dnnl::memory::desc& desc, const ImageFormat& format);
// The row-major image as (batch, channels, height, width) with its strides.
dnnl::memory::desc plain_image(const ImageSize& size, const ImageFormat& format);

// The layout that stores an image in the form which `model`, a layout with a channel form, gives to `model_type`.
Layout image_layout_like(const Layout& model, const TensorType& model_type, const TensorType& type,
                         const ImageFormat& format);

// An image in blocks of 16 channels, or channels last in a multiple of 16, for kernels that take 16 channels at a time:
// the steps between its elements.
struct Blocks {
  static constexpr int64_t kLanes = 16;

  int64_t height, width;
  int64_t channels;  // with the padding of the last block
  int64_t batch, row, column, block;
};

std::optional<Blocks> blocks_of(const TensorType& type, const Layout& layout, const ImageFormat& format);
// `offered` where it is such a form, else blocks of 16 channels.
Layout in_blocks(const TensorType& type, const Layout& offered, const ImageFormat& format);

}  // namespace cpu
}  // namespace moonflow
