// Convolution of images with one to three channels, as the first layer of a network has them, by direct sums.
//
// With so few channels there is little to block: a register holds a place in 16, 8 or 4 filters, and every number of
// the image meets every filter's tap from a register. The image is copied into a padded one first, so that no sum looks
// where an edge is. Forward, two rows by a few columns of outputs stay in registers over all taps; whole windows of a
// pooling lie among them, so relu and pooling happen before anything is stored. For the filter's gradient the sums of
// one row of taps stay in registers over all places; a pooled gradient is spread over its windows as it is read.
//
// The unit of work is two rows of outputs of an image; each thread has one contiguous part. Only the filter's gradient
// depends on how many there are, which each thread sums over its own part.
#include <cstring>
#include <optional>

#include "kernels/conv.h"
#include "kernels/conv_pool.h"
#include "kernels/cpu.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kLine = 16;  // floats in a cache line

struct Work {
  int64_t channels, filters, rows, taps;  // rows of taps, and taps in each
  int64_t height, width, above, left;     // of the image, and its padding
  int64_t image_batch, image_channel, image_row, image_column, filter_step, channel_step, tap_step;
  Blocks out;  // of the size before pooling
  int64_t images;
  bool bias, relu, pooled;
  int parts;

  // The padded image, in floats. A row has some to spare, for blocks of columns that stick out.
  int64_t padded_row() const { return (out.width + taps + 16) / kLine * kLine; }
  int64_t padded_plane() const { return (out.height + 1 + rows) * padded_row(); }
  int64_t padded_floats() const { return channels * padded_plane(); }
  int64_t weights_floats() const { return channels * rows * taps * out.channels; }
  int64_t pairs() const { return (out.height + 1) / 2; }  // of rows in an image
};

void pad(const Work& work, const float* image, float* padded) {
  std::memset(padded, 0, work.padded_floats() * sizeof(float));
  const int64_t first = std::max<int64_t>(0, -work.above),
                last = std::min(work.height, work.out.height + work.rows - 1 - work.above);
  const int64_t start = std::max<int64_t>(0, -work.left),
                end = std::min(work.width, work.out.width + work.taps - 1 - work.left);
  for (int64_t c = 0; c < work.channels; ++c) {
    for (int64_t y = first; y < last; ++y) {
      const float* from = image + c * work.image_channel + y * work.image_row;
      float* to = padded + c * work.padded_plane() + (y + work.above) * work.padded_row() + work.left;
      for (int64_t x = start; x < end; ++x) to[x] = from[x * work.image_column];
    }
  }
}

// Calls body(image, first pair of rows, last) for the images of a part; `padded` holds the image then.
template <class Body>
void each_image(const Work& work, int64_t part, const float* images, float* padded, const Body& body) {
  const int64_t units = work.images * work.pairs();
  const int64_t first = units * part / work.parts, last = units * (part + 1) / work.parts;
  for (int64_t at = first; at < last;) {
    const int64_t n = at / work.pairs(), end = std::min(last, (n + 1) * work.pairs());
    pad(work, images + n * work.image_batch, padded);
    body(n, at - n * work.pairs(), end - n * work.pairs());
    at = end;
  }
}

// ---- forward
// ---------------------------------------------------------------------------------------------------------

// Two rows by kColumns outputs in kVectors registers of filters, from filter f on.
template <class R, int kColumns, int kVectors>
void convolve_block(const Work& work, const float* padded, const float* weights, const float* bias, int64_t rows,
                    int64_t columns, float* out, uint8_t* places) {
  using Vector = typename R::Vector;
  Vector sum[2][kColumns][kVectors];
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    Vector start = Vector{};
    if (work.bias) start = R::at(bias + v * R::kWidth);
#pragma GCC unroll 8
    for (int x = 0; x < kColumns; ++x) sum[0][x][v] = sum[1][x][v] = start;
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
    const int64_t lane = v * R::kWidth, at = lane / Blocks::kLanes * work.out.block + lane % Blocks::kLanes;
#pragma GCC unroll 8
    for (int x = 0; x < kColumns; ++x) {
      if (x >= columns) break;
      if (work.pooled) {
        if (x % 2 == 1) continue;
        const int64_t window = at + x / 2 * work.out.column;
        pool_window<R>(sum[0][x][v], sum[0][x + 1][v], sum[1][x][v], sum[1][x + 1][v], out + window, places + window);
        continue;
      }
#pragma GCC unroll 2
      for (int y = 0; y < 2; ++y) {
        if (y >= rows) break;
        Vector value = sum[y][x][v];
        if (work.relu) value = value < 0 ? Vector{} : value;
        R::at(out + at + y * work.out.row + x * work.out.column) = value;
      }
    }
  }
}

