// Convolutions of images with one to four channels, with bias, relu and max pooling of 2x2 windows behind them, and the
// gradients of their filter and bias: the first layer of a network. With so few channels there are 9 to 196 products to
// an output, no work for a library's matrix products, and what comes before the pooling is by far the largest value of
// the layer. Here it never exists: sums stay in registers until a window is pooled, and its gradient is summed from the
// window's one place that got any. float32 is multiplied and added as such.
//
// LeNet's first layer (100 images of 28x28, 32 filters of 5x5) takes 63 million multiply-adds, 2.1 us of an H200's
// float32, and moves 0.3 MB in, 3.1 MB out. Its filter's gradient needs the products of a quarter of the places, 16
// million, each with a read of shared memory: at 32 numbers a clock on 132 multiprocessors 2.2 us, for 3.4 MB.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/pool_by_two.h"

namespace moonflow::cuda {

// Images one below the other, each with its padding, in rows that windows of 2x2 outputs begin at every second of: a
// tile of neighbouring rows of windows may go over the end of an image.
template <class T, int kSize>
struct Stack {
  int windows_high;    // rows of windows in an image
  int above, left;     // padding
  int height, width;   // of an image
  int64_t batch_step;  // in elements, as all steps
  int channel_step, row_step, column_step;
  Divisor by_windows, by_rows;

  MOONFLOW_BOTH int image_of(int window_row) const {
    return static_cast<int>(by_windows.quotient(static_cast<uint32_t>(window_row)));
  }
  // The first row that a row of windows reads, of kSize + 1.
  MOONFLOW_BOTH int row_of(int window_row) const { return 2 * window_row + image_of(window_row) * (kSize - 1); }
  // Rows that `count` rows of windows read.
  MOONFLOW_BOTH int rows_of(int window_row, int count) const {
    return row_of(window_row + count - 1) - row_of(window_row) + kSize + 1;
  }
  // At most so many, wherever the first one is.
  int most_rows(int count) const {
    return 2 * count + (kSize - 1) * ((count - 1 + windows_high - 1) / windows_high + 1);
  }
};

// Where the rows of a tile begin in shared memory. Windows begin at even rows, and `pair_step` lets their columns go on
// in other banks.
struct TileRows {
  int pitch, pair_step;
  MOONFLOW_BOTH int at(int row) const { return (row >> 1) * pair_step + (row & 1) * pitch; }
};

// Copies `rows` rows of a channel from row `first` on, `columns` places of each from `column` on, with zeros for the
// padding. A warp takes a row; a thread has some on their way at a time.
template <class T, int kSize, class Block>
MOONFLOW_DEVICE void load_tile(const Block& block, const Stack<T, kSize>& stack, const T* channel, int first, int rows,
                               int column, int columns, T* tile, const TileRows& to) {
  constexpr int kAtOnce = 16 / sizeof(T);
  const int warps = block.threads() / kWarp, warp = block.thread() / kWarp;
  const uint32_t stacked = static_cast<uint32_t>(2 * stack.windows_high + kSize - 1);  // rows of an image
  for (int x = block.thread() % kWarp; x < columns; x += kWarp) {
    const int from_x = column + x - stack.left;
    const bool inside = from_x >= 0 && from_x < stack.width;
    for (int r = warp; r < rows; r += warps * kAtOnce) {
      T values[kAtOnce];
      MOONFLOW_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        values[i] = T(0);
        const uint32_t row = static_cast<uint32_t>(first + r + i * warps), n = stack.by_rows.quotient(row);
        const int y = static_cast<int>(row - n * stacked) - stack.above;
        if (inside && r + i * warps < rows && y >= 0 && y < stack.height)
          values[i] = channel[n * stack.batch_step + y * stack.row_step + from_x * stack.column_step];
      }
      MOONFLOW_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        if (r + i * warps < rows) tile[to.at(r + i * warps) + x] = values[i];
    }
  }
}

// How a value of windows lies in memory.
struct WindowSteps {
  int64_t batch;
  int filter, row, column;
  MOONFLOW_BOTH int64_t at(int n, int f, int y, int x) const {
    return n * batch + int64_t{f} * filter + int64_t{y} * row + int64_t{x} * column;
  }
  MOONFLOW_BOTH bool channels_last() const { return column != 1; }
};

struct FilterSteps {
  int filter, channel, tap;
};

// ---- forward ---------------------------------------------------------------------------------------------------
// A thread has two neighbouring windows in four filters, 32 sums. A row of the image that it reads, in loads of 16
// bytes, meets two rows of taps; a tap in four filters is one such load, the same for all threads of a warp, and
// goes into 32 multiply-adds. So shared memory has to give a load for some 30 of them, and they set the pace.

