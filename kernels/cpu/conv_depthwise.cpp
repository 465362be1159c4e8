// A convolution of each channel with a filter of its own: too few products to a place for matrices. With channels last
// neighbours in a register are channels, else places along a row.
#include <algorithm>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kRegisters = 4;  // of places, summed at once
constexpr int64_t kMostPlaces = kRegisters * Register<16>::kWidth;

// A plane with its padding, cut by the strides: the places that one tap reads for neighbouring outputs lie side by
// side, and those of all outputs in one stretch, which goes on from row to row.
struct Phases {
  const Conv& conv;
  int64_t rows = of_axis(conv.windows[0]), columns = of_axis(conv.windows[1]);

  static int64_t reach(const Window& w) { return (w.out - 1) * w.stride + (w.size - 1) * w.dilation + 1; }
  static int64_t of_axis(const Window& w) { return (reach(w) + w.stride - 1) / w.stride; }
  int64_t count() const { return conv.windows[0].stride * conv.windows[1].stride; }
  // Registers read beyond it.
  int64_t size() const { return (rows + 1) * columns + kMostPlaces; }
  int64_t outputs() const { return conv.out.height * columns; }
  // Even, so that doubles may lie behind floats.
  int64_t elements() const { return round_up(count() * size() + outputs() + kMostPlaces, 2); }
  // Where tap (i, j) of output 0 lies.
  int64_t tap(int64_t i, int64_t j) const {
    const Window &down = conv.windows[0], &across = conv.windows[1];
    const int64_t y = i * down.dilation, x = j * across.dilation;
    return (y % down.stride * across.stride + x % across.stride) * size() + y / down.stride * columns +
           x / across.stride;
  }
};

// What of a row of the image belongs to one phase goes on there.
std::vector<DepthwiseConv::Run> runs_of(const Phases& phases) {
  const Window &down = phases.conv.windows[0], &across = phases.conv.windows[1];
  const int64_t width = std::min(across.in, Phases::reach(across) - across.before);
  const int64_t height = std::min(down.in, Phases::reach(down) - down.before);
  std::vector<DepthwiseConv::Run> runs;
  for (int64_t y = std::max<int64_t>(0, -down.before); y < height; ++y) {
    const int64_t at_y = y + down.before, begin = std::max<int64_t>(0, -across.before);
    const int64_t row = at_y % down.stride * across.stride * phases.size() + at_y / down.stride * phases.columns;
    for (int64_t x = begin; x < std::min(begin + across.stride, width); ++x) {
      const int64_t at_x = x + across.before;
      runs.push_back({y * across.in + x, row + at_x % across.stride * phases.size() + at_x / across.stride,
                      (width - x + across.stride - 1) / across.stride});
    }
  }
  return runs;
}

template <class T>
void cut(const std::vector<DepthwiseConv::Run>& runs, int64_t stride, const T* image, T* to) {
  for (const DepthwiseConv::Run& run : runs) {
    const T* const from = image + run.from;
    T* const place = to + run.to;
    if (stride == 1)
      std::copy_n(from, run.count, place);
    else if (stride == 2)
      for (int64_t x = 0; x < run.count; ++x) place[x] = from[2 * x];
    else
      for (int64_t x = 0; x < run.count; ++x) place[x] = from[x * stride];
  }
}

// `scratch` has zeros where the padding lies.
template <class R, class T>
void convolve_plane(const Phases& phases, const std::vector<int64_t>& taps, const T* filter, T* out, T* scratch) {
  const Conv& conv = phases.conv;
  T* const sums = scratch + phases.count() * phases.size();
  for (int64_t place = 0; place < phases.outputs(); place += kRegisters * R::kWidth) {
    typename R::Vector sum[kRegisters] = {};
    for (size_t tap = 0; tap < taps.size(); ++tap) {
      const T weight = filter[tap];
      const T* from = scratch + taps[tap] + place;
#pragma GCC unroll 4
      for (int r = 0; r < kRegisters; ++r) sum[r] += weight * R::at(from + r * R::kWidth);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) R::at(sums + place + r * R::kWidth) = sum[r];
  }
  for (int64_t y = 0; y < conv.out.height; ++y)
    std::copy_n(sums + y * phases.columns, conv.out.width, out + y * conv.out.width);
}

