// The gradient of a convolution's filter in the tile registers of AMX: for each tap a product of the gradients, 16
// filters by places, and of the image, places by 16 channels, summed over all places of all images. Both lie on one
// chain of places, that of the image with its border, so that a tap is a distance along it; where the chain has no
// output, gradients are zeros. Places are paired, so there is the image twice, from even places on and from odd ones.
// With strides the image is packed in phases, each of which is a chain.
#include <algorithm>

#include "kernels/cpu/conv_tiles.h"
#include "kernels/cpu/device.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

using namespace amx;  // its tiles, by name

using Range = PackedAxis::Range;

struct Work {
  Blocks dy, x;  // dy as it was before pooling, where it is pooled
  bool pooled, has_bias;
  Window down, across;
  int64_t filters, channels;
  FilterSteps steps;
  int64_t images;
  int parts;

  PackedAxis rows_packed() const { return packed_axis(down); }
  PackedAxis columns_packed() const { return packed_axis(across); }
  int64_t phases() const { return rows_packed().phases * columns_packed().phases; }
  int64_t columns() const { return dy.width + reach(across); }  // of a packed phase
  static int64_t reach(const Window& window) { return tap_place(window, window.size - 1).distance; }
  // Tiles along the chain of an image, and pairs that a tap at the end of the filter reads there.
  int64_t tiles() const { return divide_up((dy.height - 1) * columns() + dy.width, kDepth); }
  int64_t pairs() const { return tiles() * kBlock + (reach(down) * columns() + reach(across) + 1) / 2; }

  // bfloat16 of an image in a block of filters, and in a block of channels, of which each phase is a chain.
  int64_t gradients_size() const { return tiles() * kTile; }
  int64_t phase_size() const { return 2 * pairs() * kDepth; }
  int64_t image_size() const { return phases() * phase_size(); }

  // Where a tap begins in an image.
  int64_t start(int64_t i, int64_t j) const {
    const TapPlace row = tap_place(down, i), column = tap_place(across, j);
    const int64_t places = row.distance * columns() + column.distance;
    return (row.phase * columns_packed().phases + column.phase) * phase_size() +
           (places % 2 * pairs() + places / 2) * kDepth;
  }

  // What is summed at a time: two blocks of filters, two of channels, and a row of taps.
  int64_t filter_pairs() const { return divide_up(filters, 2 * kBlock); }
  int64_t channel_pairs() const { return divide_up(channels, 2 * kBlock); }
  int64_t units() const { return filter_pairs() * channel_pairs() * down.size; }
  int64_t sums_of_unit() const { return across.size * 4 * kBlock * kBlock; }

  Range units_of(int64_t part) const { return {units() * part / parts, units() * (part + 1) / parts}; }
  // The pairs of blocks that units touch.
  Range filters_of(const Range& own) const {
    const int64_t each = channel_pairs() * down.size;
    return {own.first / each, (own.last - 1) / each + 1};
  }
  Range channels_of(const Range& own) const {
    const int64_t first = own.first / down.size, last = (own.last - 1) / down.size + 1;
    if (last - first >= channel_pairs() || last % channel_pairs() < first % channel_pairs() + 1)
      return {0, channel_pairs()};
    return {first % channel_pairs(), (last - 1) % channel_pairs() + 1};
  }

  // Images at a time, so that they stay in the second cache: bfloat16 of each is what a thread packs of it.
  int64_t size_of_image() const { return 2 * (filter_pairs() * gradients_size() + channel_pairs() * image_size()); }
  int64_t together() const {
    constexpr int64_t kBytes = 1 << 19;
    return std::clamp<int64_t>(kBytes / (2 * size_of_image()), 1, images);
  }
  // Floats of a block along the chain, and of a row before pooling.
  int64_t strip() const { return (2 * pairs() + 2 + dy.width) * kBlock; }
};

// ---- packing -----------------------------------------------------------------------------------------------------

