// Convolutions on CUDA, over one or two spatial axes: the library's (kernels/cuda/convolution.h), but for small
// gradients in TF32, of which we have faster ones (kernels/cuda/convolution_gradients.h). Strict float32 is in
// rows, for which it has kernels that are as good as any. On tensor cores, which the narrow dtypes and TF32 are for,
// channels come last, so that neighbours are multiplied at once. What the library has no engine for is computed
// directly.
//
// Of what is narrow sums are float32, and rounded once, when they are stored: the library has no engines that store
// anything else. Gradients of a filter and of a bias are float32 for an update; the former is widened where it is
// turned into rows, which a variable is in.
#include <algorithm>
#include <functional>

#include "kernels/conv.h"
#include "kernels/cuda/activate.h"
#include "kernels/cuda/axes.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/channel_sums.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/convolution_gradients.h"
#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/row_major.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct AddUp {
  const T *x, *addend;
  T* sum;
  Activation activation;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    sum[i] = T(activated(activation, Computed<T>(x[i]) + Computed<T>(addend[i])));
  }
};

// The gradient of a filter, from channels last, of which there may be too many, to rows.
template <class From, class To>
struct FilterToRows {
  const From* from;
  To* to;
  int64_t places, stored_channels;
  LongDivisor by_channels, by_places;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    int64_t place, channel;
    const int64_t filter = by_channels.quotient(by_places.quotient(i, place), channel);
    to[i] = To(from[(filter * places + place) * stored_channels + channel]);
  }
};

// An image gets zeros around it. Channels last are `inner` neighbours, channels first are of the outer sizes.
template <class T>
struct WithZeros {
  const T* image;
  T* padded;
  int64_t height, width, above, left, inner;
  LongDivisor by_inner, by_padded_width, by_padded_height;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    int64_t c, x, y;
    const int64_t outer = by_padded_height.quotient(by_padded_width.quotient(by_inner.quotient(i, c), x), y);
    y -= above;
    x -= left;
    const bool inside = y >= 0 && y < height && x >= 0 && x < width;
    padded[i] = inside ? image[((outer * height + y) * width + x) * inner + c] : T(0);
  }
};

// ---- layouts -------------------------------------------------------------------------------------------------

constexpr int64_t kPaddedChannels = 8;

// Images with few channels have zeros for the rest, since of what is narrow the library takes 8 at once. It would pad
// them itself, in a workspace larger than the images: 205 MB for 256 images of 3 channels, 224 by 224.
bool pads(const Conv& conv, DType dtype) {
  return is_narrow(dtype) && conv.groups == 1 && conv.image.channels < kPaddedChannels;
}

// Of what has no places, the same elements lie at the same places with channels first and last.
bool is_single_place(const Conv& conv) { return conv.windows[0].size * conv.windows[1].size == 1; }

void choose_layouts(ConvKind kind, int spatial_axes, LayoutCall& call) {
  lie_in_rows(call);
  const std::vector<TensorType>& types = call.input_types;
  const DType dtype = types[0].dtype;
  if (!is_narrow(dtype) && !(dtype == DType::Float32 && call.allow_tf32)) return;

  const Conv conv = conv_of_inputs(kind, call.attrs, types[0].shape, types[1].shape, spatial_axes);
  const bool padded = pads(conv, dtype);
  const auto last = [&](const TensorType& type) { return conv.format.channels_last ? Layout{} : channels_last(type); };
  const auto with_channels_of_image = [&](const TensorType& type) {
    return padded ? padded_channels_last(type, conv.format.channel_axis(), kPaddedChannels) : last(type);
  };
  if (is_filter_grad(kind)) {  // which meets the variable, and so leaves in rows
    call.inputs = {last(types[0]), with_channels_of_image(types[1])};
    return;
  }
  const TensorType& out = call.output_types[0];
  call.inputs[0] = is_input_grad(kind) ? last(types[0]) : with_channels_of_image(types[0]);
  if (padded || !is_single_place(conv)) call.inputs[1] = with_channels_of_image(types[1]);
  if (kind == ConvKind::ForwardAdd) call.inputs[3] = last(types[3]);
  call.outputs[0] = is_input_grad(kind) ? with_channels_of_image(out) : last(out);
}

