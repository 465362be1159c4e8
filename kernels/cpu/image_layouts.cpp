// Images and the memory forms of oneDNN; see image_layouts.h.
#include "kernels/cpu/image_layouts.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu/device.h"

namespace moonflow::cpu {

std::optional<ChannelForm> channel_form(const TensorType& type, const Layout& layout, int axis) {
  const Shape& shape = type.shape;
  const int64_t channels = shape[axis];
  const int64_t after = shape.count(axis + 1, shape.rank());
  if (layout.row_major()) {
    if (after == 1) return ChannelForm{1, 1, shape.count(0, axis), channels, channels};
    return ChannelForm{shape.count(0, axis), channels, after, 1, channels};
  }

  // A private form serves when it is dense, its axes but the channels are in order, and the channels are innermost: all
  // of them, or a block of them.
  if (!is_blocked(layout)) return std::nullopt;
  const Blocked form = blocked(type, layout);
  if (form.rank != shape.rank()) return std::nullopt;
  const bool in_blocks = form.block_count == 1 && form.block_axes[0] == axis;
  if (!in_blocks && (form.block_count != 0 || form.strides[axis] != 1)) return std::nullopt;
  const int64_t lanes = in_blocks ? form.blocks[0] : channels;
  int64_t stride = lanes;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (i != axis && form.padded_dims[i] != form.dims[i]) return std::nullopt;
    const int64_t size = i == axis ? form.padded_dims[i] / lanes : form.dims[i];
    if (size != 1 && form.strides[i] != stride) return std::nullopt;
    stride *= size;
  }
  if (!in_blocks) return ChannelForm{1, 1, shape.count() / channels, channels, channels};
  return ChannelForm{shape.count(0, axis), form.padded_dims[axis] / lanes, after, lanes, channels};
}

namespace {

// With axis i of `form` as axis to[i].
Blocked permuted(const Blocked& form, const std::vector<int>& to) {
  Blocked result = form;
  for (int axis = 0; axis < form.rank; ++axis) {
    result.dims[to[axis]] = form.dims[axis];
    result.padded_dims[to[axis]] = form.padded_dims[axis];
    result.strides[to[axis]] = form.strides[axis];
  }
  for (int64_t i = 0; i < form.block_count; ++i) result.block_axes[i] = to[form.block_axes[i]];
  return result;
}

}  // namespace

Blocked channels_first(const Blocked& form, const ImageFormat& format) {
  if (!format.channels_last) return form;
  const int rank = static_cast<int>(form.rank), channels = rank - 1 - format.spatial_axes;
  std::vector<int> to(rank);
  for (int axis = 0; axis < rank; ++axis) to[axis] = axis < channels ? axis : axis + 1;
  to[rank - 1] = channels;
  return permuted(form, to);
}

Blocked value_order(const Blocked& form, const ImageFormat& format) {
  if (!format.channels_last) return form;
  const int rank = static_cast<int>(form.rank), channels = rank - 1 - format.spatial_axes;
  std::vector<int> to(rank);
  for (int axis = 0; axis < rank; ++axis) to[axis] = axis <= channels ? axis : axis - 1;
  to[channels] = rank - 1;
  return permuted(form, to);
}

namespace {

// Of an image (batch, channels, places...): the channels of a place in blocks of so many, or all together where it is
// 0.
Blocked image_form(const std::vector<int64_t>& dims, int64_t lanes) {
  std::vector<int> order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  if (lanes == 0) std::rotate(order.begin() + 1, order.begin() + 2, order.end());
  return Blocked::dense(dims, order, 1, std::max<int64_t>(lanes, 1));
}

Layout image_layout(const TensorType& type, int64_t lanes, const ImageFormat& format) {
  const ImageSize size = image_size(type.shape, format, "image");
  return layout_of(value_order(image_form({size.batch, size.channels, size.height, size.width}, lanes), format), type);
}

// What image_form was told.
int64_t lanes_of(const Blocked& form) { return form.block_count == 1 ? form.blocks[0] : 0; }

}  // namespace

