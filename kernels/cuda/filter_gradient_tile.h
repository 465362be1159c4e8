// A tile of the gradient of a convolution's filter in TF32, by a block of threads: one row of the window's taps, in 64
// filters and 32 channels. The sums go over all places of all images, of which a block has a part; places come by in a
// ring in shared memory, where the taps of a row read the same numbers.
//
// LeNet's second layer (100 images of 14x14, 32 channels, 64 filters of 5x5) takes 1.0 thousand million multiply-adds:
// five rows of taps times 26 parts for a card of 132 multiprocessors, 4.5 us at the speed of its tensor cores and 24 us
// in fact. The parts, 5 MB, are added by a launch of their own, of 4 us.
#pragma once

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/tensor_cores.h"

namespace moonflow::cuda {

template <int kWide>
struct FilterGradientTile {
  static constexpr int kThreads = 256;
  static constexpr int kFilters = 64, kChannels = 32, kChannelsOfWarp = 16;
  static constexpr int kShares = kThreads / kWarp / (kChannels / kChannelsOfWarp);  // warps that share the places
  static constexpr int kStages = 3, kPlaces = 128;                                  // of the ring; places in each
  static constexpr int kPitch = kWide * kChannels + 8;  // of sums; what a warp writes: different banks
  using OfWarp = WarpSums<kFilters, kWide * kChannelsOfWarp>;
  static_assert(kPlaces % (kShares * OfWarp::kDepth) == 0);

  int channels, height, width;         // of an image
  int filters, out_height, out_width;  // of a gradient
  int high, above, left;               // taps of the window one below the other, and the padding before it
  int places;                          // of all gradients
  Divisor by_out_width, by_out_height;
  int stages_of_part = 1;                       // that a block sums
  const float *image = nullptr, *dy = nullptr;  // (batch, height, width, channels), (places, filters)
  float* parts = nullptr;                       // (part, filters, high, kWide, channels)

  explicit FilterGradientTile(const Conv& conv)
      : channels(static_cast<int>(conv.image.channels)),
        height(static_cast<int>(conv.image.height)),
        width(static_cast<int>(conv.image.width)),
        filters(static_cast<int>(conv.filters())),
        out_height(static_cast<int>(conv.out.height)),
        out_width(static_cast<int>(conv.out.width)),
        high(static_cast<int>(conv.windows[0].size)),
        above(static_cast<int>(conv.windows[0].before)),
        left(static_cast<int>(conv.windows[1].before)),
        places(static_cast<int>(conv.out.batch * conv.out.height * conv.out.width)),
        by_out_width(static_cast<uint32_t>(out_width)),
        by_out_height(static_cast<uint32_t>(out_height)) {}

  MOONFLOW_BOTH int tiles() const { return high * (filters / kFilters) * (channels / kChannels); }
  MOONFLOW_BOTH int stages() const { return (places + kPlaces - 1) / kPlaces; }
  int part_count() const { return (stages() + stages_of_part - 1) / stages_of_part; }
  int64_t blocks() const { return int64_t{tiles()} * part_count(); }
  int64_t shared_bytes() const {
    const int64_t factors = int64_t{kStages} * stage_numbers(), sums = int64_t{kShares} * kFilters * kPitch;
    return (factors > sums ? factors : sums) * static_cast<int64_t>(sizeof(float));
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const Tile tile = tile_of(static_cast<int>(block.index()));
    float* const ring = block.template shared<float>();
    const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    const int share = warp & (kShares - 1), first_of_warp = warp / kShares * kChannelsOfWarp;
    int own_dy[4];  // where what this thread reads on a card begins: its filters lie in four orders
    MOONFLOW_UNROLL
    for (int i = 0; i < 4; ++i) own_dy[i] = number_of_dy(share * OfWarp::kDepth + (lane & 3), 8 * i + (lane >> 2 & 7));
    OfWarp sums;
    for (int stage = tile.first; stage < tile.first + kStages - 1; ++stage) fetch(block, tile, stage, ring);
    for (int stage = tile.first; stage < tile.last; ++stage) {
      block.template wait_for_copies<kStages - 2>();
      block.sync();  // this stage is there, and nobody needs the one before any more
      fetch(block, tile, stage + kStages - 1, ring);
      const float* const of_dy = ring + stage % kStages * stage_numbers();
      const float* const of_image = of_dy + kPlaces * kFilters;
      const int first_place = stage * kPlaces;
      MOONFLOW_UNROLL
      for (int i = 0; i < kPlaces / (kShares * OfWarp::kDepth); ++i) {
        const int first = (i * kShares + share) * OfWarp::kDepth;
        // Of the images a thread reads two places and those beside them, one for each tap of the row.
        int at[2];
        MOONFLOW_UNROLL
        for (int half = 0; half < 2; ++half) at[half] = place_of(first_place, first + lane % 4 + half * 4);
        sums.add(
            lane,
            [&](int f, int k) {
              if (!on_tensor_cores()) return of_dy[number_of_dy(first + k, f)];
              return of_dy[own_dy[f >> 3 & 3] + (f >> 5) * 32 + (i * kShares * OfWarp::kDepth + (k & 4)) * kFilters];
            },
            [&](int k, int column) {
              const int place = on_tensor_cores() ? at[k >> 2] : place_of(first_place, first + k);
              const int tap = column / kChannelsOfWarp;
              return of_image[number_of_image(place + tap, first_of_warp + column % kChannelsOfWarp)];
            });
      }
    }
    block.sync();
    end(block, tile, sums, share, first_of_warp);
  }