// What a plane adds to the gradient of its filter: for each tap, the sum of dy times what the tap has read.
template <class R, class T>
void sum_taps(const Phases& phases, const std::vector<int64_t>& taps, const T* dy, double* sums, T* scratch) {
  using Lanes = LanesOf<R>;
  constexpr int kTogether = 8;
  const int64_t width = phases.conv.out.width, height = phases.conv.out.height;
  T* const gradients = scratch + phases.count() * phases.size();  // which may be read beyond
  std::copy_n(dy, height * width, gradients);
  Lanes lane{};
  for (int i = 0; i < R::kWidth; ++i) lane[i] = i;
  for (size_t tap = 0; tap < taps.size(); tap += kTogether) {
    with_count<kTogether>(std::min<int64_t>(kTogether, static_cast<int64_t>(taps.size() - tap)), [&](auto count) {
      constexpr int kTaps = decltype(count)::value;
      typename R::Vector sum[kTaps] = {};
      for (int64_t y = 0; y < height; ++y) {
        const T *const row = gradients + y * width, *const from = scratch + y * phases.columns;
        int64_t x = 0;
        for (; x + R::kWidth <= width; x += R::kWidth) {
          const typename R::Vector there = R::at(row + x);
          for (int t = 0; t < kTaps; ++t) sum[t] += there * R::at(from + taps[tap + t] + x);
        }
        if (x == width) continue;
        const Lanes is_there = lane < static_cast<int>(width - x);  // beyond may be anything, a NaN too
        const typename R::Vector there = R::at(row + x);
        for (int t = 0; t < kTaps; ++t) {
          const typename R::Vector product = there * R::at(from + taps[tap + t] + x);
          sum[t] += is_there ? product : typename R::Vector{};
        }
      }
      for (int t = 0; t < kTaps; ++t)
        for (int i = 0; i < R::kWidth; ++i) sums[tap + t] += static_cast<double>(sum[t][i]);
    });
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

// Padding is stored, and what strides pass over, so there must not be much of either.
bool DepthwiseConv::fits(const Conv& conv) {
  if (conv.channels_per_group() != 1 || conv.filters_per_group() != 1) return false;
  constexpr double kMostMore = 1 << 16;
  double stored = 1;
  for (const Window& w : conv.windows)
    stored *= static_cast<double>(w.stride) * (static_cast<double>(Phases::of_axis(w)) + 1);
  return stored < 4.0 * static_cast<double>(conv.image.height) * static_cast<double>(conv.image.width) + kMostMore;
}

DepthwiseConv::DepthwiseConv(const Conv& conv) : conv_(conv) {
  for (int64_t i = 0; i < conv.windows[0].size; ++i)
    for (int64_t j = 0; j < conv.windows[1].size; ++j) taps_.push_back(Phases{conv}.tap(i, j));
  runs_ = runs_of(Phases{conv});
}

template <class T>
int64_t DepthwiseConv::scratch_bytes() const {
  if (conv_.format.channels_last) return taps(conv_) * conv_.filters() * static_cast<int64_t>(sizeof(T));
  return threads() * (Phases{conv_}.elements() * static_cast<int64_t>(sizeof(T)) +
                      taps(conv_) * static_cast<int64_t>(sizeof(double)));
}

template <class T>
void DepthwiseConv::run(const T* image, const T* filter, T* out, T* scratch) const {
  if (conv_.format.channels_last)
    run_rows(image, filter, out, scratch);
  else
    run_planes(image, filter, out, scratch);
}

template <class T, class Body>
void DepthwiseConv::divide(int64_t count, T* scratch, const Body& body) const {
  const Phases phases{conv_};
  const int64_t sums = conv_.image.batch * conv_.image.channels * conv_.out.height * conv_.out.width * taps(conv_);
  const int64_t parts = threads_for(static_cast<double>(sums), kWideGrain);
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      for (int64_t part = first; part < last; ++part) {
        T* const mine = scratch + part * phases.elements();
        std::fill_n(mine, phases.elements(), T(0));
        for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i)
          body(Holding<T, decltype(wide)>(), part, i, mine);
      }
    });
  });
}