Layout reshaped_image(const TensorType& type, const Layout& layout, const TensorType& to) {
  const Shape &from = type.shape, &shape = to.shape;
  if (from.rank() < 3 || shape.rank() < 3 || shape[0] != from[0] || shape[1] != from[1]) return {};
  if (!channel_form(type, layout, 1)) return {};
  return layout_of(image_form(shape.dims(), lanes_of(blocked(type, layout))), to);
}

Layout image_layout_like(const Layout& model, const TensorType& model_type, const TensorType& type,
                         const ImageFormat& format) {
  return model.row_major() ? Layout{} : image_layout(type, lanes_of(blocked(model_type, model)), format);
}

Layout channels_last(const TensorType& type, const ImageFormat& format) { return image_layout(type, 0, format); }

void lie_alike(LayoutCall& call, int image) {
  const ImageFormat format = image_format(call.attrs.string("data_format"), 2);
  const TensorType& model_type = call.input_types[image];
  const bool has_form = channel_form(model_type, call.inputs[image], format.channel_axis()).has_value();
  const Layout model = has_form ? call.inputs[image] : Layout{};
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    call.inputs[i] = image_layout_like(model, model_type, call.input_types[i], format);
  }
  call.outputs[0] = image_layout_like(model, model_type, call.output_types[0], format);
}

namespace {

// Channels of a block, or 0 where there are no blocks, or some are padded. What is narrow is cut and joined row-major.
int64_t block_of(const TensorType& image, const Layout& layout) {
  const bool is_dense = !layout.row_major() && layout.bytes == image.bytes() && !is_narrow(image.dtype);
  if (!is_dense || image.shape.rank() != 4 || !channel_form(image, layout, 1)) return 0;
  return lanes_of(blocked(image, layout));
}

}  // namespace

void keep_blocks(LayoutCall& call, const std::vector<int64_t>& cuts) {
  int64_t block = 0;
  TensorType model_type;
  Layout model;
  for (size_t i = 0; i < call.inputs.size() && block == 0; ++i) {
    block = block_of(call.input_types[i], call.inputs[i]);
    if (block != 0) model_type = call.input_types[i], model = call.inputs[i];
  }
  const auto is_whole = [&](const TensorType& type) { return block != 0 && type.shape[1] % block == 0; };
  const auto all_whole = [&](const std::vector<TensorType>& types) {
    return std::all_of(types.begin(), types.end(), is_whole);
  };
  const auto cuts_none = [&] {
    return std::all_of(cuts.begin(), cuts.end(), [&](int64_t cut) { return cut % block == 0; });
  };
  if (!all_whole(call.input_types) || !all_whole(call.output_types) || !cuts_none()) model = {};
  const ImageFormat format = image_format("NCHW", 2);
  for (size_t i = 0; i < call.inputs.size(); ++i)
    call.inputs[i] = image_layout_like(model, model_type, call.input_types[i], format);
  for (size_t i = 0; i < call.outputs.size(); ++i)
    call.outputs[i] = image_layout_like(model, model_type, call.output_types[i], format);
}

std::optional<Blocks> blocks_of(const TensorType& type, const Layout& layout, const ImageFormat& format) {
  constexpr int64_t kLanes = Blocks::kLanes;
  const ImageSize size = image_size(type.shape, format, "image");
  const std::optional<ChannelForm> form = channel_form(type, layout, format.channel_axis());
  if (!form) return std::nullopt;
  const int64_t places = size.height * size.width;
  if (form->lanes == kLanes && form->positions == places) {
    const int64_t channels = form->blocks * kLanes;
    return Blocks{size.height, size.width, channels, channels * places, size.width * kLanes, kLanes, places * kLanes};
  }
  if (form->lanes != size.channels || form->blocks != 1 || size.channels % kLanes != 0) return std::nullopt;
  return Blocks{size.height,   size.width, size.channels, places * size.channels, size.width * size.channels,
                size.channels, kLanes};
}

Layout in_blocks(const TensorType& type, const Layout& offered, const ImageFormat& format) {
  if (blocks_of(type, offered, format)) return offered;
  return image_layout(type, Blocks::kLanes, format);
}

}  // namespace moonflow::cpu
