// Convolution by direct sums in the tile registers of AMX. Images are rounded to bfloat16 as they are copied to where
// they have a border of zeros, 32 channels of a place side by side: so 16 neighbours are a tile of pairs as they lie,
// for each tap a bit further on. The filter is rounded and paired once. A tile of sums is 16 places in a block of 16
// channels, which is how images in blocks are stored. With strides the image is packed in phases; its gradient is what
// has phases then, each of which meets taps of its own.
#include <algorithm>
#include <vector>

#include "kernels/cpu/conv_tiles.h"
#include "kernels/cpu/device.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

using namespace amx;  // its tiles, by name

// Where a tile of places starts in the image with its border, and in the sums.
struct Piece {
  int64_t from, to;
};

// Every step-th of the outputs along an axis.
struct Outputs {
  int64_t first, step, count;
};

// Those that meet the same taps.
struct OutputPhase {
  Outputs outputs;
  std::vector<TapPlace> taps;
};

struct Axis {
  PackedAxis packed;
  int64_t length;  // outputs of the longest phase
  int64_t reach;   // how far the last tap is from the first
  std::vector<OutputPhase> phases;

  int64_t places() const { return length + reach; }  // of a packed phase
};

Axis forwards(const Window& window) {
  Axis axis{packed_axis(window), window.out, tap_place(window, window.size - 1).distance, {{{0, 1, window.out}, {}}}};
  for (int64_t tap = 0; tap < window.size; ++tap) axis.phases[0].taps.push_back(tap_place(window, tap));
  return axis;
}

// Place q of the image, and q + before = t * stride + phase, met output t + (phase - tap * dilation) / stride by each
// tap for which that is whole. The filter is turned by 180 degrees: tap 0 of it is the last one.
Axis backwards(const Window& window) {
  Axis axis{{1, 1, 0}, divide_up(window.in, window.stride), 0, {}};
  int64_t least = window.out, greatest = -window.in;
  for (int64_t phase = 0; phase < window.stride; ++phase) {
    const int64_t t = divide_up(std::max<int64_t>(0, window.before - phase), window.stride);
    const int64_t first = t * window.stride + phase - window.before;
    const int64_t count = divide_up(std::max<int64_t>(0, window.in - first), window.stride);
    OutputPhase own{{first, window.stride, count}, {}};
    for (int64_t tap = 0; tap < window.size; ++tap) {
      const int64_t behind = phase - (window.size - 1 - tap) * window.dilation;
      if (behind % window.stride != 0) continue;
      own.taps.push_back({tap, 0, t + behind / window.stride});
      least = std::min(least, own.taps.back().distance);
      greatest = std::max(greatest, own.taps.back().distance);
    }
    axis.phases.push_back(std::move(own));
  }
  axis.packed.before = -least;
  axis.reach = greatest - least;
  for (OutputPhase& phase : axis.phases)
    for (TapPlace& tap : phase.taps) tap.distance -= least;
  return axis;
}

struct Work {
  Blocks image, out;  // where it is pooled, what it was or will be
  Axis down, across;
  int64_t taps_down, taps_across;
  int64_t summed, produced;  // channels
  FilterSteps filter;
  bool has_bias, adds;
  Activation activation;
  bool image_pooled, out_pooled;  // only the largest of each 2x2 window is there, and where it was
  int64_t images;
  int parts;

  int64_t depth() const { return divide_up(summed, kDepth); }
  int64_t pairs() const { return divide_up(produced, 2 * kBlock); }  // of blocks that are produced together
  int64_t taps() const { return taps_down * taps_across; }

  // bfloat16 of a packed phase in 32 channels, of an image, of the weights of a tap and of a pair of blocks; floats of
  // the sums of a block.
  int64_t plane() const { return down.places() * across.places() * kDepth; }
  int64_t image_size() const { return down.packed.phases * across.packed.phases * depth() * plane(); }
  int64_t weights_of_tap() const { return depth() * 2 * kTile; }
  int64_t weights_size() const { return taps() * weights_of_tap(); }
  int64_t sums_of_block() const { return down.length * across.places() * kBlock; }