template <class T, int kSize>
struct ConvolvePool {
  static constexpr int kThreads = 128, kFilters = 4, kTaps = kSize * kSize;
  static constexpr int kN = 16 / sizeof(T);                      // numbers in a load
  static constexpr int kReach = (kSize + 3 + kN - 1) / kN * kN;  // of a row, by a thread
  Stack<T, kSize> stack;
  TileRows tile_rows;
  int channels, filters, all_rows, windows_wide;  // rows of windows of all images, windows of a row
  int rows, pairs, column_tiles;                  // of a tile: rows of windows, pairs of windows in each
  int chunks, chunk_lanes, groups;                // by kFilters filters: in a group, side by side in a warp
  int channel_tile;                               // elements
  FilterSteps of_filter;
  WindowSteps of_out;
  const T *image, *filter, *bias;
  T* out;
  uint8_t* places;

  // Numbers from a tap of the group's filters to the next: more than there are, as a warp writes several taps at once.
  MOONFLOW_BOTH int tap_pitch() const { return (chunks + 1) * kFilters; }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int index = static_cast<int>(block.index());
    const int group = index % groups, tile_index = index / groups;
    const int first_pair = tile_index % column_tiles * pairs, first_row = tile_index / column_tiles * rows;
    const int row_count = all_rows - first_row < rows ? all_rows - first_row : rows;
    const int group_filters = chunks * kFilters, first_filter = group * group_filters;
    T* const tile = block.template shared<T>();
    T* const taps = tile + channels * channel_tile;
    for (int c = 0; c < channels; ++c) {
      load_tile(block, stack, image + c * stack.channel_step, stack.row_of(first_row),
                stack.rows_of(first_row, row_count), 4 * first_pair, 4 * pairs + kSize - 1, tile + c * channel_tile,
                tile_rows);
    }
    for (int e = block.thread(); e < group_filters * channels * kTaps; e += kThreads) {
      const int tap = e % kTaps, c = e / kTaps % channels, f = e / kTaps / channels;
      const int from = (first_filter + f) * of_filter.filter + c * of_filter.channel + tap * of_filter.tap;
      taps[(c * kTaps + tap) * tap_pitch() + f] = first_filter + f < filters ? filter[from] : T(0);
    }
    block.sync();

