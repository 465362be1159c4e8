// The convolution as plain loops over row-major values of either data format. Each element is summed by one thread in a
// fixed order, in double, so the result does not depend on the number of threads.
#include "kernels/conv.h"
#include "kernels/cpu.h"

namespace moonflow {
namespace {

// Distances between neighbours along the axes of an image, in elements.
struct ImageStrides {
  int64_t batch, channel, row, column;
};

ImageStrides strides(const ImageSize& size, const ImageFormat& format) {
  const int64_t plane = size.height * size.width;
  if (format.channels_last) return {plane * size.channels, 1, size.width * size.channels, size.channels};
  return {plane * size.channels, plane, size.width, 1};
}

struct FilterStrides {
  int64_t filter, channel, row, column;
};

FilterStrides filter_strides(const Conv& conv) {
  const int64_t rows = conv.windows[0].size, columns = conv.windows[1].size, channels = conv.channels_per_group();
  if (conv.format.channels_last) return {rows * columns * channels, 1, columns * channels, channels};
  return {rows * columns * channels, rows * columns, columns, 1};
}

template <class T>
void convolve(const Conv& conv, const T* image, const T* filter, T* out) {
  const ImageStrides in = strides(conv.image, conv.format), to = strides(conv.out, conv.format);
  const FilterStrides weights = filter_strides(conv);
  const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
  const int64_t channels = conv.channels_per_group();

  auto at = [&](int64_t n, int64_t f, int64_t y, int64_t x) {
    const int64_t first_channel = f / conv.filters_per_group() * channels;
    double sum = 0;
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t i = vertical.first(y); i < vertical.last(y); ++i) {
        const T* row = image + n * in.batch + (first_channel + c) * in.channel +
                       (vertical.start(y) + i * vertical.dilation) * in.row;
        const T* weight = filter + f * weights.filter + c * weights.channel + i * weights.row;
        for (int64_t j = horizontal.first(x); j < horizontal.last(x); ++j) {
          sum += double(row[(horizontal.start(x) + j * horizontal.dilation) * in.column]) * weight[j * weights.column];
        }
      }
    }
    return static_cast<T>(sum);
  };

  cpu::parallel_for(conv.out.batch * conv.filters(), 1, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const int64_t n = plane / conv.filters(), f = plane % conv.filters();
      for (int64_t y = 0; y < conv.out.height; ++y) {
        for (int64_t x = 0; x < conv.out.width; ++x) {
          out[n * to.batch + f * to.channel + y * to.row + x * to.column] = at(n, f, y, x);
        }
      }
    }
  });
}

template <class T>
void convolve_input_grad(const Conv& conv, const T* dout, const T* filter, T* dimage) {
  const ImageStrides to = strides(conv.image, conv.format), from = strides(conv.out, conv.format);
  const FilterStrides weights = filter_strides(conv);
  const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
  const int64_t channels = conv.channels_per_group();

  // What input (y, x) feeds: the outputs o and window places k with o * stride - before + k * dilation = y.
  auto at = [&](int64_t n, int64_t c, int64_t y, int64_t x) {
    const int64_t group = c / channels;
    double sum = 0;
    for (int64_t i = 0; i < vertical.size; ++i) {
      const int64_t above = y + vertical.before - i * vertical.dilation;
      if (above < 0 || above % vertical.stride != 0 || above / vertical.stride >= vertical.out) continue;
      for (int64_t j = 0; j < horizontal.size; ++j) {
        const int64_t left = x + horizontal.before - j * horizontal.dilation;
        if (left < 0 || left % horizontal.stride != 0 || left / horizontal.stride >= horizontal.out) continue;
        const T* gradient =
            dout + n * from.batch + above / vertical.stride * from.row + left / horizontal.stride * from.column;
        const T* weight = filter + c % channels * weights.channel + i * weights.row + j * weights.column;
        for (int64_t f = group * conv.filters_per_group(); f < (group + 1) * conv.filters_per_group(); ++f) {
          sum += double(gradient[f * from.channel]) * weight[f * weights.filter];
        }
      }
    }
    return static_cast<T>(sum);
  };

  cpu::parallel_for(conv.image.batch * conv.image.channels, 1, [&](int64_t first, int64_t last) {
    for (int64_t plane = first; plane < last; ++plane) {
      const int64_t n = plane / conv.image.channels, c = plane % conv.image.channels;
      for (int64_t y = 0; y < conv.image.height; ++y) {
        for (int64_t x = 0; x < conv.image.width; ++x) {
          dimage[n * to.batch + c * to.channel + y * to.row + x * to.column] = at(n, c, y, x);
        }
      }
    }
  });
}

