// Relu and max pooling where windows of 2x2 tile the images, and the gradient of both with that of a bias before them.
// Where each maximum was goes from one to the other in a byte, so the gradient reads a third of what it writes, and
// what was pooled need not be kept.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/cuda/parts.h"
#include "kernels/pool.h"

namespace moonflow::cuda {

// The largest of a window after relu, in `most`, and which of the four it is, the first of equal ones in row-major
// order; 4 where nothing is positive.
template <class T>
MOONFLOW_DEVICE uint8_t relu_maximum(const T (&window)[4], T& most) {
  uint8_t place = 0;
  T largest = window[0];
  MOONFLOW_UNROLL
  for (int i = 1; i < 4; ++i) {
    if (!gives_way(largest, window[i])) continue;
    largest = window[i];
    place = static_cast<uint8_t>(i);
  }
  most = largest < T(0) ? T(0) : largest;
  return largest > T(0) ? place : uint8_t{4};
}

// Windows of images in one of two orders. In rows the images of all channels lie one below the other, and a thread has
// a window; with the channels last it has kN neighbouring channels of one. In either order row r of all windows covers
// rows 2 * r and 2 * r + 1 of all images.
struct WindowsByTwo {
  int64_t batch, channels, height, width;  // in windows
  bool channels_last;

  int64_t plane() const { return height * width; }
  int64_t count() const { return batch * channels * plane(); }
};

// ---- forward ---------------------------------------------------------------------------------------------------

template <class T>
struct PoolRows {
  static constexpr int kThreads = 256;
  Divisor by_width;
  uint32_t count;
  const T* x;
  T* out;
  uint8_t* places;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const uint32_t i = static_cast<uint32_t>(block.index() * kThreads + block.thread());
    if (i >= count) return;
    const uint32_t width = by_width.value, row = by_width.quotient(i);
    const int64_t at = 2 * (int64_t{i} + int64_t{row} * width);
    const auto above = *reinterpret_cast<const Pack<T, 2>*>(x + at);
    const auto below = *reinterpret_cast<const Pack<T, 2>*>(x + at + 2 * width);
    T most;
    places[i] = relu_maximum<T>({above.values[0], above.values[1], below.values[0], below.values[1]}, most);
    out[i] = most;
  }
};

// The first place of the window that pack i belongs to, in packs of the image: twice the windows before it in its row
// and four times those of other rows, and the channels before its own once.
MOONFLOW_DEVICE inline int64_t first_place(uint32_t i, const Divisor& by_row, const Divisor& by_packs) {
  const uint32_t rows = by_row.quotient(i) * by_row.value, windows = by_packs.quotient(i) * by_packs.value;
  return int64_t{i} + windows + 2 * int64_t{rows};
}

template <class T, int kN>
struct PoolChannels {
  static constexpr int kThreads = 256;
  Divisor by_row, by_packs, by_plane;  // packs of channels in a row of windows, and in a window; windows of an image
  uint32_t count;                      // of packs
  bool out_last;                       // else it lies in rows
  const T* x;
  T* out;
  uint8_t* places;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const uint32_t i = static_cast<uint32_t>(block.index() * kThreads + block.thread());
    if (i >= count) return;
    const int64_t column = int64_t{by_packs.value} * kN, row = 2 * int64_t{by_row.value} * kN;  // of the image
    const int64_t at = first_place(i, by_row, by_packs) * kN;
    const Pack<T, kN> a = read<T, kN>(x + at, kN, true), b = read<T, kN>(x + at + column, kN, true),
                      c = read<T, kN>(x + at + row, kN, true), d = read<T, kN>(x + at + row + column, kN, true);
    Pack<T, kN> most;
    Pack<uint8_t, kN> place;
    MOONFLOW_UNROLL
    for (int k = 0; k < kN; ++k)
      place.values[k] = relu_maximum<T>({a.values[k], b.values[k], c.values[k], d.values[k]}, most.values[k]);
    write(place, places + int64_t{i} * kN, kN, true);
    if (out_last) return write(most, out + int64_t{i} * kN, kN, true);
    const uint32_t window = by_packs.quotient(i), n = by_plane.quotient(window), plane = by_plane.value;
    const int64_t channel = int64_t{n} * by_packs.value * kN + (i - window * by_packs.value) * kN;  // of all images
    T* const to = out + channel * plane + (window - n * plane);
    MOONFLOW_UNROLL
    for (int k = 0; k < kN; ++k) to[k * plane] = most.values[k];
  }
};

// ---- gradient --------------------------------------------------------------------------------------------------
// The bias's gradient sums dy over the windows that let it through. Waiting for blocks that have spread it would take
// a launch of its own, so the first blocks of the launch are for the sums alone: they read dy a second time, a quarter
// of the bytes, while the others write. Channels of many windows are cut into parts by the shapes, and a second launch
// adds them.

template <class T>
struct BiasSums {
  static constexpr int64_t kMostOfPart = 256 * 64;
  int64_t elements, per_part;  // windows of a channel
  int channel_blocks, parts;
  LongDivisor by_plane;
  int64_t channels, plane;
  double* of_parts = nullptr;  // where there is more than one
  T* out = nullptr;