// Which part of a block is laid out: a phase of each axis.
struct Part {
  PackedAxis down, across;
  int64_t row_phase, column_phase;
};

// A block of gradients with zeros between their rows, or a phase of an image with its border, as floats along a chain.
void lay_out(const Blocks& from, const float* block, const uint8_t* places, const Part& part, int64_t columns,
             int64_t count, float* row, float* chain) {
  std::fill_n(chain, count * kBlock, 0.f);
  const auto rows = part.down.inside(part.row_phase, from.height, divide_up(count, columns));
  const auto inside = part.across.inside(part.column_phase, from.width, columns);
  const int64_t left = part.across.place(part.column_phase, inside.first);
  for (int64_t p = rows.first; p < rows.last; ++p) {
    const int64_t y = part.down.place(part.row_phase, p), begin = p * columns;
    const float* whole = block + y * from.row;
    int64_t step = from.column;
    if (places) {
      const int64_t at = y / 2 * from.row;
      unpool_row(block + at, places + at, from, y, row);
      whole = row;
      step = kBlock;
    }
    whole += left * step;
    step *= part.across.stride;
    for (int64_t x = inside.first; x < inside.last && begin + x < count; ++x, whole += step)
      std::copy_n(whole, kBlock, chain + (begin + x) * kBlock);
  }
}

// Filters as rows: 16 pairs of places in each tile.
[[MOONFLOW_BFLOAT16]] void pack_gradients(const float* chain, int64_t tiles, uint16_t* to) {
  for (int64_t tile = 0; tile < tiles; ++tile, to += kTile) {
    __m512i block[kBlock];
    for (int64_t pair = 0; pair < kBlock; ++pair, chain += 2 * kBlock)
      block[pair] = in_pairs(_mm512_loadu_ps(chain), _mm512_loadu_ps(chain + kBlock));
    transpose_pairs(block);
    for (int64_t f = 0; f < kBlock; ++f) _mm512_storeu_si512(to + f * kDepth, block[f]);
  }
}

[[MOONFLOW_BFLOAT16]] void pack_image(const float* chain, int64_t pairs, uint16_t* to) {
  for (int64_t odd = 0; odd < 2; ++odd, chain += kBlock)
    for (int64_t pair = 0; pair < pairs; ++pair, to += kDepth)
      _mm512_storeu_si512(
          to, in_pairs(_mm512_loadu_ps(chain + 2 * pair * kBlock), _mm512_loadu_ps(chain + (2 * pair + 1) * kBlock)));
}

// ---- sums --------------------------------------------------------------------------------------------------------

// One tap, which begins at `start`, over `images` images, of which each block of two lies behind the other.
void add_tap(const Work& work, const uint16_t* gradients, int64_t gradients_step, const uint16_t* image,
             int64_t image_step, int64_t start, int64_t images, float* sums) {
  constexpr int64_t kSums = kBlock * kBlock;
  amx::load<kSum>(sums, amx::kRowBytes);
  amx::load<kSumRight>(sums + kSums, amx::kRowBytes);
  amx::load<kSumBelow>(sums + 2 * kSums, amx::kRowBytes);
  amx::load<kSumBelowRight>(sums + 3 * kSums, amx::kRowBytes);
  for (int64_t n = 0; n < images; ++n, gradients += gradients_step, image += image_step) {
    const uint16_t *left = gradients, *below = gradients + work.gradients_size();
    const uint16_t *right = image + start, *next = image + work.image_size() + start;
    for (int64_t tile = work.tiles(); tile > 0; --tile, left += kTile, below += kTile, right += kTile, next += kTile) {
      amx::add_products<true, true>(left, below, kPlace, right, next);
    }
  }
  amx::store<kSum>(sums, amx::kRowBytes);
  amx::store<kSumRight>(sums + kSums, amx::kRowBytes);
  amx::store<kSumBelow>(sums + 2 * kSums, amx::kRowBytes);
  amx::store<kSumBelowRight>(sums + 3 * kSums, amx::kRowBytes);
}