 private:
  struct Tile {
    int part, first, last;  // stages
    int tap_row, filter, channel;
  };
  MOONFLOW_DEVICE Tile tile_of(int index) const {
    const int across = channels / kChannels, down = filters / kFilters;
    Tile tile;
    tile.part = index / tiles();
    tile.first = tile.part * stages_of_part;
    tile.last = tile.first + stages_of_part < stages() ? tile.first + stages_of_part : stages();
    tile.channel = index % across * kChannels;
    tile.filter = index / across % down * kFilters;
    tile.tap_row = index / across / down % high;
    return tile;
  }

  // A stage has whole rows of the images, with the padding beside them.
  MOONFLOW_BOTH int pitch() const { return out_width + kWide - 1; }
  MOONFLOW_BOTH int stage_numbers() const {
    const int rows = (kPlaces + out_width - 2) / out_width + 1;
    return kPlaces * kFilters + rows * pitch() * kChannels;
  }
  MOONFLOW_DEVICE int row_of(int place) const {
    return static_cast<int>(by_out_width.quotient(static_cast<uint32_t>(place)));
  }
  // The first place of the images in a stage that place `i` of the stage reads.
  MOONFLOW_DEVICE int place_of(int first_place, int i) const {
    const int place = first_place + i < places ? first_place + i : first_place;
    uint32_t x;
    const uint32_t row = by_out_width.quotient(static_cast<uint32_t>(place), x);
    return (static_cast<int>(row) - row_of(first_place)) * pitch() + static_cast<int>(x);
  }

  // Numbers of four neighbouring places lie in four orders: what a warp reads at once lies in different banks.
  MOONFLOW_DEVICE static int number_of_image(int place, int k) { return place * kChannels + (k ^ (place & 3) << 3); }
  MOONFLOW_DEVICE static int number_of_dy(int place, int f) { return place * kFilters + (f ^ (place & 3) << 3); }

  template <class Block>
  MOONFLOW_DEVICE void fetch(const Block& block, const Tile& tile, int stage, float* ring) const {
    if (stage < tile.last) {
      float* const of_dy = ring + stage % kStages * stage_numbers();
      const int first_place = stage * kPlaces, first_row = row_of(first_place);
      constexpr int kPacks = kFilters / 4, kAtOnce = kThreads / kPacks;
      const int own = block.thread() / kPacks, f = block.thread() % kPacks * 4;
      const float* const from = dy + int64_t{first_place + own} * filters + tile.filter + f;
      MOONFLOW_UNROLL
      for (int place = 0; place < kPlaces; place += kAtOnce) {
        const bool inside = first_place + own + place < places;
        block.template begin_copy<16>(of_dy + number_of_dy(own + place, f), inside ? from + place * filters : dy,
                                      inside ? 16 : 0);
      }
      float* const of_image = of_dy + kPlaces * kFilters;
      const int last_place = first_place + kPlaces < places ? first_place + kPlaces - 1 : places - 1;
      const int rows = row_of(last_place) - first_row + 1;
      for (int row = block.thread() / kWarp; row < rows; row += kThreads / kWarp)
        fetch_row(block, tile, first_row + row, of_image, row * pitch());
    }
    block.end_copies();  // also of none, so that groups can be counted
  }