template <class R>
void convolve_pair(const Work& work, int64_t pair, const float* padded, const float* weights, const float* bias,
                   float* out, uint8_t* places) {
  constexpr int kColumns = R::kCount == 32 ? 6 : 2;
  const int64_t rows = std::min<int64_t>(2, work.out.height - 2 * pair);
  padded += 2 * pair * work.padded_row();
  const int64_t start = (work.pooled ? pair : 2 * pair) * work.out.row;
  for (int64_t f = 0; f < work.out.channels; f += 2 * R::kWidth) {
    const bool two = f + 2 * R::kWidth <= work.out.channels;
    for (int64_t x = 0; x < work.out.width;) {
      const int64_t at = start + f / Blocks::kLanes * work.out.block + f % Blocks::kLanes +
                         (work.pooled ? x / 2 : x) * work.out.column;
      const int64_t left = work.out.width - x;
      const auto block = [&](auto columns) {
        constexpr int kHere = decltype(columns)::value;
        if (two) {
          convolve_block<R, kHere, 2>(work, padded + x, weights + f, bias + f, rows, left, out + at, places + at);
        } else {
          convolve_block<R, kHere, 1>(work, padded + x, weights + f, bias + f, rows, left, out + at, places + at);
        }
        x += kHere;
      };
      // A last block of 4 where that leaves less to waste: 28 = 4 * 6 + 4.
      if (kColumns == 6 && left <= 4)
        block(std::integral_constant<int, 4>());
      else
        block(std::integral_constant<int, kColumns>());
    }
  }
}

// (filters, channels, rows, taps) to [channel][row][tap][filter].
void arrange_filter(const Work& work, const float* filter, float* weights) {
  std::memset(weights, 0, work.weights_floats() * sizeof(float));
  for (int64_t f = 0; f < work.filters; ++f) {
    for (int64_t c = 0; c < work.channels; ++c) {
      for (int64_t tap = 0; tap < work.rows * work.taps; ++tap) {
        weights[(c * work.rows * work.taps + tap) * work.out.channels + f] =
            filter[f * work.filter_step + c * work.channel_step + tap * work.tap_step];
      }
    }
  }
}

Launch convolve(const Work& work, KernelCall& call) {
  const int64_t weights = work.weights_floats(), bias = work.out.channels;
  call.scratch_bytes = (weights + bias + work.parts * work.padded_floats()) * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    const float* image = launch.input<float>(0);
    float* out = launch.output<float>(0);
    uint8_t* places = work.pooled ? launch.output<uint8_t>(1) : nullptr;
    float* scratch = static_cast<float*>(launch.scratch);
    float* padded_bias = scratch + weights;
    arrange_filter(work, launch.input<float>(1), scratch);
    if (work.bias) {  // with zeros in the lanes beyond its channels
      const float* given = launch.input<float>(2);
      std::fill(std::copy(given, given + work.filters, padded_bias), padded_bias + bias, 0.0f);
    }
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t part = first; part < last; ++part) {
          float* padded = scratch + weights + bias + part * work.padded_floats();
          each_image(work, part, image, padded, [&](int64_t n, int64_t from, int64_t to) {
            for (int64_t pair = from; pair < to; ++pair) {
              convolve_pair<decltype(width)>(work, pair, padded, scratch, padded_bias, out + n * work.out.batch,
                                             places ? places + n * work.out.batch : nullptr);
            }
          });
        }
      });
    });
  };
}

// ---- the filter's gradient
// -------------------------------------------------------------------------------------------

// Adds what some pairs of rows give to the sums of one row of taps, in one register of filters.
template <class R, int kTaps>
void sum_pairs(const Work& work, int64_t first, int64_t last, const float* padded, const float* dy,
               const uint8_t* places, float* sums, float* bias) {
  using Vector = typename R::Vector;
  Vector sum[kTaps], bias_sum = bias ? Vector(R::at(bias)) : Vector{};
#pragma GCC unroll 8
  for (int j = 0; j < kTaps; ++j) sum[j] = R::at(sums + j * work.out.channels);
  const auto add = [&](const float* from, const Vector& gradient) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sum[j] += from[j] * gradient;
  };
  for (int64_t pair = first; pair < last; ++pair) {
    const float* above = padded + 2 * pair * work.padded_row();
    if (places) {
      for (int64_t x = 0; x < work.out.width; x += 2) {
        const int64_t at = pair * work.out.row + x / 2 * work.out.column;
        typename R::Integers numbers;
        R::widen(places + at, numbers);
        const Vector gradient = numbers < 4 ? Vector(R::at(dy + at)) : Vector{};
        bias_sum += gradient;
#pragma GCC unroll 4
        for (int place = 0; place < 4; ++place) {
          Vector passed;
          pass_to_place<R>(gradient, numbers, place, passed);
          add(above + place / 2 * work.padded_row() + x + place % 2, passed);
        }
      }
      continue;
    }
    for (int64_t y = 0; y < std::min<int64_t>(2, work.out.height - 2 * pair); ++y) {
      for (int64_t x = 0; x < work.out.width; ++x) {
        const Vector gradient = R::at(dy + (2 * pair + y) * work.out.row + x * work.out.column);
        bias_sum += gradient;
        add(above + y * work.padded_row() + x, gradient);
      }
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kTaps; ++j) R::at(sums + j * work.out.channels) = sum[j];
  if (bias) R::at(bias) = bias_sum;
}