struct Inputs {
  const float *dy, *x;
  const uint8_t* places;
};

// The units of one thread.
void sum_units(const Work& work, const Inputs& from, const Range& own, float* sums, char* scratch) {
  if (own.first == own.last) return;
  const Range filters = work.filters_of(own), channels = work.channels_of(own);
  const int64_t gradients_step = 2 * (filters.last - filters.first) * work.gradients_size();
  const int64_t image_step = 2 * (channels.last - channels.first) * work.image_size();
  const int64_t together = work.together();
  float* const chain = reinterpret_cast<float*>(scratch);
  float* const row = chain + (2 * work.pairs() + 2) * kBlock;
  auto* const gradients = reinterpret_cast<uint16_t*>(chain + work.strip());
  uint16_t* const images = gradients + together * gradients_step;
  std::fill_n(sums + own.first * work.sums_of_unit(), (own.last - own.first) * work.sums_of_unit(), 0.f);
  amx::configure(amx::four_sums(amx::kRows, amx::kRows));
  for (int64_t begin = 0; begin < work.images; begin += together) {
    const int64_t count = std::min(together, work.images - begin);
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t b = 0; b < 2 * (filters.last - filters.first); ++b) {
        const int64_t block = 2 * filters.first + b, at = (begin + n) * work.dy.batch + block * work.dy.block;
        uint16_t* const to = gradients + n * gradients_step + b * work.gradients_size();
        if (block * kBlock >= work.dy.channels) {
          std::fill_n(to, work.gradients_size(), uint16_t{0});
          continue;
        }
        lay_out(work.dy, from.dy + at, from.places ? from.places + at : nullptr, {{1, 1, 0}, {1, 1, 0}, 0, 0},
                work.columns(), work.tiles() * kDepth, row, chain);
        pack_gradients(chain, work.tiles(), to);
      }
      for (int64_t b = 0; b < 2 * (channels.last - channels.first); ++b) {
        const int64_t block = 2 * channels.first + b;
        uint16_t* const to = images + n * image_step + b * work.image_size();
        if (block * kBlock >= work.x.channels) {
          std::fill_n(to, work.image_size(), uint16_t{0});
          continue;
        }
        const float* const image = from.x + (begin + n) * work.x.batch + block * work.x.block;
        const PackedAxis down = work.rows_packed(), across = work.columns_packed();
        for (int64_t i = 0; i < down.phases; ++i) {
          for (int64_t j = 0; j < across.phases; ++j) {
            lay_out(work.x, image, nullptr, {down, across, i, j}, work.columns(), 2 * work.pairs() + 1, row, chain);
            pack_image(chain, work.pairs(), to + (i * across.phases + j) * work.phase_size());
          }
        }
      }
    }
    for (int64_t unit = own.first; unit < own.last; ++unit) {
      const int64_t tap_row = unit % work.down.size, pair = unit / work.down.size;
      const int64_t f = pair / work.channel_pairs() - filters.first, c = pair % work.channel_pairs() - channels.first;
      for (int64_t j = 0; j < work.across.size; ++j)
        add_tap(work, gradients + 2 * f * work.gradients_size(), gradients_step, images + 2 * c * work.image_size(),
                image_step, work.start(tap_row, j), count, sums + unit * work.sums_of_unit() + j * 4 * kBlock * kBlock);
    }
  }
  amx::release();
}

// ---- what becomes of them ----------------------------------------------------------------------------------------