template <class T>
void convolve_filter_grad(const Conv& conv, const T* dout, const T* image, T* dfilter) {
  const ImageStrides in = strides(conv.image, conv.format), from = strides(conv.out, conv.format);
  const FilterStrides weights = filter_strides(conv);
  const Window &vertical = conv.windows[0], &horizontal = conv.windows[1];
  const int64_t channels = conv.channels_per_group();

  auto at = [&](int64_t f, int64_t c, int64_t i, int64_t j) {
    const int64_t channel = f / conv.filters_per_group() * channels + c;
    double sum = 0;
    for (int64_t n = 0; n < conv.image.batch; ++n) {
      for (int64_t y = 0; y < conv.out.height; ++y) {
        if (i < vertical.first(y) || i >= vertical.last(y)) continue;
        const T* row =
            image + n * in.batch + channel * in.channel + (vertical.start(y) + i * vertical.dilation) * in.row;
        const T* gradient = dout + n * from.batch + f * from.channel + y * from.row;
        for (int64_t x = 0; x < conv.out.width; ++x) {
          if (j < horizontal.first(x) || j >= horizontal.last(x)) continue;
          sum += double(gradient[x * from.column]) * row[(horizontal.start(x) + j * horizontal.dilation) * in.column];
        }
      }
    }
    return static_cast<T>(sum);
  };

  cpu::parallel_for(conv.filters() * channels, 1, [&](int64_t first, int64_t last) {
    for (int64_t pair = first; pair < last; ++pair) {
      const int64_t f = pair / channels, c = pair % channels;
      for (int64_t i = 0; i < vertical.size; ++i) {
        for (int64_t j = 0; j < horizontal.size; ++j) {
          dfilter[f * weights.filter + c * weights.channel + i * weights.row + j * weights.column] = at(f, c, i, j);
        }
      }
    }
  });
}

template <class T>
void add_bias(const Conv& conv, const T* bias, T* out) {
  const ImageStrides to = strides(conv.out, conv.format);
  for (int64_t n = 0; n < conv.out.batch; ++n) {
    for (int64_t f = 0; f < conv.filters(); ++f) {
      for (int64_t y = 0; y < conv.out.height; ++y) {
        for (int64_t x = 0; x < conv.out.width; ++x) {
          out[n * to.batch + f * to.channel + y * to.row + x * to.column] += bias[f];
        }
      }
    }
  }
}

template <class T>
void bias_grad(const Conv& conv, const T* dout, T* dbias) {
  const ImageStrides from = strides(conv.out, conv.format);
  for (int64_t f = 0; f < conv.filters(); ++f) {
    double sum = 0;
    for (int64_t n = 0; n < conv.out.batch; ++n) {
      for (int64_t y = 0; y < conv.out.height; ++y) {
        for (int64_t x = 0; x < conv.out.width; ++x) {
          sum += dout[n * from.batch + f * from.channel + y * from.row + x * from.column];
        }
      }
    }
    dbias[f] = static_cast<T>(sum);
  }
}

}  // namespace

Launch conv_loops(const Conv& conv, ConvKind kind, DType dtype, Activation activation) {
  return visit_floating(dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [conv, kind, activation](const LaunchCall& call) {
      const T* first = call.input<T>(0);
      const T* second = call.input<T>(1);
      T* out = call.output<T>(0);
      if (is_input_grad(kind)) return convolve_input_grad(conv, first, second, out);
      if (is_filter_grad(kind)) {
        convolve_filter_grad(conv, first, second, out);
        if (kind == ConvKind::FilterBiasGrad) bias_grad(conv, first, call.output<T>(1));
        return;
      }
      convolve(conv, first, second, out);
      if (kind == ConvKind::ForwardBias) add_bias(conv, call.input<T>(2), out);
      if (activation == Activation::None) return;
      const int64_t count = conv.out.batch * conv.out.channels * conv.out.height * conv.out.width;
      for (int64_t i = 0; i < count; ++i) out[i] = activated(activation, out[i]);
    };
  });
}

}  // namespace moonflow
