// A tile of the gradient of a convolution's input in TF32, by a block of threads: neighbouring places of all images in
// so many channels. What the places are reached by, a piece of the output's gradients with the padding around it, lies
// in shared memory once, and all taps of the window are multiplied from there; the filter comes by a row of taps after
// the other, each on its way while the one before it is multiplied.
//
// LeNet's second layer (100 images of 14x14, 32 channels, 64 filters of 5x5) takes 1.0 thousand million multiply-adds:
// 123 tiles of 160 places for a card of 132 multiprocessors, 4.6 us at the speed of its tensor cores and some 22 us in
// fact.
#pragma once

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/tensor_cores.h"

namespace moonflow::cuda {

template <int kColumns>
struct InputGradientTile {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static constexpr int kRowsOfWarp = 80, kColumnsOfWarp = 32;
  static constexpr int kRows = 2 * kRowsOfWarp;  // places of the tile
  using OfWarp = WarpSums<kRowsOfWarp, kColumnsOfWarp>;
  // The warps with the same sums share a chunk of the filters, each has a run of them.
  static constexpr int kSharing = kWarps / (kRows / kRowsOfWarp * (kColumns / kColumnsOfWarp));
  static constexpr int kRun = 2 * OfWarp::kDepth, kChunk = kRun * kSharing;
  static constexpr int kTap = kColumns * kChunk;  // numbers of the filter that a tap takes of a chunk
  static constexpr int kPitch = kColumns + 8;     // of sums; what a warp writes: different banks

  int channels, height, width;         // of an image
  int filters, out_height, out_width;  // of a gradient of the output
  int high, wide, above, left;         // the window, and the gradients' padding before them
  int places;                          // of all images
  Divisor by_width, by_height, by_padded_height;
  const float *dy = nullptr, *filter = nullptr;  // (batch, out_height, out_width, filters), (filters, taps, channels)
  float* dx = nullptr;                           // (places, channels)

  explicit InputGradientTile(const Conv& conv)
      : channels(static_cast<int>(conv.image.channels)),
        height(static_cast<int>(conv.image.height)),
        width(static_cast<int>(conv.image.width)),
        filters(static_cast<int>(conv.filters())),
        out_height(static_cast<int>(conv.out.height)),
        out_width(static_cast<int>(conv.out.width)),
        high(static_cast<int>(conv.windows[0].size)),
        wide(static_cast<int>(conv.windows[1].size)),
        above(high - 1 - static_cast<int>(conv.windows[0].before)),
        left(wide - 1 - static_cast<int>(conv.windows[1].before)),
        places(static_cast<int>(conv.image.batch * conv.image.height * conv.image.width)),
        by_width(static_cast<uint32_t>(width)),
        by_height(static_cast<uint32_t>(height)),
        by_padded_height(static_cast<uint32_t>(height + high - 1)) {}