void store_unit(const Work& work, int64_t unit, const float* sums, float* dfilter) {
  const int64_t tap_row = unit % work.down.size, pair = unit / work.down.size;
  const int64_t f = pair / work.channel_pairs() * 2 * kBlock, c = pair % work.channel_pairs() * 2 * kBlock;
  const FilterSteps& steps = work.steps;
  for (int64_t j = 0; j < work.across.size; ++j) {
    for (int64_t part = 0; part < 4; ++part, sums += kBlock * kBlock) {
      const int64_t first_filter = f + part / 2 * kBlock, first_channel = c + part % 2 * kBlock;
      float* const to = dfilter + tap_row * steps.row + j * steps.column;
      for (int64_t k = 0; k < std::min(kBlock, work.filters - first_filter); ++k)
        for (int64_t l = 0; l < std::min(kBlock, work.channels - first_channel); ++l)
          to[(first_filter + k) * steps.produced + (first_channel + l) * steps.summed] = sums[k * kBlock + l];
    }
  }
}

// The gradients of a block of filters, summed over rows, then over images, so that errors stay small.
void sum_bias(const Work& work, const Inputs& from, int64_t block, float* dbias) {
  float sums[kBlock];
  stand_alone(Register<kBlock>(), [&] {
    using R = Register<kBlock>;
    const int64_t scale = work.pooled ? 2 : 1;
    R::Vector all = {};
    for (int64_t n = 0; n < work.images; ++n) {
      R::Vector image = {};
      for (int64_t y = 0; y < work.dy.height / scale; ++y) {
        const int64_t begin = n * work.dy.batch + block * work.dy.block + y * work.dy.row;
        R::Vector row = {};
        for (int64_t x = 0; x < work.dy.width / scale; ++x) {
          const int64_t at = begin + x * work.dy.column;
          R::Vector gradient = R::at(from.dy + at);
          if (work.pooled) {
            R::Integers place;
            R::widen(from.places + at, place);
            gradient = place < 4 ? gradient : R::Vector{};
          }
          row += gradient;
        }
        image += row;
      }
      all += image;
    }
    R::at(sums) = all;
  });
  std::copy_n(sums, std::min(kBlock, work.filters - block * kBlock), dbias + block * kBlock);
}

}  // namespace

Launch conv_tiles_filter(const Conv& conv, ConvKind kind, KernelCall& call) {
  const bool pooled = is_pooled(kind);
  const std::optional<ConvBlocks> blocks = conv_blocks(conv, kind, call);
  if (!blocks || !call.output_layouts[0].row_major()) return {};
  const Window &down = conv.windows[0], &across = conv.windows[1];
  const Work work{blocks->out,
                  blocks->image,
                  pooled,
                  has_bias(kind),
                  down,
                  across,
                  conv.filters(),
                  conv.image.channels,
                  filter_steps(conv, kind),
                  conv.image.batch,
                  conv_parts(conv, kSaving)};
  const int64_t all_sums = aligned(4 * work.units() * work.sums_of_unit());
  const int64_t own = aligned(4 * work.strip() + 2 * work.together() * work.size_of_image());
  call.scratch_bytes = all_sums + work.parts * own;
  return [=](const LaunchCall& at) {
    float* const sums = static_cast<float*>(at.scratch);
    char* const scratch = static_cast<char*>(at.scratch) + all_sums;
    const Inputs from{at.input<float>(0), at.input<float>(pooled ? 2 : 1), pooled ? at.input<uint8_t>(1) : nullptr};
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        const Range units = work.units_of(part);
        sum_units(work, from, units, sums, scratch + part * own);
        for (int64_t unit = units.first; unit < units.last; ++unit)
          store_unit(work, unit, sums + unit * work.sums_of_unit(), at.output<float>(0));
      }
    });
    if (!work.has_bias) return;
    const int64_t count = divide_up(work.filters, kBlock);
    parallel_for(count, work.parts == 1 ? count : 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) sum_bias(work, from, block, at.output<float>(1));
    });
  };
}

#else

Launch conv_tiles_filter(const Conv&, ConvKind, KernelCall&) { return {}; }

#endif

}  // namespace moonflow::cpu