// The sizes as they are stored, where the image, or its gradient, lies in this layout.
Conv stored(Conv conv, const Layout& image) {
  if (!image.row_major()) conv.format.channels_last = true;
  if (is_padded(image)) conv.image.channels = kPaddedChannels;
  return conv;
}

// ---- launchers -----------------------------------------------------------------------------------------------

void* behind(void* memory, int64_t bytes) { return static_cast<char*>(memory) + bytes; }

// A convolution and the scratch it wants.
ConvolutionLaunch prepare_convolution(Convolutions& library, const ConvolutionCall& call, int64_t& scratch_bytes) {
  if (call.conv.image.count() > 0 && call.conv.out.count() > 0) {
    if (ConvolutionLaunch launch = library.prepare(call, scratch_bytes)) return launch;
  }
  scratch_bytes = 0;
  return visit_fractions(call.dtype, [&](auto zero) { return direct_convolution<decltype(zero)>(call); });
}

// conv1d has no choice of algorithm.
bool asks_for(const char* wanted, const Attrs& attrs) {
  const AttrValue* const algorithm = attrs.find("algorithm");
  return algorithm != nullptr && *algorithm == AttrValue(std::string(wanted));
}

ConvolutionCall wanted_of(const Conv& conv, ConvKind kind, const KernelCall& call) {
  ConvolutionCall wanted{conv, kind, call.inputs[0].dtype, false, asks_for("direct", call.attrs)};
  if (asks_for("timed", call.attrs)) wanted.timed_on = &call.device;
  if (call.allow_tf32) wanted.precision = Precision::Tf32;
  return wanted;
}

// A forward convolution, perhaps with a bias of its dtype or one that is rounded to it. The launch writes `out`.
using ForwardLaunch = std::function<void(const LaunchCall& at, void* out, void* scratch)>;
ForwardLaunch prepare_forward(Convolutions& library, ConvolutionCall wanted, const KernelCall& call, int64_t& scratch) {
  const ConvolutionLaunch launch = prepare_convolution(library, wanted, scratch);
  const bool rounds = wanted.bias && call.inputs[2].dtype != wanted.dtype;
  const int64_t filters = wanted.conv.filters(), workspace = aligned(scratch);
  if (rounds) scratch = workspace + filters * size_of(wanted.dtype);
  return [=, bias = wanted.bias, dtype = wanted.dtype](const LaunchCall& at, void* out, void* memory) {
    void* shift = bias ? at.inputs[2] : nullptr;
    if (rounds) {
      shift = behind(memory, workspace);
      visit_narrow(dtype, [&](auto zero) {
        using Half = decltype(zero);
        for_each(at.stream, filters, Round<Half>{at.input<float>(2), static_cast<Half*>(shift)});
      });
    }
    launch(at.stream, {at.inputs[0], at.inputs[1], out, shift, memory});
  };
}

Launch prepare_out(Convolutions& library, ConvKind kind, int spatial_axes, KernelCall& call) {
  const Conv conv = conv_of(call.attrs, call.inputs[0].shape, call.inputs[1].shape, spatial_axes);
  ConvolutionCall wanted = wanted_of(stored(conv, call.input_layouts[0]), ConvKind::Forward, call);
  wanted.bias = kind == ConvKind::ForwardBias;
  const ForwardLaunch launch = prepare_forward(library, wanted, call, call.scratch_bytes);
  return [launch, activation = activation_of(call.attrs), dtype = wanted.dtype,
          count = call.outputs[0].count()](const LaunchCall& at) {
    launch(at, at.outputs[0], at.scratch);
    activate(at.stream, activation, dtype, count, at.outputs[0]);
  };
}