  BiasSums(const WindowsByTwo& windows, int channels_of_block)
      : elements(windows.batch * windows.plane()),
        channel_blocks(static_cast<int>(windows.channels / channels_of_block)),
        parts(static_cast<int>(std::max<int64_t>((elements + kMostOfPart - 1) / kMostOfPart, 1))),
        by_plane(windows.plane()),
        channels(windows.channels),
        plane(windows.plane()) {
    per_part = (elements + parts - 1) / parts;
  }
  MOONFLOW_BOTH int blocks() const { return channel_blocks * parts; }
  int64_t scratch_bytes() const { return parts > 1 ? parts * channels * static_cast<int64_t>(sizeof(double)) : 0; }

  // Where window j of a channel lies, in rows.
  MOONFLOW_DEVICE int64_t in_rows(int64_t j, int64_t channel) const {
    int64_t place;
    const int64_t n = by_plane.quotient(j, place);
    return (n * channels + channel) * plane + place;
  }
  // By a block: passed(j, first channel) is what window j passes in kN channels. Its reads are to be without a branch,
  // so that those of several windows are under way together.
  template <int kN, class Block, class Passed>
  MOONFLOW_DEVICE void sum(const Block& block, const Passed& passed) const {
    const int64_t part = block.index() / channel_blocks, channel = block.index() % channel_blocks * kN;
    const int64_t first = part * per_part, last = first + per_part < elements ? first + per_part : elements;
    double sums[kN] = {};
    MOONFLOW_UNROLL_BY(8)
    for (int64_t j = first + block.thread(); j < last; j += block.threads()) {
      const auto values = passed(j, channel);
      MOONFLOW_UNROLL
      for (int k = 0; k < kN; ++k) sums[k] += static_cast<double>(Computed<T>(values.values[k]));
    }
    MOONFLOW_UNROLL
    for (int k = 0; k < kN; ++k) {
      const double sum = over_block(block, sums[k], Sum());
      if (block.thread() > 0) continue;
      if (parts > 1)
        of_parts[part * channels + channel + k] = sum;
      else
        out[channel + k] = T(static_cast<Computed<T>>(sum));
    }
  }
};

// A thread writes two neighbours at a time, both of one window, so that a warp writes lines.
template <class T>
struct SpreadRows {
  static constexpr int kThreads = 256, kPairs = 4;
  BiasSums<T> sums;
  Divisor by_width;
  uint32_t count;  // of pairs
  const T* dy;
  const uint8_t* places;
  T* dx;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.index() < sums.blocks()) {
      return sums.template sum<1>(block, [this](int64_t j, int64_t channel) {
        const int64_t at = sums.in_rows(j, channel);
        const T gradient = dy[at];
        return Pack<T, 1>{{places[at] < 4 ? gradient : T(0)}};
      });
    }
    const uint32_t first = static_cast<uint32_t>(block.index() - sums.blocks()) * kThreads * kPairs + block.thread();
    MOONFLOW_UNROLL
    for (int k = 0; k < kPairs; ++k) {
      const uint32_t i = first + k * kThreads;
      if (i >= count) return;
      const uint32_t row = by_width.quotient(i), window = (row / 2) * by_width.value + i - row * by_width.value;
      const T gradient = dy[window];
      const int place = places[window] - static_cast<int>(row % 2) * 2;
      const Pack<T, 2> pair{{place == 0 ? gradient : T(0), place == 1 ? gradient : T(0)}};
      *reinterpret_cast<Pack<T, 2>*>(dx + 2 * int64_t{i}) = pair;
    }
  }
};

// dy may lie in rows, as what comes after the pooling has it.
template <class T, int kN>
struct SpreadChannels {
  static constexpr int kThreads = 256;
  BiasSums<T> sums;
  Divisor by_row, by_packs;
  uint32_t count;  // of packs
  bool dy_last;
  const T* dy;
  const uint8_t* places;
  T* dx;

  template <bool kLast, int kChannels>
  MOONFLOW_DEVICE Pack<T, kChannels> arriving(int64_t window, int64_t channel, int64_t at) const {
    if constexpr (kLast) {
      return read<T, kChannels>(dy + at, kChannels, true);
    } else {
      Pack<T, kChannels> pack;
      MOONFLOW_UNROLL
      for (int k = 0; k < kChannels; ++k) pack.values[k] = dy[sums.in_rows(window, channel + k)];
      return pack;
    }
  }