// With a pooled gradient three of four of those products are with zeros. Where a register holds two rows of the numbers
// under a window, each filter can pick the one at its own place instead, and the sums of all taps fit into registers.
// They lie in `pairs`[row][window], 8 of the row and 8 of the one below.
template <class R, int kTaps>
void sum_windows(const Work& work, int64_t first, int64_t last, const float* pairs, const float* dy,
                 const uint8_t* places, float* sums, float* bias) {
  using Vector = typename R::Vector;
  const int64_t windows = work.out.width / 2, step = work.out.channels;
  Vector sum[kTaps][kTaps], bias_sum = bias ? Vector(R::at(bias)) : Vector{};
#pragma GCC unroll 8
  for (int i = 0; i < kTaps; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sum[i][j] = R::at(sums + (i * kTaps + j) * step);
  }
  for (int64_t pair = first; pair < last; ++pair) {
    for (int64_t x = 0; x < windows; ++x) {
      const int64_t at = pair * work.out.row + x * work.out.column;
      __builtin_prefetch(dy + at + 16 * work.out.column);
      typename R::Integers numbers;
      R::widen(places + at, numbers);
      const Vector gradient = numbers < 4 ? Vector(R::at(dy + at)) : Vector{};
      bias_sum += gradient;
      const typename R::Integers corner = (numbers & 1) + (numbers & 2) * 4;
#pragma GCC unroll 8
      for (int i = 0; i < kTaps; ++i) {
        const Vector two_rows = R::at(pairs + ((2 * pair + i) * windows + x) * R::kWidth);
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

template <class R>
void pair_rows(const Work& work, const float* padded, float* pairs) {
  for (int64_t y = 0; y < work.out.height + work.rows - 1; ++y) {
    for (int64_t x = 0; x < work.out.width; x += 2, pairs += 16) {
      std::memcpy(pairs, padded + y * work.padded_row() + x, 8 * sizeof(float));
      std::memcpy(pairs + 8, padded + (y + 1) * work.padded_row() + x, 8 * sizeof(float));
    }
  }
}

template <class R, int kTaps>
void sum_image(const Work& work, int64_t first, int64_t last, const float* padded, float* pairs, const float* dy,
               const uint8_t* places, float* sums, float* bias) {
  const int64_t per_channel = work.rows * kTaps * work.out.channels;
  for (int64_t c = 0; c < work.channels; ++c, padded += work.padded_plane(), sums += per_channel) {
    float* own_bias = work.bias && c == 0 ? bias : nullptr;
    if constexpr (R::kWidth == 16 && kTaps <= 5) {
      if (places && work.rows == kTaps) {
        pair_rows<R>(work, padded, pairs);
        for (int64_t f = 0; f < work.out.channels; f += 16) {
          const int64_t block = f / Blocks::kLanes * work.out.block;
          sum_windows<R, kTaps>(work, first, last, pairs, dy + block, places + block, sums + f,
                                own_bias ? own_bias + f : nullptr);
        }
        continue;
      }
    }
    for (int64_t i = 0; i < work.rows; ++i) {
      for (int64_t f = 0; f < work.out.channels; f += R::kWidth) {
        const int64_t block = f / Blocks::kLanes * work.out.block + f % Blocks::kLanes;
        sum_pairs<R, kTaps>(work, first, last, padded + i * work.padded_row(), dy + block,
                            places ? places + block : nullptr, sums + i * kTaps * work.out.channels + f,
                            own_bias && i == 0 ? own_bias + f : nullptr);
      }
    }
  }
}

template <int kTaps>
Launch sum_filter(const Work& work, KernelCall& call) {
  const int64_t sums = work.weights_floats(), padded = work.padded_floats();
  const int64_t pairs = work.pooled ? (work.out.height + work.rows) * work.out.width * 8 : 0;
  const int64_t part = (sums + work.out.channels + padded + pairs + kLine - 1) / kLine * kLine;
  call.scratch_bytes = work.parts * part * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    const float *dy = launch.input<float>(0), *image = launch.input<float>(work.pooled ? 2 : 1);
    const uint8_t* places = work.pooled ? launch.input<uint8_t>(1) : nullptr;
    float* scratch = static_cast<float*>(launch.scratch);
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          float *own = scratch + i * part, *bias = own + sums, *own_padded = bias + work.out.channels;
          std::memset(own, 0, (sums + work.out.channels) * sizeof(float));
          each_image(work, i, image, own_padded, [&](int64_t n, int64_t from, int64_t to) {
            const int64_t at = n * work.out.batch;
            sum_image<decltype(width), kTaps>(work, from, to, own_padded, own_padded + padded, dy + at,
                                              places ? places + at : nullptr, own, bias);
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
        for (int64_t tap = 0; tap < taps; ++tap) {
          dfilter[f * work.filter_step + c * work.channel_step + tap * work.tap_step] =
              scratch[(c * taps + tap) * work.out.channels + f];
        }
      }
    }
    if (work.bias) std::copy_n(scratch + sums, work.filters, launch.output<float>(1));
  };
}

}  // namespace

bool few_channels_fits(const Conv& conv, ConvKind kind) {
  if (is_input_grad(kind) || conv.groups != 1 || conv.format.spatial_axes != 2 || conv.image.channels > 3) return false;
  for (const Window& window : conv.windows) {
    if (window.stride != 1 || window.dilation != 1 || window.out == 0) return false;
  }
  const int64_t taps = conv.windows[1].size;
  if ((taps != 3 && taps != 5 && taps != 7) || conv.windows[0].size > 7 || conv.image.batch == 0) return false;
  // Fewer filters would leave registers half empty.
  return conv.format.channels_last ? conv.filters() % Blocks::kLanes == 0 : conv.filters() >= Blocks::kLanes;
}

void few_channels_layouts(const Conv& conv, ConvKind kind, LayoutCall& call) {
  for (Layout& layout : call.inputs) layout = {};
  for (Layout& layout : call.outputs) layout = {};
  if (is_forward(kind)) {
    for (size_t i = 0; i < call.outputs.size(); ++i) call.outputs[i] = in_blocks(call.output_types[i], {}, conv.format);
    return;
  }
  call.inputs[0] = in_blocks(call.input_types[0], call.inputs[0], conv.format);
  if (is_pooled(kind)) call.inputs[1] = in_blocks(call.input_types[1], call.inputs[1], conv.format);
}

Launch conv_few_channels(const Conv& conv, ConvKind kind, bool relu, KernelCall& call) {
  const bool filter = is_filter_grad(kind), pooled = is_pooled(kind);
  const auto input = [&](int i) { return blocks_of(call.inputs[i], call.input_layouts[i], conv.format); };
  const auto output = [&](int i) { return blocks_of(call.outputs[i], call.output_layouts[i], conv.format); };
  const int x = !filter ? 0 : pooled ? 2 : 1;
  std::optional<Blocks> out = filter ? input(0) : output(0);
  if (!out || !call.input_layouts[x].row_major()) return {};
  if (pooled) {
    const std::optional<Blocks> places = filter ? input(1) : output(1);
    if (!places || places->block != out->block || places->column != out->column) return {};
    out->height = conv.out.height;
    out->width = conv.out.width;
  }
  const ImageSize& image = conv.image;
  const int64_t rows = conv.windows[0].size, taps = conv.windows[1].size, places = image.height * image.width;
  const bool last = conv.format.channels_last;
  const Work work{image.channels,
                  conv.filters(),
                  rows,
                  taps,
                  image.height,
                  image.width,
                  conv.windows[0].before,
                  conv.windows[1].before,
                  places * image.channels,
                  last ? 1 : places,
                  last ? image.width * image.channels : image.width,
                  last ? image.channels : 1,
                  rows * taps * image.channels,
                  last ? 1 : rows * taps,
                  last ? image.channels : 1,
                  *out,
                  image.batch,
                  kind == ConvKind::ForwardBias || kind == ConvKind::FilterBiasGrad || pooled,
                  relu,
                  pooled,
                  threads()};
  if (!filter) return convolve(work, call);
  return taps == 3 ? sum_filter<3>(work, call) : taps == 5 ? sum_filter<5>(work, call) : sum_filter<7>(work, call);
}

}  // namespace moonflow::cpu
