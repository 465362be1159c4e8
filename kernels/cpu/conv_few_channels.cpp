// Convolution of images with one to three channels, with relu and pooling behind it, as networks begin: by direct sums.
//
// With so few channels there is little to block: a register holds a place in 16, 8 or 4 filters, and every number of
// the image meets every filter's tap from a register. The image is copied into a padded one first, so that no sum looks
// where an edge is. Forward, two rows by a few columns of outputs stay in registers over all taps; whole windows lie
// among them, so relu and pooling happen before anything is stored. For the filter's gradient the sums of all taps, or
// of a row of them, stay in registers over all windows, whose gradient is spread over their four places as it is read.
//
// The unit of work is a row of windows of an image; each thread has one contiguous part. Only the filter's gradient
// depends on how many there are, which each thread sums over its own part. Without pooling oneDNN is as fast.
#include <cstring>
#include <optional>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/conv_pool.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kLine = 16;  // floats in a cache line

struct Work {
  int64_t channels, filters, rows, taps;  // rows of taps, and taps in each
  int64_t height, width, above, left;     // of the image, and its padding
  int64_t image_batch, image_channel, image_row, image_column, filter_step, channel_step, tap_step;
  Blocks out;  // windows
  int64_t images;
  int parts;

  // The padded image, in floats. A row has some to spare, for blocks of columns that stick out.
  int64_t padded_row() const { return (2 * out.width + taps + 16) / kLine * kLine; }
  int64_t padded_plane() const { return (2 * out.height + rows) * padded_row(); }
  int64_t padded_floats() const { return channels * padded_plane(); }
  int64_t weights_floats() const { return channels * rows * taps * out.channels; }
  // The same as pair_rows has it.
  int64_t pairs_floats() const { return (2 * out.height + rows - 1) * out.width * 16; }
};

void pad(const Work& work, const float* image, float* padded) {
  std::memset(padded, 0, work.padded_floats() * sizeof(float));
  const int64_t last = std::min(work.height, 2 * work.out.height + work.rows - 1 - work.above);
  const int64_t end = std::min(work.width, 2 * work.out.width + work.taps - 1 - work.left);
  for (int64_t c = 0; c < work.channels; ++c) {
    for (int64_t y = 0; y < last; ++y) {
      const float* from = image + c * work.image_channel + y * work.image_row;
      float* to = padded + c * work.padded_plane() + (y + work.above) * work.padded_row() + work.left;
      for (int64_t x = 0; x < end; ++x) to[x] = from[x * work.image_column];
    }
  }
}

// Calls body(image, first row of windows, last) for the images of a part; `padded` holds the image then.
template <class Body>
void each_image(const Work& work, int64_t part, const float* images, float* padded, const Body& body) {
  const int64_t rows = work.out.height, units = work.images * rows;
  const int64_t first = units * part / work.parts, last = units * (part + 1) / work.parts;
  for (int64_t at = first; at < last;) {
    const int64_t n = at / rows, end = std::min(last, (n + 1) * rows);
    pad(work, images + n * work.image_batch, padded);
    body(n, at - n * rows, end - n * rows);
    at = end;
  }
}

// Where the windows of filter f begin in an image.
int64_t filter_place(const Work& work, int64_t f) { return f / Blocks::kLanes * work.out.block + f % Blocks::kLanes; }

// ---- forward -------------------------------------------------------------------------------------------------

// kWindows windows, fewer where only `windows` are left, in kVectors registers of filters.
template <class R, int kWindows, int kVectors>
void convolve_windows(const Work& work, const float* padded, const float* weights, const float* bias, int64_t windows,
                      float* out, uint8_t* places) {
  using Vector = typename R::Vector;
  constexpr int kColumns = 2 * kWindows;
  Vector sum[2][kColumns][kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int x = 0; x < kColumns; ++x) sum[0][x][v] = sum[1][x][v] = R::at(bias + v * R::kWidth);
  }
  for (int64_t c = 0; c < work.channels; ++c) {
    for (int64_t i = 0; i < work.rows; ++i) {
      const float* above = padded + c * work.padded_plane() + i * work.padded_row();
      const float* below = above + work.padded_row();
      for (int64_t j = 0; j < work.taps; ++j, ++above, ++below, weights += work.out.channels) {
        Vector tap[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) tap[v] = R::at(weights + v * R::kWidth);
#pragma GCC unroll 8
        for (int x = 0; x < kColumns; ++x) {
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v) {
            sum[0][x][v] += above[x] * tap[v];
            sum[1][x][v] += below[x] * tap[v];
          }
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int w = 0; w < kWindows; ++w) {
      if (w >= windows) break;
      const int64_t at = filter_place(work, v * R::kWidth) + w * work.out.column;
      pool_window<R>(sum[0][2 * w][v], sum[0][2 * w + 1][v], sum[1][2 * w][v], sum[1][2 * w + 1][v], out + at,
                     places + at);
    }
  }
}