    const int unit = block.thread() / chunk_lanes, row = unit / pairs, pair = unit % pairs;
    const int x = 2 * (first_pair + pair);
    if (row >= row_count || x >= windows_wide) return;
    const int n = stack.image_of(first_row + row), y = first_row + row - n * stack.windows_high;
    const T* const corner = tile + tile_rows.at(stack.row_of(first_row + row) - stack.row_of(first_row)) + 4 * pair;
    for (int chunk = block.thread() % chunk_lanes; chunk < chunks; chunk += chunk_lanes) {
      const int f = first_filter + chunk * kFilters;
      if (f >= filters) return;
      T sums[kFilters][8];
      sum(corner, taps + chunk * kFilters, f, sums);
      pool(sums, n, f, y, x);
    }
  }

 private:
  MOONFLOW_DEVICE void read_row(const T* from, T* row) const {
    MOONFLOW_UNROLL
    for (int i = 0; i < kReach; i += kN) {
      const auto pack = *reinterpret_cast<const Pack<T, kN>*>(from + i);
      MOONFLOW_UNROLL
      for (int k = 0; k < kN; ++k) row[i + k] = pack.values[k];
    }
  }

  // By filter: four places of the upper row of the windows, four of the lower one.
  MOONFLOW_DEVICE void sum(const T* corner, const T* taps, int f, T (&sums)[kFilters][8]) const {
    MOONFLOW_UNROLL
    for (int k = 0; k < kFilters; ++k) {
      const T start = f + k < filters ? bias[f + k] : T(0);
      MOONFLOW_UNROLL
      for (int i = 0; i < 8; ++i) sums[k][i] = start;
    }
    for (int c = 0; c < channels; ++c) {
      T rows[2][kReach];
      read_row(corner + c * channel_tile, rows[0]);
      MOONFLOW_UNROLL
      for (int i = 0; i < kSize; ++i) {
        read_row(corner + c * channel_tile + tile_rows.at(i + 1), rows[(i + 1) % 2]);
        MOONFLOW_UNROLL
        for (int j = 0; j < kSize; ++j, taps += tap_pitch()) {
          T tap[kFilters];
          MOONFLOW_UNROLL
          for (int k = 0; k < kFilters; k += kN) {
            const auto pack = *reinterpret_cast<const Pack<T, kN>*>(taps + k);
            MOONFLOW_UNROLL
            for (int l = 0; l < kN; ++l) tap[k + l] = pack.values[l];
          }
          MOONFLOW_UNROLL
          for (int k = 0; k < kFilters; ++k) {
            MOONFLOW_UNROLL
            for (int x = 0; x < 4; ++x) {
              sums[k][x] += rows[i % 2][x + j] * tap[k];
              sums[k][4 + x] += rows[(i + 1) % 2][x + j] * tap[k];
            }
          }
        }
      }
    }
  }

  MOONFLOW_DEVICE void pool(const T (&sums)[kFilters][8], int n, int f, int y, int x) const {
    T most[2][kFilters];
    uint8_t place[2][kFilters];
    MOONFLOW_UNROLL
    for (int k = 0; k < kFilters; ++k) {
      MOONFLOW_UNROLL
      for (int w = 0; w < 2; ++w) {
        const T window[4] = {sums[k][2 * w], sums[k][2 * w + 1], sums[k][4 + 2 * w], sums[k][5 + 2 * w]};
        place[w][k] = relu_maximum(window, most[w][k]);
      }
    }
    const bool two = x + 1 < windows_wide;
    if (of_out.channels_last()) {
      const bool whole = filters % kFilters == 0;
      MOONFLOW_UNROLL
      for (int w = 0; w < 2; ++w) {
        if (w == 1 && !two) break;
        const int64_t at = of_out.at(n, f, y, x + w);
        Pack<T, kFilters> values;
        Pack<uint8_t, kFilters> numbers;
        MOONFLOW_UNROLL
        for (int k = 0; k < kFilters; ++k) {
          values.values[k] = most[w][k];
          numbers.values[k] = place[w][k];
        }
        write(values, out + at, filters - f, whole);
        write(numbers, places + at, filters - f, whole);
      }
      return;
    }
    const bool whole = windows_wide % 2 == 0;
    MOONFLOW_UNROLL
    for (int k = 0; k < kFilters; ++k) {
      if (f + k >= filters) break;
      const int64_t at = of_out.at(n, f + k, y, x);
      write(Pack<T, 2>{{most[0][k], most[1][k]}}, out + at, two ? 2 : 1, whole);
      write(Pack<uint8_t, 2>{{place[0][k], place[1][k]}}, places + at, two ? 2 : 1, whole);
    }
  }
};

// ---- gradients of filter and bias ------------------------------------------------------------------------------
// Each window passes its gradient to one place, so only that place's products are summed. A thread has a filter, and
// its taps and bias in registers; the threads of a warp have neighbouring filters of one window, whose places are at
// most four neighbours in shared memory and so lie in four banks. Rows of windows are cut into parts by the shapes
// alone, each part is summed into scratch, and a fold adds the parts in one order.

template <class T, int kSize>
struct PoolFilterGrad {
  static constexpr int kThreads = 256, kTaps = kSize * kSize, kSums = kTaps + 1;
  // What a window gives: its gradient, and where it goes in the tile.
  struct alignas(2 * sizeof(T)) Passed {
    T gradient;
    int to;
  };
  Stack<T, kSize> stack;
  int channels, filters, all_rows, windows_wide;
  Divisor by_wide;
  int rows, rows_per_part;           // of windows: in a tile, in a part
  int width, groups;                 // filters side by side, a power of two up to 32; groups of them
  int pitch, passed_pitch, outputs;  // outputs: what a part gives
  WindowSteps of_dy, of_places;
  const T* image;
  const T* dy;
  const uint8_t* places;
  T* parts;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int index = static_cast<int>(block.index());
    const int channel = index % channels, first_filter = index / channels % groups * width;
    const int part = index / channels / groups, part_first = part * rows_per_part;
    const int part_last = all_rows - part_first < rows_per_part ? all_rows : part_first + rows_per_part;
    const int own = filters - first_filter < width ? filters - first_filter : width;
    const int f = block.thread() % width, stream = block.thread() / width, streams = kThreads / width;
    Passed* const passed = block.template shared<Passed>();
    T* const tile = reinterpret_cast<T*>(passed + width * passed_pitch);

