// Convolutions and products of bytes on CUDA: a thread for each element of the result, as the formula has it. And what
// makes bytes of floats: a fold for the ends of their range, then a thread for each.
#include "kernels/quantized_conv.h"

#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/dynamic_quantize.h"

namespace moonflow::cuda {
namespace {

// Of x in T.
template <class T>
struct ByteConvolution {
  Conv conv;
  int32_t zero_point;  // unless `zero` says it
  const T* zero;
  const int8_t* filter_zero;  // or none
  ImagePlaces of_image, of_filter, of_out;
  const T* image;
  const int8_t* filter;
  const float *scale, *bias;  // bias: or none
  int64_t scale_step;
  float* out;
  int32_t* out_sums;   // in its place, or none
  uint8_t* out_bytes;  // in its place, or none
  float least, most;
  int32_t out_zero;

  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const ImagePlaces::Place o = of_out[i];
    const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
    const int64_t channels = conv.channels_per_group(), first_channel = o.c / conv.filters_per_group() * channels;
    const int32_t of_x = zero ? *zero : zero_point, of_filter_zero = filter_zero ? filter_zero[o.c] : 0;
    int32_t sum = 0;
    for (int64_t k = vertical.first(o.y); k < vertical.last(o.y); ++k) {
      for (int64_t l = horizontal.first(o.x); l < horizontal.last(o.x); ++l) {
        const int64_t y = vertical.start(o.y) + k * vertical.dilation;
        const int64_t x = horizontal.start(o.x) + l * horizontal.dilation;
        const T* const place = image + of_image.at(o.n, first_channel, y, x);
        const int8_t* const tap = filter + of_filter.at(o.c, 0, k, l);
        for (int64_t c = 0; c < channels; ++c)
          sum += (place[c * of_image.channel_step] - of_x) * (tap[c * of_filter.channel_step] - of_filter_zero);
      }
    }
    if (out_sums) return void(out_sums[i] = sum);
    const float shift = bias ? bias[o.c] : 0.0f;
    const float result = scale[o.c * scale_step] * static_cast<float>(sum) + shift;
    if (!out_bytes) return void(out[i] = result);
    const float within = result > least ? (result < most ? result : most) : least;
    out_bytes[i] = static_cast<uint8_t>(static_cast<int32_t>(rintf(within)) + out_zero);
  }
};

template <class T>
Launch prepare_for(const QuantizedConv& sizes, const KernelCall& call) {
  const Conv& conv = sizes.conv;
  using Inputs = QuantizedInputs;
  const int64_t scale_step = call.has(Inputs::kScale) && call.inputs[Inputs::kScale].count() > 1 ? 1 : 0;
  const int64_t count = conv.out.count();
  const ImagePlaces of_image = places(conv.image, conv.format), of_filter = places(conv.filter_size(), conv.format),
                    of_out = places(conv.out, conv.format);
  const auto zero = static_cast<int32_t>(sizes.zero_point), out_zero = static_cast<int32_t>(sizes.out_zero_point);
  const auto least = static_cast<float>(sizes.least()), most = static_cast<float>(sizes.most());
  const bool in_bytes = sizes.gives_bytes(), in_sums = sizes.gives_sums();
  return [=](const LaunchCall& at) {
    for_each(at.stream, count,
             ByteConvolution<T>{conv, zero, at.input<T>(Inputs::kZero), at.input<int8_t>(Inputs::kFilterZero), of_image,
                                of_filter, of_out, at.input<T>(Inputs::kX), at.input<int8_t>(Inputs::kFilter),
                                at.input<float>(Inputs::kScale), at.input<float>(Inputs::kBias), scale_step,
                                at.output<float>(0), in_sums ? at.output<int32_t>(0) : nullptr,
                                in_bytes ? at.output<uint8_t>(0) : nullptr, least, most, out_zero});
  };
}

template <QuantizedConv (*sizes_of)(const Attrs&, const TensorType&, const Shape&)>
Launch prepare(KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  const QuantizedConv sizes = sizes_of(call.attrs, call.inputs[0], call.inputs[1].shape);
  return sizes.is_signed ? prepare_for<int8_t>(sizes, call) : prepare_for<uint8_t>(sizes, call);
}

// ---- bytes of floats --------------------------------------------------------------------------------------------

struct FoundEnds {
  float least, most;
};

struct Ends {
  using Acc = FoundEnds;
  const float* x;
  float* scale;
  uint8_t* zero_point;

  MOONFLOW_DEVICE Acc start() const { return {0, 0}; }
  MOONFLOW_DEVICE int own(int64_t) const { return 0; }
  MOONFLOW_DEVICE Acc fold(Acc acc, int, int64_t, int64_t at) const { return merge(acc, {x[at], x[at]}); }
  MOONFLOW_DEVICE Acc merge(Acc a, Acc b) const {
    return {b.least < a.least ? b.least : a.least, b.most > a.most ? b.most : a.most};
  }
  MOONFLOW_DEVICE void finish(int64_t, Acc acc) const {
    const ByteRange range = ByteRange::of(acc.least, acc.most);
    *scale = range.scale;
    *zero_point = range(0);
  }
};

struct Places {
  const float *x, *scale;
  const uint8_t* zero_point;
  uint8_t* places;

  MOONFLOW_DEVICE void operator()(int64_t i) const {
    places[i] = ByteRange{*scale, static_cast<float>(*zero_point)}(x[i]);
  }
};

Launch prepare_dynamic_quantize(KernelCall& call) {
  const Shape& x = call.inputs[0].shape;
  const int64_t count = x.count();
  const FoldShape shape(reduce::Groups(x, std::vector<bool>(x.rank(), true)));
  call.scratch_bytes = shape.scratch_bytes<Ends>();
  return [=](const LaunchCall& at) {
    float* const scale = at.output<float>(1);
    uint8_t* const zero_point = at.output<uint8_t>(2);
    fold(at.stream, shape, Ends{at.input<float>(0), scale, zero_point}, at.scratch);
    for_each(at.stream, count, Places{at.input<float>(0), scale, zero_point, at.output<uint8_t>(0)});
  };
}

}  // namespace

void add_quantized_conv(Kernels& kernels) {
  kernels["quantized_conv2d"] = {{prepare<quantized_conv_of>}};
  kernels["dynamic_quantize"] = {{prepare_dynamic_quantize}};
  kernels["quantized_dense"] = {{prepare<quantized_dense_of>}};
}

}  // namespace moonflow::cuda
