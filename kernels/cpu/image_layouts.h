// How oneDNN keeps images, and what kernels of our own make of that.
#pragma once

#include <optional>

#include "kernels/cpu/blocked.h"
#include "kernels/image.h"

namespace moonflow::cpu {

// The form of a value whose channels are on `axis`, or nothing when the layout has no such form.
std::optional<ChannelForm> channel_form(const TensorType& type, const Layout& layout, int axis);

// The form of an image or a filter (with or without an axis for groups in front) from the order of the value's axes to
// the order oneDNN thinks in, channels before the spatial axes, and back.
Blocked channels_first(const Blocked& form, const ImageFormat& format);
Blocked value_order(const Blocked& form, const ImageFormat& format);

// Of an image (batch, channels, places...) in a form of channels that is not row-major: how the same memory is stored
// when the places are arranged anew, `to`. Row-major where there is more to it than that.
Layout reshaped_image(const TensorType& type, const Layout& layout, const TensorType& to);

// The layout that stores an image in the form which `model`, a layout with a channel form, gives to `model_type`.
Layout image_layout_like(const Layout& model, const TensorType& model_type, const TensorType& type,
                         const ImageFormat& format);

// That of an image with all channels of a place side by side.
Layout channels_last(const TensorType& type, const ImageFormat& format);

// For ops that take an image as it comes, in rows or in blocks of channels, and give an image in the same form. `image`
// is the input whose form counts; the others are asked for in that form too. The attributes have a data_format.
void lie_alike(LayoutCall& call, int image);

// For ops that move whole planes of images (batch, channels, height, width): in blocks of channels without padding they
// lie together as they do in rows, as long as no block is cut. So all inputs and outputs take such a form where an
// input has it, and all have whole blocks, as have the channels before each of the `cuts`; else all are row-major.
void keep_blocks(LayoutCall& call, const std::vector<int64_t>& cuts = {});

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

}  // namespace moonflow::cpu
