// Convolutions as the formula has them, one thread for each element of the result, summed in double: for what the
// library has no engine for, and in its place on the simulated device.
#pragma once

#include "kernels/cuda/block.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/elements.h"

namespace moonflow::cuda {

// Where an element of an image, or of a filter as an image with filters for a batch, lies.
struct ImagePlaces {
  int64_t channels, height, width;
  int64_t batch_step, channel_step, row_step, column_step;

  struct Place {
    int64_t n, c, y, x;
  };
  constexpr Place operator[](int64_t i) const {
    if (channel_step == 1) return {i / batch_step, i % channels, i / row_step % height, i / column_step % width};
    return {i / batch_step, i / channel_step % channels, i / row_step % height, i % width};
  }
  constexpr int64_t at(int64_t n, int64_t c, int64_t y, int64_t x) const {
    return n * batch_step + c * channel_step + y * row_step + x * column_step;
  }
};

inline ImagePlaces places(const ImageSize& size, const ImageFormat& format) {
  const int64_t c = size.channels, h = size.height, w = size.width;
  if (format.channels_last) return {c, h, w, h * w * c, 1, w * c, c};
  return {c, h, w, h * w * c, h * w, w, 1};
}

template <class T>
struct DirectConvolution {
  Conv conv;
  ConvKind kind;
  ImagePlaces of_image, of_filter, of_out;
  T *image, *filter, *out;
  const T* bias;

  MOONFLOW_DEVICE void operator()(int64_t i) const {
    if (kind == ConvKind::InputGrad)
      image[i] = static_cast<T>(image_grad(of_image[i]));
    else if (kind == ConvKind::FilterGrad)
      filter[i] = static_cast<T>(filter_grad(of_filter[i]));
    else
      out[i] = finish(forward(of_out[i]), of_out[i].c);
  }

 private:
  MOONFLOW_DEVICE T finish(double sum, int64_t f) const {
    Computed<T> y = static_cast<Computed<T>>(sum);
    if (bias) y += bias[f];
    return static_cast<T>(y);
  }

  MOONFLOW_DEVICE double forward(const ImagePlaces::Place& o) const {
    const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
    const int64_t channels = conv.channels_per_group(), first_channel = o.c / conv.filters_per_group() * channels;
    double sum = 0;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t k = vertical.first(o.y); k < vertical.last(o.y); ++k) {
        for (int64_t l = horizontal.first(o.x); l < horizontal.last(o.x); ++l) {
          const int64_t y = vertical.start(o.y) + k * vertical.dilation;
          const int64_t x = horizontal.start(o.x) + l * horizontal.dilation;
          sum += double{image[of_image.at(o.n, first_channel + c, y, x)]} * filter[of_filter.at(o.c, c, k, l)];
        }
      }
    }
    return sum;
  }

  // What an element of the image feeds: the outputs o and window places k with o * stride - before + k * dilation
  // there.
  MOONFLOW_DEVICE double image_grad(const ImagePlaces::Place& i) const {
    const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
    const int64_t channels = conv.channels_per_group(), filters = conv.filters_per_group(), group = i.c / channels;
    double sum = 0;
    for (int64_t k = 0; k < vertical.size; ++k) {
      const int64_t above = i.y + vertical.before - k * vertical.dilation;
      if (above < 0 || above % vertical.stride != 0 || above / vertical.stride >= vertical.out) continue;
      for (int64_t l = 0; l < horizontal.size; ++l) {
        const int64_t left = i.x + horizontal.before - l * horizontal.dilation;
        if (left < 0 || left % horizontal.stride != 0 || left / horizontal.stride >= horizontal.out) continue;
        for (int64_t f = group * filters; f < (group + 1) * filters; ++f) {
          sum += double{out[of_out.at(i.n, f, above / vertical.stride, left / horizontal.stride)]} *
                 filter[of_filter.at(f, i.c % channels, k, l)];
        }
      }
    }
    return sum;
  }

  MOONFLOW_DEVICE double filter_grad(const ImagePlaces::Place& w) const {
    const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
    const int64_t channel = w.n / conv.filters_per_group() * conv.channels_per_group() + w.c;
    double sum = 0;
    for (int64_t n = 0; n < conv.image.batch; ++n) {
      for (int64_t y = 0; y < conv.out.height; ++y) {
        if (w.y < vertical.first(y) || w.y >= vertical.last(y)) continue;
        for (int64_t x = 0; x < conv.out.width; ++x) {
          if (w.x < horizontal.first(x) || w.x >= horizontal.last(x)) continue;
          sum += double{out[of_out.at(n, w.n, y, x)]} *
                 image[of_image.at(n, channel, vertical.start(y) + w.y * vertical.dilation,
                                   horizontal.start(x) + w.x * horizontal.dilation)];
        }
      }
    }
    return sum;
  }
};

// The launch, without scratch.
template <class T>
ConvolutionLaunch direct_convolution(const ConvolutionCall& call) {
  const Conv& conv = call.conv;
  const ImageSize filter = conv.filter_size();
  const ImageSize& result = is_input_grad(call.kind) ? conv.image : is_filter_grad(call.kind) ? filter : conv.out;
  const int64_t count = result.count();
  DirectConvolution<T> direct{conv,
                              call.kind,
                              places(conv.image, conv.format),
                              places(filter, conv.format),
                              places(conv.out, conv.format),
                              nullptr,
                              nullptr,
                              nullptr,
                              nullptr};
  return [=, bias = call.bias](Stream& stream, const ConvolutionBuffers& at) mutable {
    direct.image = static_cast<T*>(at.image);
    direct.filter = static_cast<T*>(at.filter);
    direct.out = static_cast<T*>(at.out);
    direct.bias = bias ? static_cast<const T*>(at.bias) : nullptr;
    for_each(stream, count, direct);
  };
}

}  // namespace moonflow::cuda