template <class R>
void convolve_row(const Work& work, const float* padded, const float* weights, const float* bias, float* out,
                  uint8_t* places) {
  constexpr int kWindows = R::kCount == 32 ? 3 : 1;
  for (int64_t f = 0; f < work.out.channels; f += 2 * R::kWidth) {
    const bool two = f + 2 * R::kWidth <= work.out.channels;
    for (int64_t x = 0; x < work.out.width;) {
      const int64_t at = filter_place(work, f) + x * work.out.column, left = work.out.width - x;
      const auto convolve = [&](auto windows) {
        constexpr int kHere = decltype(windows)::value;
        if (two) {
          convolve_windows<R, kHere, 2>(work, padded + 2 * x, weights + f, bias + f, left, out + at, places + at);
        } else {
          convolve_windows<R, kHere, 1>(work, padded + 2 * x, weights + f, bias + f, left, out + at, places + at);
        }
        x += kHere;
      };
      if (kWindows == 3 && left <= 2)
        convolve(std::integral_constant<int, 2>());  // 14 = 4 * 3 + 2
      else
        convolve(std::integral_constant<int, kWindows>());
    }
  }
}

// (filters, channels, rows, taps) to [channel][row][tap][filter], with zeros in the lanes beyond the filters.
void arrange_filter(const Work& work, const float* filter, float* weights) {
  std::memset(weights, 0, work.weights_floats() * sizeof(float));
  const int64_t taps = work.rows * work.taps;
  for (int64_t f = 0; f < work.filters; ++f) {
    for (int64_t c = 0; c < work.channels; ++c) {
      const float* from = filter + f * work.filter_step + c * work.channel_step;
      for (int64_t tap = 0; tap < taps; ++tap) {
        weights[(c * taps + tap) * work.out.channels + f] = from[tap * work.tap_step];
      }
    }
  }
}

Launch convolve(const Work& work, KernelCall& call) {
  const int64_t weights = work.weights_floats(), bias = work.out.channels;
  call.scratch_bytes = (weights + bias + work.parts * work.padded_floats()) * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    const float *image = launch.input<float>(0), *given_bias = launch.input<float>(2);
    float* out = launch.output<float>(0);
    uint8_t* places = launch.output<uint8_t>(1);
    float* scratch = static_cast<float*>(launch.scratch);
    float* padded_bias = scratch + weights;
    arrange_filter(work, launch.input<float>(1), scratch);
    std::fill(std::copy(given_bias, given_bias + work.filters, padded_bias), padded_bias + bias, 0.0f);
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t part = first; part < last; ++part) {
          float* padded = scratch + weights + bias + part * work.padded_floats();
          each_image(work, part, image, padded, [&](int64_t n, int64_t from, int64_t to) {
            for (int64_t row = from; row < to; ++row) {
              const int64_t at = n * work.out.batch + row * work.out.row;
              convolve_row<decltype(width)>(work, padded + 2 * row * work.padded_row(), scratch, padded_bias, out + at,
                                            places + at);
            }
          });
        }
      });
    });
  };
}

// ---- the filter's gradient -----------------------------------------------------------------------------------

// The gradient of a window, where it passes at all, and the number of the place that it passes to.
template <class R>
void read_window(const float* dy, const uint8_t* places, typename R::Vector& gradient, typename R::Integers& numbers) {
  R::widen(places, numbers);
  gradient = numbers < 4 ? typename R::Vector(R::at(dy)) : typename R::Vector{};
}

// Adds some rows of windows to the sums of kRows rows of taps, in one register of filters.
template <class R, int kRows, int kTaps>
void sum_windows(const Work& work, int64_t first, int64_t last, const float* padded, const float* dy,
                 const uint8_t* places, float* sums, float* bias) {
  using Vector = typename R::Vector;
  const int64_t padded_row = work.padded_row(), step = work.out.channels;
  Vector sum[kRows][kTaps], bias_sum = bias ? Vector(R::at(bias)) : Vector{};
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sum[i][j] = R::at(sums + (i * kTaps + j) * step);
  }
  for (int64_t row = first; row < last; ++row) {
    for (int64_t x = 0; x < work.out.width; ++x) {
      const int64_t at = row * work.out.row + x * work.out.column;
      Vector gradient;
      typename R::Integers numbers;
      read_window<R>(dy + at, places + at, gradient, numbers);
      bias_sum += gradient;
#pragma GCC unroll 4
      for (int place = 0; place < 4; ++place) {
        Vector passed;
        pass_to_place<R>(gradient, numbers, place, passed);
        const float* corner = padded + (2 * row + place / 2) * padded_row + 2 * x + place % 2;
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
          for (int j = 0; j < kTaps; ++j) sum[i][j] += corner[i * padded_row + j] * passed;
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) R::at(sums + (i * kTaps + j) * step) = sum[i][j];
  }
  if (bias) R::at(bias) = bias_sum;
}