  // So many that they and the weights they meet stay in the second cache.
  int64_t together() const {
    constexpr int64_t kBytes = 1 << 18;
    return std::clamp<int64_t>(kBytes / (2 * image_size()), 1, divide_up(images, parts));
  }
};

// Outputs that meet the same taps, and what each of these adds to where an image and weights begin.
struct Phase {
  Outputs down, across;
  struct Tap {
    int64_t image, weights;
  };
  std::vector<Tap> taps;
};

std::vector<Phase> phases_of(const Work& work) {
  std::vector<Phase> all;
  for (const OutputPhase& down : work.down.phases) {
    for (const OutputPhase& across : work.across.phases) {
      Phase phase{down.outputs, across.outputs, {}};
      for (const TapPlace& i : down.taps) {
        for (const TapPlace& j : across.taps) {
          const int64_t packed = (i.phase * work.across.packed.phases + j.phase) * work.depth() * work.plane();
          phase.taps.push_back({packed + (i.distance * work.across.places() + j.distance) * kDepth,
                                (i.tap * work.taps_across + j.tap) * work.weights_of_tap()});
        }
      }
      all.push_back(std::move(phase));
    }
  }
  return all;
}

// A tile covers neighbours in a row, or, where rows are short, all places of the image one after the other with the
// border between them, whichever takes fewer. All are of one height, so the last ones may overlap.
struct Pieces {
  int64_t height;  // places in each
  int64_t pitch;   // from row to row of the sums
  std::vector<Piece> all;

  explicit Pieces(const Work& work) {
    const int64_t rows = work.down.length, width = work.across.length, columns = work.across.places();
    const int64_t chain = (rows - 1) * columns + width;
    const bool in_rows = rows * divide_up(width, kBlock) <= divide_up(chain, kBlock);
    const int64_t length = in_rows ? width : chain, count = divide_up(length, kBlock);
    height = divide_up(length, count);
    pitch = in_rows ? width : columns;
    for (int64_t y = 0; y < (in_rows ? rows : 1); ++y) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t x = std::min(i * height, length - height);
        all.push_back({(y * columns + x) * kDepth, (y * pitch + x) * kBlock});
      }
    }
  }
};

// ---- packing -----------------------------------------------------------------------------------------------------

// Pairs of channels that are summed over, for a block of 16 that are produced: a tile for each tap and 32 channels. The
// taps of a row-major filter are neighbours.
[[MOONFLOW_BFLOAT16]] void pack_weights(const Work& work, const float* filter, int64_t block, uint16_t* weights) {
  const FilterSteps& steps = work.filter;
  const int64_t lanes = std::clamp<int64_t>(work.produced - block * kBlock, 0, kBlock);
  filter += steps.start + block * kBlock * steps.produced;
  for (int64_t c = 0; c < work.depth() * kDepth; c += 2, filter += 2 * steps.summed) {
    uint16_t* to = weights + c / kDepth * 2 * kTile + c % kDepth / 2 * kDepth;
    const int64_t count = std::clamp<int64_t>(work.summed - c, 0, 2);
    for (int64_t i = 0; i < work.taps_down; ++i) {
      for (int64_t j = 0; j < work.taps_across; ++j, to += work.weights_of_tap()) {
        const float* const tap = filter + i * steps.row + j * steps.column;
        alignas(kAlignment) float both[2][kBlock] = {};
        for (int64_t k = 0; k < count; ++k)
          for (int64_t lane = 0; lane < lanes; ++lane) both[k][lane] = tap[k * steps.summed + lane * steps.produced];
        _mm512_storeu_si512(to, in_pairs(_mm512_load_ps(both[0]), _mm512_load_ps(both[1])));
      }
    }
  }
}

