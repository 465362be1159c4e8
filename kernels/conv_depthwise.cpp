// A convolution of each channel with a filter of its own: too few products to a place for matrices. With channels last
// neighbours in a register are channels, else places along a row.
#include <algorithm>

#include "kernels/conv.h"
#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow::cpu {
namespace {

// The outputs along an axis whose windows reach the image with place k.
struct Reach {
  int64_t first, last;
  Reach(const Window& window, int64_t k) {
    const int64_t at = k * window.dilation - window.before;  // of output 0
    first = at >= 0 ? 0 : std::min(window.out, (-at + window.stride - 1) / window.stride);
    last = at >= window.in ? 0 : std::min(window.out, (window.in - 1 - at) / window.stride + 1);
    last = std::max(first, last);
  }
};

template <class T>
void convolve_plane(const Conv& conv, const T* image, const T* filter, T* out) {
  const Window &down = conv.windows[0], &across = conv.windows[1];
  std::fill_n(out, conv.out.height * conv.out.width, T(0));
  for (int64_t j = 0; j < across.size; ++j) {
    const Reach reach(across, j);
    for (int64_t y = 0; y < conv.out.height; ++y) {
      T* const to = out + y * conv.out.width;
      for (int64_t i = down.first(y); i < down.last(y); ++i) {
        const T weight = filter[i * across.size + j];
        const T* from =
            image + (down.start(y) + i * down.dilation) * conv.image.width + j * across.dilation - across.before;
        if (across.stride == 1)
          for (int64_t x = reach.first; x < reach.last; ++x) to[x] += weight * from[x];
        else
          for (int64_t x = reach.first; x < reach.last; ++x) to[x] += weight * from[x * across.stride];
      }
    }
  }
}

// So many registers of channels of a row of the result; `filter` is (taps, channels) there.
template <class R, class T>
void convolve_row(const Conv& conv, const T* image, const T* filter, int64_t y, T* out) {
  const Window &down = conv.windows[0], &across = conv.windows[1];
  const int64_t channels = conv.image.channels;
  for (int64_t x = 0; x < conv.out.width; ++x, out += channels) {
    const auto each_tap = [&](const auto& body) {
      for (int64_t i = down.first(y); i < down.last(y); ++i)
        for (int64_t j = across.first(x); j < across.last(x); ++j)
          body(
              filter + (i * across.size + j) * channels,
              image + ((down.start(y) + i * down.dilation) * conv.image.width + across.start(x) + j * across.dilation) *
                          channels);
    };
    int64_t c = 0;
    for (; c + R::kWidth <= channels; c += R::kWidth) {
      typename R::Vector sum{};
      each_tap([&](const T* weights, const T* from) { sum += R::at(weights + c) * R::at(from + c); });
      R::at(out + c) = sum;
    }
    for (; c < channels; ++c) {
      T sum = 0;
      each_tap([&](const T* weights, const T* from) { sum += weights[c] * from[c]; });
      out[c] = sum;
    }
  }
}

int64_t taps(const Conv& conv) { return conv.windows[0].size * conv.windows[1].size; }

}  // namespace

bool is_depthwise(const Conv& conv) { return conv.channels_per_group() == 1 && conv.filters_per_group() == 1; }

template <class T>
int64_t depthwise_scratch_bytes(const Conv& conv) {
  return conv.format.channels_last ? taps(conv) * conv.filters() * static_cast<int64_t>(sizeof(T)) : 0;
}

template <class T>
void convolve_depthwise(const Conv& conv, const T* image, const T* filter, T* out, T* scratch) {
  const int64_t channels = conv.image.channels, in_plane = conv.image.height * conv.image.width;
  const int64_t out_plane = conv.out.height * conv.out.width;
  if (!conv.format.channels_last) {
    const int64_t grain = kGrain / std::max<int64_t>(1, out_plane * taps(conv)) + 1;
    parallel_for(conv.image.batch * channels, grain, [&](int64_t first, int64_t last) {
      widest([&] {
        for (int64_t plane = first; plane < last; ++plane)
          convolve_plane(conv, image + plane * in_plane, filter + plane % channels * taps(conv),
                         out + plane * out_plane);
      });
    });
    return;
  }
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t tap = 0; tap < taps(conv); ++tap) scratch[tap * channels + c] = filter[c * taps(conv) + tap];
  const int64_t row = conv.out.width * channels;
  const int64_t grain = kGrain / std::max<int64_t>(1, row * taps(conv)) + 1;
  parallel_for(conv.out.batch * conv.out.height, grain, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      for (int64_t i = first; i < last; ++i)
        convolve_row<Holding<T, decltype(wide)>>(conv, image + i / conv.out.height * in_plane * channels, scratch,
                                                 i % conv.out.height, out + i * row);
    });
  });
}

template int64_t depthwise_scratch_bytes<float>(const Conv&);
template int64_t depthwise_scratch_bytes<double>(const Conv&);
template void convolve_depthwise(const Conv&, const float*, const float*, float*, float*);
template void convolve_depthwise(const Conv&, const double*, const double*, double*, double*);

}  // namespace moonflow::cpu