// Three of four of those products are with zeros. Where a register holds two rows of the numbers under a window, each
// filter can pick the one at its own place instead. They lie in `pairs`[row][window], 8 of the row and 8 of the one
// below.
template <class R, int kTaps>
void sum_picked(const Work& work, int64_t first, int64_t last, const float* pairs, const float* dy,
                const uint8_t* places, float* sums, float* bias) {
  using Vector = typename R::Vector;
  const int64_t windows = work.out.width, step = work.out.channels;
  Vector sum[kTaps][kTaps], bias_sum = bias ? Vector(R::at(bias)) : Vector{};
#pragma GCC unroll 8
  for (int i = 0; i < kTaps; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sum[i][j] = R::at(sums + (i * kTaps + j) * step);
  }
  for (int64_t row = first; row < last; ++row) {
    for (int64_t x = 0; x < windows; ++x) {
      const int64_t at = row * work.out.row + x * work.out.column;
      __builtin_prefetch(dy + at + 16 * work.out.column);  // rows are too short for the hardware to see a pattern
      Vector gradient;
      typename R::Integers numbers;
      read_window<R>(dy + at, places + at, gradient, numbers);
      bias_sum += gradient;
      const typename R::Integers corner = (numbers & 1) + (numbers & 2) * 4;
#pragma GCC unroll 8
      for (int i = 0; i < kTaps; ++i) {
        const Vector two_rows = R::at(pairs + ((2 * row + i) * windows + x) * R::kWidth);
#pragma GCC unroll 8
        for (int j = 0; j < kTaps; ++j) sum[i][j] += __builtin_shuffle(two_rows, corner + j) * gradient;
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTaps; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) R::at(sums + (i * kTaps + j) * step) = sum[i][j];
  }
  if (bias) R::at(bias) = bias_sum;
}

void pair_rows(const Work& work, const float* padded, float* pairs) {
  for (int64_t y = 0; y < 2 * work.out.height + work.rows - 1; ++y) {
    const float* row = padded + y * work.padded_row();
    for (int64_t x = 0; x < work.out.width; ++x, pairs += 16) {
      std::memcpy(pairs, row + 2 * x, 8 * sizeof(float));
      std::memcpy(pairs + 8, row + work.padded_row() + 2 * x, 8 * sizeof(float));
    }
  }
}

template <class R, int kTaps>
void sum_image(const Work& work, int64_t first, int64_t last, const float* padded, float* pairs, const float* dy,
               const uint8_t* places, float* sums, float* bias) {
  constexpr bool kMayPick = R::kWidth == 16 && kTaps <= 5;
  constexpr int kRows = kTaps * kTaps <= R::kCount - 6 ? kTaps : 1;  // whose sums fit into registers
  for (int64_t c = 0; c < work.channels; ++c, padded += work.padded_plane()) {
    const bool pick = kMayPick && work.rows == kTaps;
    if (pick) pair_rows(work, padded, pairs);
    for (int64_t f = 0; f < work.out.channels; f += R::kWidth) {
      const float* own_dy = dy + filter_place(work, f);
      const uint8_t* own_places = places + filter_place(work, f);
      float* to = sums + c * work.rows * kTaps * work.out.channels + f;
      float* to_bias = c == 0 ? bias + f : nullptr;
      if constexpr (kMayPick) {
        if (pick) {
          sum_picked<R, kTaps>(work, first, last, pairs, own_dy, own_places, to, to_bias);
          continue;
        }
      }
      if (work.rows == kRows) {
        sum_windows<R, kRows, kTaps>(work, first, last, padded, own_dy, own_places, to, to_bias);
        continue;
      }
      for (int64_t i = 0; i < work.rows; ++i, to += kTaps * work.out.channels) {
        sum_windows<R, 1, kTaps>(work, first, last, padded + i * work.padded_row(), own_dy, own_places, to,
                                 i == 0 ? to_bias : nullptr);
      }
    }
  }
}

template <int kTaps>
Launch sum_filter(const Work& work, KernelCall& call) {
  const int64_t sums = work.weights_floats(), padded = work.padded_floats();
  const int64_t part = (sums + work.out.channels + padded + work.pairs_floats() + kLine - 1) / kLine * kLine;
  call.scratch_bytes = work.parts * part * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    const float *dy = launch.input<float>(0), *image = launch.input<float>(2);
    const uint8_t* places = launch.input<uint8_t>(1);
    float* scratch = static_cast<float*>(launch.scratch);
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          float *own = scratch + i * part, *bias = own + sums, *own_padded = bias + work.out.channels;
          std::memset(own, 0, (sums + work.out.channels) * sizeof(float));
          each_image(work, i, image, own_padded, [&](int64_t n, int64_t from, int64_t to) {
            const int64_t at = n * work.out.batch;
            sum_image<decltype(width), kTaps>(work, from, to, own_padded, own_padded + padded, dy + at, places + at,
                                              own, bias);
          });
        }
      });
    });
    for (int i = 1; i < work.parts; ++i) {
      const float* more = scratch + i * part;
      for (int64_t k = 0; k < sums + work.out.channels; ++k) scratch[k] += more[k];
    }
    float* dfilter = launch.output<float>(0);
    const int64_t taps = work.rows * work.taps;
    for (int64_t f = 0; f < work.filters; ++f) {
      for (int64_t c = 0; c < work.channels; ++c) {
        float* to = dfilter + f * work.filter_step + c * work.channel_step;
        for (int64_t tap = 0; tap < taps; ++tap) {
          to[tap * work.tap_step] = scratch[(c * taps + tap) * work.out.channels + f];
        }
      }
    }
    std::copy_n(scratch + sums, work.filters, launch.output<float>(1));
  };
}

}  // namespace