// `count` places of two blocks of channels, of which the upper may be missing.
[[MOONFLOW_BFLOAT16]] void round_places(const float* lower, const float* upper, int64_t step, int64_t count,
                                        uint16_t* to) {
  for (int64_t x = 0; x < count; ++x, to += kDepth) {
    const __m512 high = upper ? _mm512_loadu_ps(upper + x * step) : _mm512_setzero_ps();
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, _mm512_loadu_ps(lower + x * step)));
  }
}

// A phase of an image. `unpooled` has room for two rows.
void pack_phase(const Work& work, const float* image, const uint8_t* places, int64_t down, int64_t across,
                float* unpooled, uint16_t* to) {
  const Blocks& from = work.image;
  const int64_t rows = work.down.places(), columns = work.across.places(), stride = work.across.packed.stride;
  const auto inside_down = work.down.packed.inside(down, from.height, rows);
  const auto inside = work.across.packed.inside(across, from.width, columns);
  const int64_t first = work.across.packed.place(across, inside.first), count = inside.last - inside.first;
  for (int64_t c = 0; c < work.depth(); ++c) {
    const bool has_upper = (2 * c + 1) * kBlock < from.channels;
    for (int64_t row = 0; row < rows; ++row, to += columns * kDepth) {
      if (row < inside_down.first || row >= inside_down.last) {
        std::fill_n(to, columns * kDepth, uint16_t{0});
        continue;
      }
      const int64_t y = work.down.packed.place(down, row);
      const float* blocks[2] = {};
      int64_t step = from.column;
      for (int64_t k = 0; k < 1 + has_upper; ++k) {
        const int64_t at = (2 * c + k) * from.block + (work.image_pooled ? y / 2 : y) * from.row;
        blocks[k] = image + at;
        if (!work.image_pooled) continue;
        float* const whole = unpooled + k * from.width * kBlock;
        unpool_row(image + at, places + at, from, y, whole);
        blocks[k] = whole;
        step = kBlock;
      }
      std::fill_n(to, inside.first * kDepth, uint16_t{0});
      round_places(blocks[0] + first * step, blocks[1] ? blocks[1] + first * step : nullptr, stride * step, count,
                   to + inside.first * kDepth);
      std::fill_n(to + inside.last * kDepth, (columns - inside.last) * kDepth, uint16_t{0});
    }
  }
}

void pack_image(const Work& work, const float* image, const uint8_t* places, float* unpooled, uint16_t* to) {
  for (int64_t i = 0; i < work.down.packed.phases; ++i)
    for (int64_t j = 0; j < work.across.packed.phases; ++j, to += work.depth() * work.plane())
      pack_phase(work, image, places, i, j, unpooled, to);
}

// ---- sums --------------------------------------------------------------------------------------------------------

// One piece or two, in a pair of blocks. The weights of a pair's blocks alternate.
template <bool kTwo>
void sum_pieces(const Work& work, const Phase& phase, const uint16_t* image, const Piece& upper, const Piece& lower,
                const uint16_t* all_weights, float* sums) {
  amx::zero_four_sums();
  const int64_t plane = work.plane();
  for (const Phase::Tap& tap : phase.taps) {
    const uint16_t *places = image + tap.image, *weights = all_weights + tap.weights;
    for (int64_t c = work.depth(); c > 0; --c, places += plane, weights += 2 * kTile) {
      amx::add_products<kTwo, true>(places + upper.from, places + lower.from, kPlace, weights, weights + kTile);
    }
  }
  float* const next = sums + work.sums_of_block();
  amx::store<kSum>(sums + upper.to, amx::kRowBytes);
  amx::store<kSumRight>(next + upper.to, amx::kRowBytes);
  if constexpr (kTwo) {
    amx::store<kSumBelow>(sums + lower.to, amx::kRowBytes);
    amx::store<kSumBelowRight>(next + lower.to, amx::kRowBytes);
  }
}

// ---- what becomes of them ----------------------------------------------------------------------------------------