    T sums[kSums];
    MOONFLOW_UNROLL
    for (int k = 0; k < kSums; ++k) sums[k] = T(0);
    for (int first = part_first; first < part_last; first += rows) {
      const int count = part_last - first < rows ? part_last - first : rows;
      if (first > part_first) block.sync();  // until the tile before has been read
      load_tile(block, stack, image + channel * stack.channel_step, stack.row_of(first), stack.rows_of(first, count), 0,
                2 * windows_wide + kSize - 1, tile, {pitch, 2 * pitch});
      pass(block, first, count * windows_wide, first_filter, own, passed);
      block.sync();
      for (int w = stream; w < count * windows_wide; w += streams) {
        const Passed from = passed[f * passed_pitch + w];
        const T* row = tile + from.to;
        MOONFLOW_UNROLL
        for (int i = 0; i < kSize; ++i, row += pitch) {
          MOONFLOW_UNROLL
          for (int j = 0; j < kSize; ++j) sums[i * kSize + j] += from.gradient * row[j];
        }
        sums[kTaps] += from.gradient;
      }
    }

    // The streams of the block, one after the other.
    block.sync();
    T* const all = block.template shared<T>();
    MOONFLOW_UNROLL
    for (int k = 0; k < kSums; ++k) all[(stream * kSums + k) * width + f] = sums[k];
    block.sync();
    for (int e = block.thread(); e < kSums * width; e += kThreads) {
      const int k = e / width, g = e % width;
      if (g >= own || (k == kTaps && channel > 0)) continue;
      T sum = T(0);
      for (int s = 0; s < streams; ++s) sum += all[s * kSums * width + e];
      const int row = k < kTaps ? channel * kTaps + k : channels * kTaps;
      parts[int64_t{part} * outputs + row * filters + first_filter + g] = sum;
    }
  }

 private:
  // Reads the gradients of the tile's windows in the order they lie in.
  template <class Block>
  MOONFLOW_DEVICE void pass(const Block& block, int first, int windows, int first_filter, int own,
                            Passed* passed) const {
    const bool last = of_dy.channels_last();
    const int lane = last ? block.thread() / width : block.thread() % kWarp, lanes = last ? kThreads / width : kWarp;
    const int g_first = last ? block.thread() % width : block.thread() / kWarp,
              g_step = last ? width : kThreads / kWarp;
    constexpr int kAtOnce = 4;  // windows whose reads, which are without a branch, are under way together
    for (int g = g_first; g < width; g += g_step) {
      const int filter = first_filter + (g < own ? g : own - 1);
      for (int first_window = lane; first_window < windows; first_window += kAtOnce * lanes) {
        Passed to[kAtOnce];
        MOONFLOW_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int w = first_window + i * lanes < windows ? first_window + i * lanes : windows - 1;
          const int row = static_cast<int>(by_wide.quotient(static_cast<uint32_t>(w))), x = w - row * windows_wide;
          const int n = stack.image_of(first + row), y = first + row - n * stack.windows_high;
          const int corner = (stack.row_of(first + row) - stack.row_of(first)) * pitch + 2 * x;
          const uint8_t place = places[of_places.at(n, filter, y, x)];
          const T gradient = dy[of_dy.at(n, filter, y, x)];
          const bool passes = g < own && place < 4;
          to[i] = {passes ? gradient : T(0), passes ? corner + (place >> 1) * pitch + (place & 1) : corner};
        }
        MOONFLOW_UNROLL
        for (int i = 0; i < kAtOnce; ++i)
          if (first_window + i * lanes < windows) passed[g * passed_pitch + first_window + i * lanes] = to[i];
      }
    }
  }
};

// Adds the parts, and puts the sums where they belong: from (channel, tap, filter) and then the biases.
template <class T>
struct AddFilterParts {
  using Acc = double;
  struct Own {};
  int filters, taps, channels;
  FilterSteps of_filter;
  const T* parts;
  T *filter, *bias;
  MOONFLOW_DEVICE Acc start() const { return 0; }
  MOONFLOW_DEVICE Own own(int64_t) const { return {}; }
  MOONFLOW_DEVICE Acc fold(Acc acc, Own, int64_t, int64_t at) const { return acc + parts[at]; }
  MOONFLOW_DEVICE Acc merge(Acc a, Acc b) const { return a + b; }
  MOONFLOW_DEVICE void finish(int64_t k, Acc acc) const {
    const int row = static_cast<int>(k) / filters, f = static_cast<int>(k) % filters;
    if (row == channels * taps)
      bias[f] = static_cast<T>(acc);
    else
      filter[f * of_filter.filter + row / taps * of_filter.channel + row % taps * of_filter.tap] = static_cast<T>(acc);
  }
};

}  // namespace moonflow::cuda