bool few_channels_fits(const Conv& conv, ConvKind kind) {
  if (kind != ConvKind::ForwardPool && kind != ConvKind::PoolFilterGrad) return false;
  if (conv.groups != 1 || conv.image.channels > 3 || conv.image.batch == 0) return false;
  if (!conv.slides_by_one()) return false;
  for (const Window& window : conv.windows)
    if (window.out < 2 || window.size > 7) return false;
  const int64_t taps = conv.windows[1].size;
  if (taps != 3 && taps != 5 && taps != 7) return false;
  // Fewer filters would leave registers half empty.
  return conv.format.channels_last ? conv.filters() % Blocks::kLanes == 0 : conv.filters() >= Blocks::kLanes;
}

void few_channels_layouts(const Conv& conv, ConvKind kind, LayoutCall& call) {
  // The image and the filter are row-major; the pooled value and its places are the first two on their side.
  const bool forward = is_forward(kind);
  for (Layout& layout : call.outputs) layout = {};
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    call.inputs[i] = !forward && i < 2 ? in_blocks(call.input_types[i], call.inputs[i], conv.format) : Layout{};
  }
  for (size_t i = 0; forward && i < 2; ++i) call.outputs[i] = in_blocks(call.output_types[i], {}, conv.format);
}

Launch conv_few_channels(const Conv& conv, ConvKind kind, KernelCall& call) {
  const bool forward = is_forward(kind);
  const std::vector<TensorType>& types = forward ? call.outputs : call.inputs;
  const std::vector<Layout>& layouts = forward ? call.output_layouts : call.input_layouts;
  const std::optional<Blocks> out = blocks_of(types[0], layouts[0], conv.format),
                              places = blocks_of(types[1], layouts[1], conv.format);
  if (!out || !places || places->block != out->block || places->column != out->column) return {};
  if (!call.input_layouts[forward ? 0 : 2].row_major()) return {};
  const ImageSize& image = conv.image;
  const int64_t rows = conv.windows[0].size, taps = conv.windows[1].size, plane = image.height * image.width;
  const bool last = conv.format.channels_last;
  const Work work{image.channels,
                  conv.filters(),
                  rows,
                  taps,
                  image.height,
                  image.width,
                  conv.windows[0].before,
                  conv.windows[1].before,
                  plane * image.channels,
                  last ? 1 : plane,
                  last ? image.width * image.channels : image.width,
                  last ? image.channels : 1,
                  rows * taps * image.channels,
                  last ? 1 : rows * taps,
                  last ? image.channels : 1,
                  *out,
                  image.batch,
                  conv_parts(conv)};
  if (forward) return convolve(work, call);
  return taps == 3 ? sum_filter<3>(work, call) : taps == 5 ? sum_filter<5>(work, call) : sum_filter<7>(work, call);
}

}  // namespace moonflow::cpu