// The output may be the addend's memory, so the convolution goes to scratch.
Launch prepare_sum(Convolutions& library, KernelCall& call) {
  const Conv conv = conv_of(call.attrs, call.inputs[0].shape, call.inputs[1].shape, 2);
  ConvolutionCall wanted = wanted_of(stored(conv, call.input_layouts[0]), ConvKind::Forward, call);
  wanted.bias = true;
  const int64_t bytes = aligned(call.outputs[0].bytes());
  const ForwardLaunch launch = prepare_forward(library, wanted, call, call.scratch_bytes);
  call.scratch_bytes += bytes;
  return visit_fractions(wanted.dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [launch, bytes, count = call.outputs[0].count(),
            activation = activation_of(call.attrs)](const LaunchCall& at) {
      launch(at, at.scratch, behind(at.scratch, bytes));
      const T* const sums = static_cast<const T*>(at.scratch);
      for_each(at.stream, count, AddUp<T>{sums, at.input<T>(3), at.output<T>(0), activation});
    };
  });
}

Launch prepare_input_grad(Convolutions& library, int spatial_axes, KernelCall& call) {
  const Conv conv = conv_of_inputs(ConvKind::InputGrad, call.attrs, call.inputs[0].shape, call.inputs[1].shape,
                                   spatial_axes);
  const ConvolutionCall wanted = wanted_of(stored(conv, call.output_layouts[0]), ConvKind::InputGrad, call);
  ConvolutionLaunch launch = input_gradient(call.device, wanted);
  if (!launch) launch = prepare_convolution(library, wanted, call.scratch_bytes);
  return [launch](const LaunchCall& at) {
    launch(at.stream, {at.outputs[0], at.inputs[1], at.inputs[0], nullptr, at.scratch});
  };
}

// What a convolution has left at the front of its scratch as the gradient of a filter goes to the output. Where both
// have one order, it has one place, and all of a filter, or of a place with its channels last, for channels.
template <class From, class To>
Launch filter_to_rows(const Conv& given, const Conv& stored) {
  const int64_t all_places = given.windows[0].size * given.windows[1].size;
  const int64_t count = given.filters() * all_places * given.channels_per_group();
  int64_t channels = given.channels_per_group(), stored_channels = stored.channels_per_group(), places = all_places;
  if (stored.format.channels_last == given.format.channels_last) {
    places = 1;
    if (!given.format.channels_last) channels = stored_channels = channels * all_places;
  }
  const FilterToRows<From, To> turn{
      nullptr, nullptr, places, stored_channels, LongDivisor(channels), LongDivisor(places)};
  return [turn, count](const LaunchCall& at) {
    FilterToRows<From, To> bound = turn;
    bound.from = static_cast<const From*>(at.scratch);
    bound.to = at.output<To>(0);
    for_each(at.stream, count, bound);
  };
}

// The same convolution of an image that brings what is before it more than after it, or after it more than before.
Conv padded_evenly(Conv conv) {
  for (Window& window : conv.windows) {
    const int64_t both = std::min(window.before, window.after);
    window.in += window.before + window.after - 2 * both;
    window.before = window.after = both;
  }
  conv.image.height = conv.windows[0].in;
  conv.image.width = conv.windows[1].in;
  return conv;
}

// Puts the image of `given` to where that of `even` is to be, which is what padded_evenly made of it.
template <class T>
std::function<void(Stream&, const void* image, void* padded)> add_zeros(const Conv& given, const Conv& even) {
  const ImageSize &size = given.image, &to = even.image;
  const int64_t inner = given.format.channels_last ? size.channels : 1;
  const WithZeros<T> add{nullptr,
                         nullptr,
                         size.height,
                         size.width,
                         given.windows[0].before - even.windows[0].before,
                         given.windows[1].before - even.windows[1].before,
                         inner,
                         LongDivisor(inner),
                         LongDivisor(to.width),
                         LongDivisor(to.height)};
  return [add, count = to.count()](Stream& stream, const void* image, void* padded) {
    WithZeros<T> bound = add;
    bound.image = static_cast<const T*>(image);
    bound.padded = static_cast<T*>(padded);
    for_each(stream, count, bound);
  };
}