struct Destination {
  float* out;
  uint8_t* places;
  const float* addend;
};

using R = Register<kBlock>;

// A phase of the block of an image, which starts at `to`.
void end_block(const Work& work, const Phase& phase, const float* sums, int64_t pitch, const float* bias,
               const Destination& to) {
  stand_alone(R(), [&] {
    const R::Vector shift = R::at(bias);
    const auto sum = [&](int64_t y, int64_t x, R::Vector& to_add) {
      to_add = R::at(sums + (y * pitch + x) * kBlock) + shift;
    };
    if (work.out_pooled) {
      for (int64_t y = 0; y < work.out.height / 2; ++y) {
        for (int64_t x = 0; x < work.out.width / 2; ++x) {
          const int64_t at = y * work.out.row + x * work.out.column;
          R::Vector window[4];
          for (int i = 0; i < 4; ++i) sum(2 * y + i / 2, 2 * x + i % 2, window[i]);
          pool_window<R>(window[0], window[1], window[2], window[3], to.out + at, to.places + at);
        }
      }
      return;
    }
    const Outputs &down = phase.down, &across = phase.across;
    for (int64_t y = 0; y < down.count; ++y) {
      for (int64_t x = 0; x < across.count; ++x) {
        const int64_t at =
            (down.first + y * down.step) * work.out.row + (across.first + x * across.step) * work.out.column;
        R::Vector result;
        sum(y, x, result);
        if (to.addend) result += R::at(to.addend + at);
        activate<R>(work.activation, result);
        R::at(to.out + at) = result;
      }
    }
  });
}

// Images [first, last) in pairs [first_pair, last_pair) of blocks, by one thread.
void convolve(const Work& work, const std::vector<Phase>& phases, const Pieces& pieces, const LaunchCall& call,
              const uint16_t* weights, int64_t first, int64_t last, int64_t first_pair, int64_t last_pair,
              char* scratch) {
  float* const sums = reinterpret_cast<float*>(scratch);
  float* const unpooled = sums + 2 * work.sums_of_block();
  auto* const images = reinterpret_cast<uint16_t*>(unpooled + 2 * work.image.width * kBlock);
  const float* const bias = work.has_bias ? call.input<float>(2) : nullptr;
  amx::configure(amx::four_sums(pieces.height, pieces.height));
  const int64_t together = work.together(), count = static_cast<int64_t>(pieces.all.size());
  for (int64_t begin = first; begin < last; begin += together) {
    const int64_t end = std::min(begin + together, last);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t at = n * work.image.batch;
      pack_image(work, call.input<float>(0) + at, work.image_pooled ? call.input<uint8_t>(1) + at : nullptr, unpooled,
                 images + (n - begin) * work.image_size());
    }
    for (int64_t pair = first_pair; pair < last_pair; ++pair) {
      alignas(kAlignment) float shifts[2 * kBlock] = {};
      for (int64_t c = 0; bias && c < std::min(2 * kBlock, work.produced - pair * 2 * kBlock); ++c)
        shifts[c] = bias[pair * 2 * kBlock + c];
      for (int64_t n = begin; n < end; ++n) {
        const uint16_t* const image = images + (n - begin) * work.image_size();
        const uint16_t* const own = weights + pair * work.weights_size();
        for (const Phase& phase : phases) {
          int64_t i = 0;
          for (; i + 1 < count; i += 2)
            sum_pieces<true>(work, phase, image, pieces.all[i], pieces.all[i + 1], own, sums);
          if (i < count) sum_pieces<false>(work, phase, image, pieces.all[i], pieces.all[i], own, sums);
          for (int64_t b = 2 * pair; b < 2 * pair + 2 && b * kBlock < work.out.channels; ++b) {
            const int64_t at = n * work.out.batch + b * work.out.block;
            const Destination to{call.output<float>(0) + at, work.out_pooled ? call.output<uint8_t>(1) + at : nullptr,
                                 work.adds ? call.input<float>(3) + at : nullptr};
            end_block(work, phase, sums + b % 2 * work.sums_of_block(), pieces.pitch, shifts + b % 2 * kBlock, to);
          }
        }
      }
    }
  }
  amx::release();
}

}  // namespace

