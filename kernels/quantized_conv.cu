// Convolution of bytes on CUDA: a thread for each element of the result, as the formula has it.
#include "kernels/quantized_conv.h"

#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

// Of x in T.
template <class T>
struct ByteConvolution {
  Conv conv;
  int32_t zero_point;
  ImagePlaces of_image, of_filter, of_out;
  const T* image;
  const int8_t* filter;
  const float *scale, *bias;  // bias: or none
  float* out;
  uint8_t* out_bytes;  // in its place, or none
  float least, most;
  int32_t out_zero;

  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const ImagePlaces::Place o = of_out[i];
    const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
    const int64_t channels = conv.channels_per_group(), first_channel = o.c / conv.filters_per_group() * channels;
    int32_t sum = 0;
    for (int64_t k = vertical.first(o.y); k < vertical.last(o.y); ++k) {
      for (int64_t l = horizontal.first(o.x); l < horizontal.last(o.x); ++l) {
        const int64_t y = vertical.start(o.y) + k * vertical.dilation;
        const int64_t x = horizontal.start(o.x) + l * horizontal.dilation;
        const T* const place = image + of_image.at(o.n, first_channel, y, x);
        const int8_t* const tap = filter + of_filter.at(o.c, 0, k, l);
        for (int64_t c = 0; c < channels; ++c)
          sum += (place[c * of_image.channel_step] - zero_point) * tap[c * of_filter.channel_step];
      }
    }
    const float shift = bias ? bias[o.c] : 0.0f;
    const float result = scale[o.c] * static_cast<float>(sum) + shift;
    if (!out_bytes) return void(out[i] = result);
    const float within = result > least ? (result < most ? result : most) : least;
    out_bytes[i] = static_cast<uint8_t>(static_cast<int32_t>(rintf(within)) + out_zero);
  }
};

template <class T>
Launch prepare_for(const QuantizedConv& sizes, const KernelCall& call) {
  const Conv& conv = sizes.conv;
  const bool has_bias = call.has(3);
  const int64_t count = conv.out.count();
  const ImagePlaces of_image = places(conv.image, conv.format), of_filter = places(conv.filter_size(), conv.format),
                    of_out = places(conv.out, conv.format);
  const auto zero = static_cast<int32_t>(sizes.zero_point), out_zero = static_cast<int32_t>(sizes.out_zero_point);
  const auto least = static_cast<float>(sizes.least()), most = static_cast<float>(sizes.most());
  const bool in_bytes = sizes.gives_bytes();
  return [=](const LaunchCall& at) {
    for_each(at.stream, count,
             ByteConvolution<T>{conv, zero, of_image, of_filter, of_out, at.input<T>(0), at.input<int8_t>(1),
                                at.input<float>(2), has_bias ? at.input<float>(3) : nullptr, at.output<float>(0),
                                in_bytes ? at.output<uint8_t>(0) : nullptr, least, most, out_zero});
  };
}

Launch prepare(KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  const QuantizedConv sizes = quantized_conv_of(call.attrs, call.inputs[0], call.inputs[1].shape);
  return sizes.is_signed ? prepare_for<int8_t>(sizes, call) : prepare_for<uint8_t>(sizes, call);
}

}  // namespace

void add_quantized_conv(Kernels& kernels) { kernels["quantized_conv2d"] = {{prepare}}; }

}  // namespace moonflow::cuda