  // The tile's channels of what row `row` of all gradients reads, with zeros for the padding. One warp does it.
  template <class Block>
  MOONFLOW_DEVICE void fetch_row(const Block& block, const Tile& tile, int row, float* of_image, int first) const {
    uint32_t of_out;
    const uint32_t n = by_out_height.quotient(static_cast<uint32_t>(row), of_out);
    const int y = static_cast<int>(of_out) + tile.tap_row - above;
    const bool there = y >= 0 && y < height;
    const float* const from =
        image + ((int64_t{n} * height + (there ? y : 0)) * width - left) * channels + tile.channel;
    constexpr int kPacks = kChannels / 4;
    for (int i = block.thread() % kWarp; i < pitch() * kPacks; i += kWarp) {
      const int x = i / kPacks, k = i % kPacks * 4;
      const bool inside = there && x >= left && x < left + width;
      block.template begin_copy<16>(of_image + number_of_image(first + x, k), inside ? from + x * channels + k : image,
                                    inside ? 16 : 0);
    }
  }

  // Adds up what the warps have that share the places, in their order.
  template <class Block>
  MOONFLOW_DEVICE void end(const Block& block, const Tile& tile, const OfWarp& sums, int share,
                           int first_of_warp) const {
    const int lane = block.thread() % kWarp;
    float* const shares = block.template shared<float>();
    MOONFLOW_UNROLL
    for (int pair = 0; pair < OfWarp::kPairs; ++pair) {
      const int column = OfWarp::column(lane, pair);
      const int to = column / kChannelsOfWarp * kChannels + first_of_warp + column % kChannelsOfWarp;
      *reinterpret_cast<Pack<float, 2>*>(shares + (share * kFilters + OfWarp::row(lane, pair)) * kPitch +
                                         to) = {{sums.of(pair, 0), sums.of(pair, 1)}};
    }
    block.sync();
    constexpr int kPacks = kWide * kChannels / 4;
    const int taps = high * kWide;
    for (int i = block.thread(); i < kFilters * kPacks; i += kThreads) {
      const int f = i / kPacks, column = i % kPacks * 4;
      Pack<float, 4> sum{};
      MOONFLOW_UNROLL
      for (int from = 0; from < kShares; ++from) {
        const auto added = *reinterpret_cast<const Pack<float, 4>*>(shares + (from * kFilters + f) * kPitch + column);
        MOONFLOW_UNROLL
        for (int n = 0; n < 4; ++n) sum.values[n] += added.values[n];
      }
      const int tap = tile.tap_row * kWide + column / kChannels;
      const int64_t to = ((int64_t{tile.part} * filters + tile.filter + f) * taps + tap) * channels + tile.channel +
                         column % kChannels;
      *reinterpret_cast<Pack<float, 4>*>(parts + to) = sum;
    }
  }
};

// Adds the parts, in their order. Where the gradient is to be in rows, channels come before places there.
struct AddFilterGradients {
  int64_t count;  // of a part
  int parts, channels, taps;
  bool in_rows;
  Divisor by_channels, by_taps;
  const float* from;
  float* to;

  MOONFLOW_DEVICE void operator()(int64_t i) const {
    float sum = 0;
    MOONFLOW_UNROLL_BY(8)
    for (int part = 0; part < parts; ++part) sum += from[part * count + i];
    int64_t place = i;
    if (in_rows) {
      uint32_t channel, tap;
      const uint32_t filter = by_taps.quotient(by_channels.quotient(static_cast<uint32_t>(i), channel), tap);
      place = (int64_t{filter} * channels + channel) * taps + tap;
    }
    to[place] = sum;
  }
};

}  // namespace moonflow::cuda