bool tiles_fit(const Conv& conv) {
  constexpr double kLeastFlops = 4e6;
  constexpr int64_t kLeastPlaces = 512;  // that meet the filter, to pay for packing it
  constexpr int64_t kMostWeights = int64_t{1} << 25;
  if (!has_tiles() || conv.groups != 1 || conv.format.spatial_axes != 2) return false;
  if (conv.format.channels_last && (conv.image.channels % kBlock != 0 || conv.filters() % kBlock != 0)) return false;
  const int64_t weights = conv.windows[0].size * conv.windows[1].size * conv.image.channels * conv.filters();
  return conv.image.channels >= kBlock && conv.filters() >= kBlock && weights <= kMostWeights &&
         conv_flops(conv) >= kLeastFlops && conv.image.height * conv.image.width > 0 &&
         conv.out.batch * conv.out.height * conv.out.width >= kLeastPlaces;
}

Launch conv_tiles(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call) {
  if (is_filter_grad(kind)) return conv_tiles_filter(conv, kind, call);
  const bool turned = is_input_grad(kind), pooled = is_pooled(kind);
  const std::optional<ConvBlocks> blocks = conv_blocks(conv, kind, call);
  if (!blocks) return {};
  const Window &down = conv.windows[0], &across = conv.windows[1];
  const Work work{blocks->image,
                  blocks->out,
                  turned ? backwards(down) : forwards(down),
                  turned ? backwards(across) : forwards(across),
                  down.size,
                  across.size,
                  turned ? conv.filters() : conv.image.channels,
                  turned ? conv.image.channels : conv.filters(),
                  filter_steps(conv, kind),
                  has_bias(kind),
                  kind == ConvKind::ForwardAdd,
                  activation,
                  pooled && turned,
                  pooled && !turned,
                  conv.image.batch,
                  conv_parts(conv, kSaving)};
  // Threads take images, or parts of what each image becomes where there are fewer of them.
  const int64_t of_images = std::min<int64_t>(work.parts, work.images), of_pairs = work.parts / of_images;
  const int64_t all_weights = aligned(2 * work.pairs() * work.weights_size());
  const int64_t own =
      aligned(4 * (2 * work.sums_of_block() + 2 * work.image.width * kBlock) + 2 * work.together() * work.image_size());
  call.scratch_bytes = all_weights + work.parts * own;
  const int filter_input = kind == ConvKind::PoolInputGrad ? 2 : 1;
  return [=, phases = phases_of(work), pieces = Pieces(work)](const LaunchCall& at) {
    char* const scratch = static_cast<char*>(at.scratch);
    auto* const weights = reinterpret_cast<uint16_t*>(scratch);
    parallel_for(2 * work.pairs(), work.parts == 1 ? 2 * work.pairs() : 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block)
        pack_weights(work, at.input<float>(filter_input), block,
                     weights + block / 2 * work.weights_size() + block % 2 * kTile);
    });
    parallel_for(of_images * of_pairs, 1, [&](int64_t first_part, int64_t last_part) {
      for (int64_t part = first_part; part < last_part; ++part) {
        const int64_t n = part / of_pairs, p = part % of_pairs;
        convolve(work, phases, pieces, at, weights, work.images * n / of_images, work.images * (n + 1) / of_images,
                 work.pairs() * p / of_pairs, work.pairs() * (p + 1) / of_pairs, scratch + all_weights + part * own);
      }
    });
  };
}

#else

bool tiles_fit(const Conv&) { return false; }
Launch conv_tiles(const Conv&, ConvKind, Activation, KernelCall&) { return {}; }

#endif

}  // namespace moonflow::cpu