template <class T>
void DepthwiseConv::run_planes(const T* image, const T* filter, T* out, T* scratch) const {
  const Phases phases{conv_};
  const int64_t channels = conv_.image.channels, tap_count = taps(conv_);
  const int64_t in_plane = conv_.image.height * conv_.image.width, out_plane = conv_.out.height * conv_.out.width;
  divide(conv_.image.batch * channels, scratch, [&](auto wide, int64_t, int64_t plane, T* mine) {
    cut(runs_, conv_.windows[1].stride, image + plane * in_plane, mine);
    convolve_plane<decltype(wide)>(phases, taps_, filter + plane % channels * tap_count, out + plane * out_plane, mine);
  });
}

template <class T>
void DepthwiseConv::filter_grad(const T* dy, const T* image, T* dfilter, T* scratch) const {
  const Phases phases{conv_};
  const int64_t channels = conv_.image.channels, planes = conv_.image.batch * channels, tap_count = taps(conv_);
  const int64_t in_plane = conv_.image.height * conv_.image.width, out_plane = conv_.out.height * conv_.out.width;
  double* const all_sums = reinterpret_cast<double*>(scratch + threads() * phases.elements());
  divide(channels, scratch, [&](auto wide, int64_t part, int64_t channel, T* mine) {
    double* const sums = all_sums + part * tap_count;
    std::fill_n(sums, tap_count, 0.0);
    for (int64_t plane = channel; plane < planes; plane += channels) {
      cut(runs_, conv_.windows[1].stride, image + plane * in_plane, mine);
      sum_taps<decltype(wide)>(phases, taps_, dy + plane * out_plane, sums, mine);
    }
    for (int64_t tap = 0; tap < tap_count; ++tap) dfilter[channel * tap_count + tap] = static_cast<T>(sums[tap]);
  });
}

template <class T>
void DepthwiseConv::run_rows(const T* image, const T* filter, T* out, T* scratch) const {
  const int64_t channels = conv_.image.channels, tap_count = taps(conv_);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t tap = 0; tap < tap_count; ++tap) scratch[tap * channels + c] = filter[c * tap_count + tap];
  const int64_t in_image = conv_.image.height * conv_.image.width * channels, out_row = conv_.out.width * channels;
  const int64_t grain = kWideGrain / std::max<int64_t>(1, out_row * tap_count) + 1;
  parallel_for(conv_.out.batch * conv_.out.height, grain, [&](int64_t first, int64_t last) {
    widest_register([&](auto wide) {
      for (int64_t i = first; i < last; ++i)
        convolve_row<Holding<T, decltype(wide)>>(conv_, image + i / conv_.out.height * in_image, scratch,
                                                 i % conv_.out.height, out + i * out_row);
    });
  });
}

template void DepthwiseConv::filter_grad(const float*, const float*, float*, float*) const;
template void DepthwiseConv::filter_grad(const double*, const double*, double*, double*) const;
template int64_t DepthwiseConv::scratch_bytes<float>() const;
template int64_t DepthwiseConv::scratch_bytes<double>() const;
template void DepthwiseConv::run(const float*, const float*, float*, float*) const;
template void DepthwiseConv::run(const double*, const double*, double*, double*) const;

}  // namespace moonflow::cpu