  template <bool kLast, class Block>
  MOONFLOW_DEVICE void sum(const Block& block) const {
    constexpr int kChannels = kLast ? kN : 1;
    sums.template sum<kChannels>(block, [this](int64_t j, int64_t channel) {
      const int64_t at = j * sums.channels + channel;
      Pack<T, kChannels> pack = arriving<kLast, kChannels>(j, channel, at);
      const auto place = read<uint8_t, kChannels>(places + at, kChannels, true);
      MOONFLOW_UNROLL
      for (int k = 0; k < kChannels; ++k)
        if (place.values[k] >= 4) pack.values[k] = T(0);
      return pack;
    });
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (block.index() < sums.blocks()) return dy_last ? sum<true>(block) : sum<false>(block);
    const uint32_t i = static_cast<uint32_t>(block.index() - sums.blocks()) * kThreads + block.thread();
    if (i >= count) return;
    const uint32_t window = by_packs.quotient(i), channel = (i - window * by_packs.value) * kN;
    const int64_t at = int64_t{i} * kN;
    const Pack<T, kN> gradient =
        dy_last ? arriving<true, kN>(window, channel, at) : arriving<false, kN>(window, channel, at);
    const auto place = read<uint8_t, kN>(places + int64_t{i} * kN, kN, true);
    const int64_t column = int64_t{by_packs.value} * kN, row = 2 * int64_t{by_row.value} * kN;  // of the image
    T* const corner = dx + first_place(i, by_row, by_packs) * kN;
    MOONFLOW_UNROLL
    for (int p = 0; p < 4; ++p) {
      Pack<T, kN> passed;
      MOONFLOW_UNROLL
      for (int k = 0; k < kN; ++k) passed.values[k] = place.values[k] == p ? gradient.values[k] : T(0);
      write(passed, corner + p / 2 * row + p % 2 * column, kN, true);
    }
  }
};

// ---- launchers -------------------------------------------------------------------------------------------------

// How many channels a thread takes at a time.
template <class T>
int channels_at_once(const WindowsByTwo& windows) {
  constexpr int kN = 16 / sizeof(T);
  return windows.channels_last && windows.channels % kN == 0 ? kN : 1;
}

inline int64_t blocks_of(int64_t count, int64_t per_block) { return (count + per_block - 1) / per_block; }

template <class T, int kN>
void pool_channels(Stream& stream, const WindowsByTwo& windows, bool out_last, const T* x, T* out, uint8_t* places) {
  const uint32_t packs = static_cast<uint32_t>(windows.channels / kN),
                 count = static_cast<uint32_t>(windows.count() / kN);
  launch(stream, blocks_of(count, 256),
         PoolChannels<T, kN>{Divisor(packs * static_cast<uint32_t>(windows.width)), Divisor(packs),
                             Divisor(static_cast<uint32_t>(windows.plane())), count, out_last, x, out, places});
}

// x and places in one order, out in rows or in theirs.
template <class T>
void pool_by_two(Stream& stream, const WindowsByTwo& windows, bool out_last, const T* x, T* out, uint8_t* places) {
  if (windows.count() == 0) return;
  const uint32_t width = static_cast<uint32_t>(windows.width), count = static_cast<uint32_t>(windows.count());
  if (!windows.channels_last)
    launch(stream, blocks_of(count, 256), PoolRows<T>{Divisor(width), count, x, out, places});
  else if (channels_at_once<T>(windows) == 1)
    pool_channels<T, 1>(stream, windows, out_last, x, out, places);
  else
    pool_channels<T, 16 / sizeof(T)>(stream, windows, out_last, x, out, places);
}

template <class T, int kN>
void spread_channels(Stream& stream, const WindowsByTwo& windows, bool dy_last, const BiasSums<T>& sums, const T* dy,
                     const uint8_t* places, T* dx) {
  const uint32_t packs = static_cast<uint32_t>(windows.channels / kN),
                 count = static_cast<uint32_t>(windows.count() / kN);
  launch(stream, sums.blocks() + blocks_of(count, 256),
         SpreadChannels<T, kN>{sums, Divisor(packs * static_cast<uint32_t>(windows.width)), Divisor(packs), count,
                               dy_last, dy, places, dx});
}

template <class T>
int64_t spread_scratch_bytes(const WindowsByTwo& windows) {
  return BiasSums<T>(windows, 1).scratch_bytes();
}

// places and dx in one order, dy in rows or in theirs.
template <class T>
void spread_by_two(Stream& stream, const WindowsByTwo& windows, bool dy_last, const T* dy, const uint8_t* places, T* dx,
                   T* dbias, void* scratch) {
  if (windows.channels == 0) return;
  // Where dy is in rows, a block of the sums has one channel, whose numbers are neighbours.
  BiasSums<T> sums(windows, dy_last ? channels_at_once<T>(windows) : 1);
  sums.out = dbias;
  sums.of_parts = static_cast<double*>(scratch);
  if (!windows.channels_last) {
    using Kernel = SpreadRows<T>;
    const uint32_t count = 2 * static_cast<uint32_t>(windows.count());
    launch(stream, sums.blocks() + blocks_of(count, Kernel::kThreads * Kernel::kPairs),
           Kernel{sums, Divisor(static_cast<uint32_t>(windows.width)), count, dy, places, dx});
  } else if (channels_at_once<T>(windows) == 1) {
    spread_channels<T, 1>(stream, windows, dy_last, sums, dy, places, dx);
  } else {
    spread_channels<T, 16 / sizeof(T)>(stream, windows, dy_last, sums, dy, places, dx);
  }
  if (sums.parts > 1)
    add_parts(stream, AddParts<double, T>{sums.of_parts, dbias, sums.parts, windows.channels});
}

}  // namespace moonflow::cuda
