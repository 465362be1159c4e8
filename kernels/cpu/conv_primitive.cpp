// The convolution through oneDNN. Every argument is left to the library (format any), which then picks blocked forms
// and its fastest kernel; the plan carries these forms along, and what does not fit is reordered around the primitive.
#include <string_view>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/primitive.h"

namespace moonflow::cpu {
namespace {

using dnnl::memory;
using dnnl::prop_kind;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;
constexpr auto kFloat = memory::data_type::f32;

memory::desc any(const memory::desc& desc) {
  const Blocked form = blocked(desc);
  return {{form.dims.begin(), form.dims.begin() + form.rank}, kFloat, memory::format_tag::any};
}

// Of 1x1 filters with strides the library first gathers the places it needs, a register of channels at once. Where
// channels come last and are fewer, its filter gradient then writes beyond its scratch, and threads over one another's.
bool gathers_too_much(const Conv& conv) {
  constexpr int64_t kWidestRegister = 16;
  const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
  return vertical.size == 1 && horizontal.size == 1 && (vertical.stride > 1 || horizontal.stride > 1) &&
         conv.channels_per_group() < kWidestRegister;
}

// The row-major image as (batch, channels, height, width) with its strides. One of a single spatial axis has a height
// of 1: of those without any the library knows no fast depthwise kernels.
memory::desc plain_image(const ImageSize& size, const ImageFormat& format) {
  using Tag = memory::format_tag;
  return {{size.batch, size.channels, size.height, size.width}, kFloat, format.channels_last ? Tag::nhwc : Tag::nchw};
}

// The forms of values, whose axes are in the order of their types, as the library has them, channels first and with a
// height, and back. Blocks are of channels alone.
Blocked library_form(const Blocked& form, bool is_filter, ImageFormat format) {
  if (is_filter) format.spatial_axes = 2;
  Blocked result = channels_first(form, format);
  if (format.spatial_axes == 2) return result;
  for (Blocked::Each* each : {&result.dims, &result.padded_dims, &result.strides}) (*each)[3] = (*each)[2];
  result.dims[2] = result.padded_dims[2] = 1;
  result.strides[2] = result.dims[3] * result.strides[3];
  ++result.rank;
  return result;
}
Blocked own_form(Blocked form, bool is_filter, ImageFormat format) {
  if (is_filter) format.spatial_axes = 2;
  if (format.spatial_axes == 1) {
    for (Blocked::Each* each : {&form.dims, &form.padded_dims, &form.strides}) {
      (*each)[2] = (*each)[3];
      (*each)[3] = 0;
    }
    --form.rank;
  }
  return value_order(form, format);
}

// Images of channels-last jobs stay as they are, so that such a chain has no reorders.
memory::desc preferred_image(const ImageSize& size, const Conv& conv) {
  const memory::desc plain = plain_image(size, conv.format);
  return conv.format.channels_last && !gathers_too_much(conv) ? plain : any(plain);
}

// The row-major filter, (groups,) filters, channels, height, width.
memory::desc plain_filter(const Conv& conv) {
  const int64_t channels = conv.channels_per_group(), rows = conv.windows[0].size, columns = conv.windows[1].size;
  memory::dims dims{conv.filters_per_group(), channels, rows, columns};
  memory::dims strides{rows * columns * channels, rows * columns, columns, 1};
  if (conv.format.channels_last) strides = {rows * columns * channels, 1, columns * channels, channels};
  if (conv.groups > 1) {
    strides.insert(strides.begin(), dims[0] * strides[0]);
    dims.insert(dims.begin(), conv.groups);
  }
  return {dims, kFloat, strides};
}

struct Geometry {
  memory::dims strides, dilates, before, after;

  explicit Geometry(const Conv& conv) {
    for (const Window& window : conv.windows) {
      strides.push_back(window.stride);
      dilates.push_back(window.dilation - 1);
      before.push_back(window.before);
      after.push_back(window.after);
    }
  }
};

// A primitive of oneDNN's loops for any processor is none: products of our own are faster, and their sums the same for
// any number of threads. Elsewhere than on x86 it may have no others. So is one of a product for each channel, which it
// has where depthwise windows are wide.
template <class Descriptor>
Descriptor fast(Descriptor desc, const Conv& conv) {
  const std::string_view name = desc.impl_info_str();
  const bool is_depthwise = conv.channels_per_group() == 1 && conv.groups > 1;
  if (name.find("ref") != std::string_view::npos || (is_depthwise && name.find("gemm") != std::string_view::npos))
    throw dnnl::error(dnnl_unimplemented, "oneDNN has no convolution of its own for this processor");
  return desc;
}

// An argument of the primitive and the value of the op that it is.
struct Argument {
  int arg;
  bool is_output;
  int index;
  memory::desc plain;   // row-major
  memory::desc wanted;  // by the primitive