Launch prepare_filter_grad(Convolutions& library, ConvKind kind, int spatial_axes, KernelCall& call) {
  const Conv given = conv_of_inputs(kind, call.attrs, call.inputs[0].shape, call.inputs[1].shape, spatial_axes);
  const Conv conv = stored(given, call.input_layouts[1]);
  const DType dtype = call.inputs[0].dtype, result = call.outputs[0].dtype;
  int64_t workspace = 0;
  ConvolutionCall wanted = wanted_of(conv, ConvKind::FilterGrad, call);
  // Engines for tensor cores take any padding. Of those that are strict only a slow one does, so a copy is padded.
  std::function<void(Stream&, const void*, void*)> pad;
  int64_t padded_bytes = 0;
  if (!wanted.may_use_tensor_cores() && !is_padded_evenly(conv)) {
    wanted.conv = padded_evenly(conv);
    padded_bytes = aligned(wanted.conv.image.count() * size_of(dtype));
    pad = dtype == DType::Float64 ? add_zeros<double>(conv, wanted.conv) : add_zeros<float>(conv, wanted.conv);
  }
  const bool stays = conv.format.channels_last == given.format.channels_last;
  ConvolutionLaunch launch = filter_gradient(call.device, wanted, !stays, workspace);
  bool in_place = static_cast<bool>(launch);
  if (!launch) {
    launch = prepare_convolution(library, wanted, workspace);
    in_place = dtype == result && conv.image.channels == given.image.channels && (stays || is_single_place(given));
  }
  const int64_t grad_bytes = in_place ? 0 : aligned(conv.filter_size().count() * size_of(dtype));
  Launch to_rows;
  if (!in_place && dtype == DType::Float32) to_rows = filter_to_rows<float, float>(given, conv);
  if (!in_place && is_narrow(dtype)) {
    to_rows = visit_narrow(dtype, [&](auto zero) {
      using T = decltype(zero);
      return result == DType::Float32 ? filter_to_rows<T, float>(given, conv) : filter_to_rows<T, T>(given, conv);
    });
  }
  ChannelSumLaunch sum;
  int64_t sum_bytes = 0;
  if (kind == ConvKind::FilterBiasGrad) {
    const int64_t plane = conv.out.height * conv.out.width;
    const bool last = conv.format.channels_last;
    sum = channel_sums({last ? conv.out.batch * plane : conv.out.batch, conv.filters(), last ? 1 : plane}, dtype,
                       result, sum_bytes);
  }
  call.scratch_bytes = std::max(grad_bytes + padded_bytes + workspace, sum_bytes);
  return [=](const LaunchCall& at) {
    void* const grad = in_place ? at.outputs[0] : at.scratch;
    void* image = at.inputs[1];
    if (pad) {
      image = behind(at.scratch, grad_bytes);
      pad(at.stream, at.inputs[1], image);
    }
    launch(at.stream, {image, grad, at.inputs[0], nullptr, behind(at.scratch, grad_bytes + padded_bytes)});
    if (to_rows) to_rows(at);
    if (sum) sum(at.stream, at.inputs[0], at.outputs[1], at.scratch);
  };
}

}  // namespace

void add_conv(Kernels& kernels) {
  const std::shared_ptr<Convolutions> library = make_convolutions();
  const auto add = [&](int spatial_axes, const char* suffix, ConvKind kind) {
    const auto prepare = [=](KernelCall& call) {
      if (kind == ConvKind::ForwardAdd) return prepare_sum(*library, call);
      if (is_forward(kind)) return prepare_out(*library, kind, spatial_axes, call);
      if (is_input_grad(kind)) return prepare_input_grad(*library, spatial_axes, call);
      return prepare_filter_grad(*library, kind, spatial_axes, call);
    };
    kernels[text("conv", spatial_axes, "d", suffix)] = {
        {prepare, [=](LayoutCall& call) { choose_layouts(kind, spatial_axes, call); }}, true};
  };
  for (const int spatial_axes : {1, 2}) {
    add(spatial_axes, "", ConvKind::Forward);
    add(spatial_axes, "_input_grad", ConvKind::InputGrad);
    add(spatial_axes, "_filter_grad", ConvKind::FilterGrad);
    add(spatial_axes, "_bias", ConvKind::ForwardBias);
    add(spatial_axes, "_filter_bias_grad", ConvKind::FilterBiasGrad);
  }
  add(2, "_bias_add", ConvKind::ForwardAdd);
}

}  // namespace moonflow::cuda