  int64_t blocks() const { return int64_t{(places + kRows - 1) / kRows} * (channels / kColumns); }
  int64_t shared_bytes() const {
    const int64_t factors = piece_numbers() + 2 * row_of_taps(), sums = kSharing * kRows * kPitch;
    return (factors > sums ? factors : sums) * static_cast<int64_t>(sizeof(float));
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int index = static_cast<int>(block.index()), across = channels / kColumns;
    const int first_place = index / across * kRows, first_column = index % across * kColumns;
    const int last_place = first_place + kRows < places ? first_place + kRows - 1 : places - 1;
    int x;
    const int first_row = row_of(first_place, x), rows = row_of(last_place, x) + high - first_row;
    float* const piece = block.template shared<float>();
    float* const ring = piece + piece_numbers();

    const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    const int run = warp % kSharing * kRun, first_of_warp = warp / kSharing % 2 * kRowsOfWarp,
              column_of_warp = warp / kSharing / 2 * kColumnsOfWarp;
    // The place in the piece that the first tap reads for a row of the warp.
    const auto place_of = [&](int row) {
      const int place = first_place + first_of_warp + row;
      int column;
      const int from = row_of(place < places ? place : first_place, column) - first_row;
      return from * pitch() + column;
    };
    int own[kRowsOfWarp / 16];  // those that this thread asks for on a card
    MOONFLOW_UNROLL
    for (int i = 0; i < kRowsOfWarp / 16; ++i) own[i] = place_of(16 * i + lane % 16);

    OfWarp sums;
    const int all_rows = (filters + kChunk - 1) / kChunk * high;  // of taps, of one chunk after the other
    fetch_taps(block, 0, first_column, ring);
    for (int tap_row = 0; tap_row < all_rows; ++tap_row) {
      const int first_shift = tap_row % high * pitch();
      if (first_shift == 0) {
        block.sync();  // the piece before is needed no more
        fetch_piece(block, tap_row / high * kChunk, first_row, rows, piece);
        block.end_copies();
      }
      block.template wait_for_copies<0>();
      block.sync();  // the row is there, and nobody needs the one before any more
      if (first_shift == 0) {
        round(block, piece);
        block.sync();
      }
      fetch_taps(block, tap_row + 1, first_column, ring);
      block.end_copies();
      const float* of_tap = place_of_taps(ring, tap_row);
      for (int shift = first_shift; shift < first_shift + wide; ++shift, of_tap += kTap) {
        MOONFLOW_UNROLL
        for (int first = run; first < run + kRun; first += OfWarp::kDepth) {
          sums.add_rows(
              lane,
              [&](int row, int k) {
                const int place = (on_tensor_cores() ? own[row / 16] : place_of(row)) + shift;
                return piece + number_of_piece(place, first + k);
              },
              [&](int k, int column) { return of_tap[number_of_tap(first + k, column_of_warp + column)]; });
        }
      }
    }
    block.sync();
    end(block, sums, warp % kSharing, first_of_warp, column_of_warp, first_place, first_column);
  }

 private:
  // Gradients lie one below the other, each with its padding above and below. The first row of them that place `place`
  // is reached from, and in `x` the first of its columns.
  MOONFLOW_BOTH int row_of(int place, int& x) const {
    uint32_t rest;
    const uint32_t row = by_width.quotient(static_cast<uint32_t>(place), rest);
    x = static_cast<int>(rest);
    return static_cast<int>(row + by_height.quotient(row) * (high - 1));
  }
  // Places from a row of the piece to the next: some more than are read, so that eight neighbouring places of the
  // images, also over the end of a row, are reached from eight that are different modulo 8.
  MOONFLOW_BOTH int pitch() const { return width + (wide + 6) / 8 * 8; }
  MOONFLOW_BOTH int piece_numbers() const {
    const int rows = (kRows + width - 2) / width + 1, ends = (rows + height - 2) / height;  // at most so many
    return (rows + (high - 1) * (ends + 1)) * pitch() * kChunk;
  }
  MOONFLOW_BOTH int row_of_taps() const { return wide * kTap; }
  MOONFLOW_BOTH float* place_of_taps(float* ring, int tap_row) const { return ring + tap_row % 2 * row_of_taps(); }
  // Packs of four numbers lie in eight orders: what a warp reads at once of eight neighbouring places is in different
  // banks. So it is of four filters.
  MOONFLOW_BOTH static int number_of_piece(int place, int k) { return place * kChunk + (k ^ (place & 7) << 2); }
  MOONFLOW_BOTH static int number_of_tap(int k, int c) { return k * kColumns + (c ^ (k & 3) << 3); }

