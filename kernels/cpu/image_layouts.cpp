// Images and the memory forms of oneDNN; see image_layouts.h.
#include "kernels/cpu/image_layouts.h"

#include <algorithm>

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
  const dnnl_memory_desc_t desc = describe(type, layout).data;
  if (desc.format_kind != dnnl_blocked || desc.ndims != shape.rank() || desc.offset0 != 0) return std::nullopt;
  const dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  const bool blocked = blocking.inner_nblks == 1 && blocking.inner_idxs[0] == axis;
  if (!blocked && (blocking.inner_nblks != 0 || blocking.strides[axis] != 1)) return std::nullopt;
  const int64_t lanes = blocked ? blocking.inner_blks[0] : channels;
  int64_t stride = lanes;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (i != axis && desc.padded_dims[i] != desc.dims[i]) return std::nullopt;
    const int64_t size = i == axis ? desc.padded_dims[i] / lanes : desc.dims[i];
    if (size != 1 && blocking.strides[i] != stride) return std::nullopt;
    stride *= size;
  }
  if (!blocked) return ChannelForm{1, 1, shape.count() / channels, channels, channels};
  return ChannelForm{shape.count(0, axis), desc.padded_dims[axis] / lanes, after, lanes, channels};
}

dnnl::memory::desc channels_first(const dnnl::memory::desc& desc, const ImageFormat& format) {
  if (!format.channels_last) return desc;
  const int rank = desc.data.ndims, channels = rank - 1 - format.spatial_axes;
  std::vector<int> to(rank);
  for (int axis = 0; axis < rank; ++axis) to[axis] = axis < channels ? axis : axis + 1;
  to[rank - 1] = channels;
  return desc.permute_axes(to);
}

dnnl::memory::desc value_order(const dnnl::memory::desc& desc, const ImageFormat& format) {
  if (!format.channels_last) return desc;
  const int rank = desc.data.ndims, channels = rank - 1 - format.spatial_axes;
  std::vector<int> to(rank);
  for (int axis = 0; axis < rank; ++axis) to[axis] = axis <= channels ? axis : axis - 1;
  to[channels] = rank - 1;
  return desc.permute_axes(to);
}

dnnl::memory::desc plain_image(const ImageSize& size, const ImageFormat& format) {
  using Tag = dnnl::memory::format_tag;
  constexpr auto kFloat = dnnl::memory::data_type::f32;
  if (format.spatial_axes == 1)
    return {{size.batch, size.channels, size.width}, kFloat, format.channels_last ? Tag::nwc : Tag::ncw};
  return {{size.batch, size.channels, size.height, size.width}, kFloat, format.channels_last ? Tag::nhwc : Tag::nchw};
}

Layout reshaped_image(const TensorType& type, const Layout& layout, const TensorType& to) {
  const Shape& shape = to.shape;
  const int rank = shape.rank();
  if (type.shape.rank() < 3 || rank < 3 || shape[0] != type.shape[0] || shape[1] != type.shape[1]) return {};
  const std::optional<ChannelForm> form = channel_form(type, layout, 1);
  if (!form) return {};
  dnnl::memory::desc desc = describe(type, layout);
  dnnl_memory_desc_t& data = desc.data;
  const bool blocked = data.format_desc.blocking.inner_nblks == 1;
  data.ndims = rank;
  int64_t stride = form->lanes;
  for (int axis = rank - 1; axis >= 2; stride *= shape[axis--]) {
    data.dims[axis] = data.padded_dims[axis] = shape[axis];
    data.padded_offsets[axis] = 0;
    data.format_desc.blocking.strides[axis] = stride;
  }
  data.format_desc.blocking.strides[1] = blocked ? stride : 1;
  data.format_desc.blocking.strides[0] = stride * form->blocks;
  return layout_of(desc, to);
}

Layout image_layout_like(const Layout& model, const TensorType& model_type, const TensorType& type,
                         const ImageFormat& format) {
  if (model.row_major()) return {};
  using Tag = dnnl::memory::format_tag;
  const dnnl_blocking_desc_t blocking = describe(model_type, model).data.format_desc.blocking;
  Tag tag = Tag::nhwc;
  if (blocking.inner_nblks == 1) {
    const int64_t lanes = blocking.inner_blks[0];
    tag = lanes == 16 ? Tag::nChw16c : lanes == 8 ? Tag::nChw8c : Tag::nChw4c;
  }
  const ImageSize size = image_size(type.shape, format, "image");
  const dnnl::memory::desc desc({size.batch, size.channels, size.height, size.width}, dnnl::memory::data_type::f32,
                                tag);
  return layout_of(value_order(desc, format), type);
}

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
  const dnnl_blocking_desc_t blocking = describe(image, layout).data.format_desc.blocking;
  return blocking.inner_nblks == 1 ? blocking.inner_blks[0] : 0;
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
  const ImageSize size = image_size(type.shape, format, "image");
  const dnnl::memory::desc desc({size.batch, size.channels, size.height, size.width}, dnnl_type(type.dtype),
                                dnnl::memory::format_tag::nChw16c);
  return layout_of(value_order(desc, format), type);
}

}  // namespace moonflow::cpu