  bool is_filter() const { return arg == DNNL_ARG_WEIGHTS || arg == DNNL_ARG_DIFF_WEIGHTS; }
};

struct ConvPrimitive {
  dnnl::primitive primitive;
  memory::desc scratchpad;
  std::vector<Argument> arguments;
};

dnnl::convolution_forward::primitive_desc forward(const Conv& conv, bool bias, Activation activation, prop_kind kind,
                                                  const dnnl::engine& engine) {
  const Geometry at(conv);
  const memory::desc x = preferred_image(conv.image, conv), out = preferred_image(conv.out, conv);
  const memory::desc filter = any(plain_filter(conv));
  const memory::desc each_filter({conv.filters()}, kFloat, memory::format_tag::a);
  const auto describe = [&](const auto&... values) {
    return described<dnnl::convolution_forward>(engine, attributes(activation), kind, kDirect, values..., at.strides,
                                                at.dilates, at.before, at.after);
  };
  return bias ? describe(x, filter, each_filter, out) : describe(x, filter, out);
}

ConvPrimitive make(const Conv& conv, ConvKind kind, Activation activation, Device& device) {
  const dnnl::engine& engine = dnnl_engine(device);
  const Geometry at(conv);
  const memory::desc plain_x = plain_image(conv.image, conv.format), plain_out = plain_image(conv.out, conv.format);
  const memory::desc filter = plain_filter(conv), each_filter({conv.filters()}, kFloat, memory::format_tag::a);
  const memory::desc x = preferred_image(conv.image, conv), out = preferred_image(conv.out, conv);

  if (kind == ConvKind::Forward || kind == ConvKind::ForwardBias) {
    const bool bias = kind == ConvKind::ForwardBias;
    // Also in jobs that only predict: forward_inference would choose channels last on AVX-512, which is no faster over
    // a whole network, and in a training job every gradient would then ask for a reorder.
    const auto desc = fast(forward(conv, bias, activation, prop_kind::forward_training, engine), conv);
    ConvPrimitive result{generated<dnnl::convolution_forward>(desc, device),
                         desc.scratchpad_desc(),
                         {{DNNL_ARG_SRC, false, 0, plain_x, desc.src_desc()},
                          {DNNL_ARG_WEIGHTS, false, 1, filter, desc.weights_desc()},
                          {DNNL_ARG_DST, true, 0, plain_out, desc.dst_desc()}}};
    if (bias) result.arguments.push_back({DNNL_ARG_BIAS, false, 2, each_filter, each_filter});
    return result;
  }

  const auto hint = forward(conv, false, Activation::None, prop_kind::forward_training, engine);
  if (kind == ConvKind::InputGrad) {
    const auto desc = fast(
        described_backward<dnnl::convolution_backward_data>(engine, user_scratchpad(), hint, kDirect, x, any(filter),
                                                            out, at.strides, at.dilates, at.before, at.after),
        conv);
    return {generated<dnnl::convolution_backward_data>(desc, device),
            desc.scratchpad_desc(),
            {{DNNL_ARG_DIFF_DST, false, 0, plain_out, desc.diff_dst_desc()},
             {DNNL_ARG_WEIGHTS, false, 1, filter, desc.weights_desc()},
             {DNNL_ARG_DIFF_SRC, true, 0, plain_x, desc.diff_src_desc()}}};
  }

  const bool bias = kind == ConvKind::FilterBiasGrad;
  const auto describe = [&](const auto&... values) {
    return described_backward<dnnl::convolution_backward_weights>(engine, user_scratchpad(), hint, kDirect, values...,
                                                                  at.strides, at.dilates, at.before, at.after);
  };
  const auto desc = fast(bias ? describe(x, any(filter), each_filter, out) : describe(x, any(filter), out), conv);
  ConvPrimitive result{generated<dnnl::convolution_backward_weights>(desc, device),
                       desc.scratchpad_desc(),
                       {{DNNL_ARG_DIFF_DST, false, 0, plain_out, desc.diff_dst_desc()},
                        {DNNL_ARG_SRC, false, 1, plain_x, desc.src_desc()},
                        {DNNL_ARG_DIFF_WEIGHTS, true, 0, filter, desc.diff_weights_desc()}}};
  if (bias) result.arguments.push_back({DNNL_ARG_DIFF_BIAS, true, 1, each_filter, each_filter});
  return result;
}

Launch launch_of(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call) {
  Launch without;
  if (activation != Activation::None) without = launch_of(conv, kind, Activation::None, call);
  const ThreadLimit limit(conv_parts(conv));
  const ConvPrimitive made = make(conv, kind, activation, call.device);
  PrimitiveLaunch launch(call, made.primitive, made.scratchpad);
  for (const Argument& argument : made.arguments) {
    const TensorType& type = argument.is_output ? call.outputs[argument.index] : call.inputs[argument.index];
    const Layout& layout =
        argument.is_output ? call.output_layouts[argument.index] : call.input_layouts[argument.index];
    const memory::desc stored =
        layout.row_major() ? argument.plain
                           : descriptor(library_form(blocked(type, layout), argument.is_filter(), conv.format), kFloat);
    if (argument.is_output) {
      launch.write(argument.arg, argument.index, stored, argument.wanted);
    } else {
      launch.read(argument.arg, argument.index, stored, argument.wanted);
    }
  }
  return without ? launch.finish(activation, std::move(without)) : launch.finish();
}

}  // namespace

bool conv_layouts(const Conv& conv, ConvKind kind, Activation activation, LayoutCall& call) try {
  const ThreadLimit limit(conv_parts(conv));
  for (const Argument& argument : make(conv, kind, activation, call.device).arguments) {
    const TensorType& type = argument.is_output ? call.output_types[argument.index] : call.input_types[argument.index];
    Layout& layout = argument.is_output ? call.outputs[argument.index] : call.inputs[argument.index];
    const bool plain = argument.wanted == argument.plain || type.shape.rank() == 1;
    layout = plain ? Layout{} : layout_of(own_form(blocked(argument.wanted), argument.is_filter(), conv.format), type);
  }
  return true;
} catch (const dnnl::error&) {
  return false;
}

Launch conv_primitive(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call) try {
  return launch_of(conv, kind, activation, call);
} catch (const dnnl::error&) {
  return {};
}

}  // namespace moonflow::cpu