  // kChunk filters' gradients from `first` on, with zeros for the padding and for filters that are not there. A warp
  // takes a row.
  template <class Block>
  MOONFLOW_DEVICE void fetch_piece(const Block& block, int first, int first_row, int rows, float* piece) const {
    constexpr int kPacks = kChunk / 4;
    for (int row = block.thread() / kWarp; row < rows; row += kWarps) {
      uint32_t of_out;
      const uint32_t n = by_padded_height.quotient(static_cast<uint32_t>(first_row + row), of_out);
      const int y = static_cast<int>(of_out) - above;
      const bool there = y >= 0 && y < out_height;
      const float* const from = dy + ((int64_t{n} * out_height + (there ? y : 0)) * out_width - left) * filters + first;
      for (int i = block.thread() % kWarp; i < (width + wide - 1) * kPacks; i += kWarp) {
        const int x = i / kPacks, k = i % kPacks * 4;
        const bool inside = there && x >= left && x < left + out_width && first + k < filters;
        block.template begin_copy<16>(piece + number_of_piece(row * pitch() + x, k),
                                      inside ? from + x * filters + k : dy, inside ? 16 : 0);
      }
    }
  }

  // One copy is multiplied by many warps and taps, so it is rounded where it lies.
  template <class Block>
  MOONFLOW_DEVICE void round(const Block& block, float* piece) const {
    MOONFLOW_UNROLL_BY(4)
    for (int i = block.thread() * 4; i < piece_numbers(); i += kThreads * 4) {
      auto* const pack = reinterpret_cast<Pack<float, 4>*>(piece + i);
      Pack<float, 4> rounded = *pack;
      MOONFLOW_UNROLL
      for (float& value : rounded.values) value = to_tf32(value);
      *pack = rounded;
    }
  }

  // A row of taps, from the filter's last one on, by which the gradient of a place came. There may be none any more.
  template <class Block>
  MOONFLOW_DEVICE void fetch_taps(const Block& block, int tap_row, int first_column, float* ring) const {
    const int taps = high * wide, first = tap_row / high * kChunk, first_tap = taps - 1 - tap_row % high * wide;
    if (first >= filters) return;
    MOONFLOW_UNROLL
    for (int pack = block.thread(); pack < kTap / 4; pack += kThreads) {
      const int k = pack / (kColumns / 4), c = pack % (kColumns / 4) * 4;
      const bool inside = first + k < filters;
      const float* tap = filter + (inside ? ((first + k) * taps + first_tap) * channels + first_column + c : 0);
      float* to = place_of_taps(ring, tap_row) + number_of_tap(k, c);
      for (int j = 0; j < wide; ++j, to += kTap, tap -= inside ? channels : 0)
        block.template begin_copy<16>(to, tap, inside ? 16 : 0);
    }
  }

  // Adds up what the warps have that share the filters, in their order.
  template <class Block>
  MOONFLOW_DEVICE void end(const Block& block, const OfWarp& sums, int share, int first_of_warp, int column_of_warp,
                           int first_place, int first_column) const {
    const int lane = block.thread() % kWarp;
    float* const parts = block.template shared<float>();
    MOONFLOW_UNROLL
    for (int pair = 0; pair < OfWarp::kPairs; ++pair) {
      const int row = first_of_warp + OfWarp::row(lane, pair), column = column_of_warp + OfWarp::column(lane, pair);
      *reinterpret_cast<Pack<float, 2>*>(parts + (share * kRows + row) * kPitch +
                                         column) = {{sums.of(pair, 0), sums.of(pair, 1)}};
    }
    block.sync();
    constexpr int kPacks = kColumns / 4;
    for (int i = block.thread(); i < kRows * kPacks; i += kThreads) {
      const int row = i / kPacks, column = i % kPacks * 4;
      if (first_place + row >= places) return;
      Pack<float, 4> sum{};
      MOONFLOW_UNROLL
      for (int part = 0; part < kSharing; ++part) {
        const auto added = *reinterpret_cast<const Pack<float, 4>*>(parts + (part * kRows + row) * kPitch + column);
        MOONFLOW_UNROLL
        for (int n = 0; n < 4; ++n) sum.values[n] += added.values[n];
      }
      *reinterpret_cast<Pack<float, 4>*>(dx + int64_t{first_place + row} * channels + first_column + column) = sum;
    }
  }
};

}  // namespace moonflow::cuda
