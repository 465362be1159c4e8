// The filter's gradient of a convolution with relu and pooling of 2x2 windows behind it, whose gradient is sparse: a
// window's passes to one of its four places, and to none where relu let nothing through, as in half of the windows of a
// trained network. So
//     dfilter[f, c, i, j] = sum over the windows w that pass in filter f of dy[w, f] * x[c, place(w, f) + (i, j)]
// takes an eighth of the products of the sum over all places, fewer than Winograd's algorithm, with the roundings of
// plain sums.
//
// Each filter passes at places of its own, so first it is noted what each filter passes and where, tile by tile of up
// to 8x8 windows or of some small images. Then the sums of all taps, of one filter in 16 channels, stay in registers
// over the windows of a tile, while a padded copy of the image under it lies in the first-level cache. Each thread has
// filters of its own, so the result is the same for any number of them.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kLanes = Blocks::kLanes;
constexpr int64_t kSide = 18;             // places along a side of what lies under a tile, with all its taps
constexpr int64_t kRow = kSide * kLanes;  // floats
constexpr int64_t kUnder = kSide * kRow;  // 20 KiB, so it lies in a first-level cache

// What passes through a window.
struct Passed {
  float gradient;
  int32_t place;  // of the image under its first tap, in floats from the corner of the tile
};

struct Work {
  Blocks image, windows;
  int64_t above, left;  // padding
  int64_t images, channels, filters;
  int64_t filter_step, channel_step, tap_step;  // of the gradient
  int64_t taps;                                 // along a side
  int64_t parts;                                // of the filters

  int64_t blocks() const { return image.channels / kLanes; }
  int64_t sums() const { return taps * taps * kLanes; }  // of a filter in a block of channels
};

struct Tile {
  int64_t image, images;               // the first of them, and how many
  int64_t row, column, rows, columns;  // windows in each
};

// The windows of all images in tiles.
struct Tiling {
  int64_t down, across;                        // tiles in an image
  int64_t rows, columns;                       // windows in a tile at most
  int64_t images_down = 1, images_across = 1;  // that lie under a tile beside one another
  int64_t count;

  explicit Tiling(const Work& work) {
    const int64_t most = (kSide - work.taps + 1) / 2;
    down = divide_up(work.windows.height, most);
    across = divide_up(work.windows.width, most);
    rows = divide_up(work.windows.height, down);
    columns = divide_up(work.windows.width, across);
    if (down * across == 1) {
      images_down = kSide / (2 * rows + work.taps - 1);
      images_across = kSide / (2 * columns + work.taps - 1);
    }
    count = divide_up(work.images, images()) * down * across;
  }

  int64_t images() const { return images_down * images_across; }  // in a tile at most
  int64_t windows() const { return images() * rows * columns; }

  Tile tile(const Work& work, int64_t index) const {
    const int64_t image = index / (down * across) * images();
    const int64_t row = index / across % down * rows, column = index % across * columns;
    return {image,  std::min(images(), work.images - image),   row,
            column, std::min(rows, work.windows.height - row), std::min(columns, work.windows.width - column)};
  }
  // Where the image of that number begins under a tile, in floats.
  int64_t corner(const Work& work, int64_t image) const {
    return image / images_across * (2 * rows + work.taps - 1) * kRow +
           image % images_across * (2 * columns + work.taps - 1) * kLanes;
  }
};

// The part of an image under a tile, in one block of channels, with zeros around the image.
void copy_under(const Work& work, const Tile& tile, const float* block, float* to) {
  const int64_t top = 2 * tile.row - work.above, left = 2 * tile.column - work.left;
  const int64_t rows = 2 * tile.rows + work.taps - 1, columns = 2 * tile.columns + work.taps - 1;
  const int64_t first = std::clamp<int64_t>(-left, 0, columns),
                last = std::clamp(work.image.width - left, first, columns);
  for (int64_t i = 0; i < rows; ++i, to += kRow) {
    if (top + i < 0 || top + i >= work.image.height) {
      std::memset(to, 0, columns * kLanes * sizeof(float));
      continue;
    }
    const float* from = block + (top + i) * work.image.row + left * work.image.column;
    std::memset(to, 0, first * kLanes * sizeof(float));
    for (int64_t j = first; j < last; ++j)
      std::memcpy(to + j * kLanes, from + j * work.image.column, kLanes * sizeof(float));
    std::memset(to + last * kLanes, 0, (columns - last) * kLanes * sizeof(float));
  }
}

// How many windows of a tile pass something in a filter, and its sum.
struct Note {
  int32_t count;
  float sum;
};

Note note_passed(const Work& work, const Tiling& tiling, const Tile& tile, int64_t filter, const float* dy,
                 const uint8_t* places, Passed* passed) {
  constexpr int32_t kPlaces[] = {0, kLanes, kRow, kRow + kLanes};
  Note note{0, 0};
  for (int64_t n = 0; n < tile.images; ++n) {
    const int64_t corner = (tile.image + n) * work.windows.batch + filter / kLanes * work.windows.block +
                           filter % kLanes + tile.row * work.windows.row + tile.column * work.windows.column;
    for (int64_t y = 0; y < tile.rows; ++y) {
      int64_t at = corner + y * work.windows.row;
      auto window = static_cast<int32_t>(tiling.corner(work, n) + 2 * y * kRow);
      for (int64_t x = 0; x < tile.columns; ++x, at += work.windows.column, window += 2 * kLanes) {
        const uint8_t place = places[at];
        const bool passes = place < 4;  // no branch, which nothing could foresee
        passed[note.count] = {dy[at], window + kPlaces[place % 4]};
        note.sum += passes ? dy[at] : 0;
        note.count += passes;
      }
    }
  }
  return note;
}

// Adds the windows of a tile to kRows rows of taps, in one register of channels.
template <class R, int kRows, int kTaps>
void sum_rows(const Passed* passed, int32_t count, const float* under, float* sums) {
  typename R::Vector sum[kRows][kTaps];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) sum[i][j] = R::at(sums + (i * kTaps + j) * kLanes);
  }
  for (const Passed* const end = passed + count; passed != end; ++passed) {
    const float* const corner = under + passed->place;
    const float gradient = passed->gradient;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kTaps; ++j) sum[i][j] += gradient * R::at(corner + i * kRow + j * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kTaps; ++j) R::at(sums + (i * kTaps + j) * kLanes) = sum[i][j];
  }
}

// The same for all taps and 16 channels: sums[tap][channel].
template <class R, int kTaps>
void sum_tile(const Passed* passed, int32_t count, const float* under, float* sums) {
  constexpr int kFit = (R::kCount - 2) / kTaps, kRows = kFit < kTaps ? kFit : kTaps, kRest = kTaps % kRows;
  for (int64_t lane = 0; lane < kLanes; lane += R::kWidth) {
    int i = 0;
    for (; i + kRows <= kTaps; i += kRows) {
      sum_rows<R, kRows, kTaps>(passed, count, under + i * kRow + lane, sums + i * kTaps * kLanes + lane);
    }
    if constexpr (kRest > 0) {
      sum_rows<R, kRest, kTaps>(passed, count, under + i * kRow + lane, sums + i * kTaps * kLanes + lane);
    }
  }
}

// What a part of the filters needs of scratch: where it lies there, in bytes.
struct Room {
  int64_t group;  // tiles that are noted together
  int64_t sums, under, notes, passed, bytes = 0;

  Room(const Work& work, const Tiling& tiling) {
    constexpr int64_t kNoted = int64_t{1} << 18;  // bytes of what passes, in the second-level cache
    const int64_t filters = divide_up(work.filters, work.parts);
    const int64_t passed_bytes = filters * tiling.windows() * static_cast<int64_t>(sizeof(Passed));
    group = std::clamp<int64_t>(kNoted / passed_bytes, 1, tiling.count);
    const auto place = [&](int64_t more) { return std::exchange(bytes, bytes + aligned(more)); };
    constexpr int64_t kFloat = sizeof(float);
    sums = place(work.blocks() * filters * work.sums() * kFloat);
    under = place(kUnder * kFloat);
    notes = place(group * filters * static_cast<int64_t>(sizeof(Note)));
    passed = place(group * passed_bytes);
  }
};

// The sums of some filters, of which each thread has its own.
class Part {
 public:
  Part(const Work& work, const Tiling& tiling, const Room& room, int64_t first, int64_t last, char* scratch)
      : work_(work),
        tiling_(tiling),
        first_(first),
        filters_(last - first),
        group_(room.group),
        sums_(reinterpret_cast<float*>(scratch + room.sums)),
        under_(reinterpret_cast<float*>(scratch + room.under)),
        notes_(reinterpret_cast<Note*>(scratch + room.notes)),
        passed_(reinterpret_cast<Passed*>(scratch + room.passed)) {}

  template <class R>
  void compute(const float* dy, const uint8_t* places, const float* image, float* dfilter, float* dbias) const {
    std::memset(sums_, 0, work_.blocks() * filters_ * work_.sums() * sizeof(float));
    std::fill_n(dbias + first_, filters_, 0.0f);
    for (int64_t tile = 0; tile < tiling_.count; tile += group_) {
      const int64_t tiles = std::min(group_, tiling_.count - tile);
      note(tile, tiles, dy, places, dbias + first_);
      sum<R>(tile, tiles, image);
    }
    store(dfilter);
  }

 private:
  // Of a tile of the group and one of these filters.
  Note& note_of(int64_t tile, int64_t filter) const { return notes_[tile * filters_ + filter]; }
  Passed* passed_of(int64_t tile, int64_t filter) const {
    return passed_ + (tile * filters_ + filter) * tiling_.windows();
  }
  // Of a block of channels and a filter: block * filters_ + filter.
  float* sums_of(int64_t pair) const { return sums_ + pair * work_.sums(); }

  void note(int64_t first, int64_t tiles, const float* dy, const uint8_t* places, float* dbias) const {
    for (int64_t t = 0; t < tiles; ++t) {
      const Tile tile = tiling_.tile(work_, first + t);
      for (int64_t f = 0; f < filters_; ++f) {
        note_of(t, f) = note_passed(work_, tiling_, tile, first_ + f, dy, places, passed_of(t, f));
        dbias[f] += note_of(t, f).sum;
      }
    }
  }

  // As many sums at a time as stay in the second-level cache.
  template <class R>
  void sum(int64_t first, int64_t tiles, const float* image) const {
    const int64_t at_once = (int64_t{1} << 18) / (work_.sums() * static_cast<int64_t>(sizeof(float)));
    const int64_t pairs = work_.blocks() * filters_;
    for (int64_t pair = 0; pair < pairs; pair += at_once) {
      for (int64_t t = 0; t < tiles; ++t)
        sum_pairs<R>(tiling_.tile(work_, first + t), t, pair, std::min(pairs, pair + at_once), image);
    }
  }

  template <class R>
  void sum_pairs(const Tile& tile, int64_t t, int64_t first, int64_t last, const float* image) const {
    for (int64_t pair = first; pair < last; ++pair) {
      const int64_t block = pair / filters_, f = pair % filters_;
      if (pair == first || f == 0) {
        for (int64_t n = 0; n < tile.images; ++n) {
          copy_under(work_, tile, image + (tile.image + n) * work_.image.batch + block * work_.image.block,
                     under_ + tiling_.corner(work_, n));
        }
      }
      const int32_t count = note_of(t, f).count;
      if (work_.taps == 3)
        sum_tile<R, 3>(passed_of(t, f), count, under_, sums_of(pair));
      else
        sum_tile<R, 5>(passed_of(t, f), count, under_, sums_of(pair));
    }
  }

  void store(float* dfilter) const {
    for (int64_t pair = 0; pair < work_.blocks() * filters_; ++pair) {
      const int64_t c = pair / filters_ * kLanes, f = first_ + pair % filters_;
      const float* const from = sums_of(pair);
      float* const to = dfilter + f * work_.filter_step + c * work_.channel_step;
      for (int64_t lane = 0; lane < std::min(kLanes, work_.channels - c); ++lane)
        for (int64_t tap = 0; tap < work_.taps * work_.taps; ++tap)
          to[lane * work_.channel_step + tap * work_.tap_step] = from[tap * kLanes + lane];
    }
  }

  const Work& work_;
  const Tiling& tiling_;
  const int64_t first_, filters_, group_;
  float* const sums_;
  float* const under_;
  Note* const notes_;
  Passed* const passed_;
};

}  // namespace

bool sparse_fits(const Conv& conv, ConvKind kind) {
  if (kind != ConvKind::PoolFilterGrad || conv.groups != 1 || conv.format.spatial_axes != 2) return false;
  if (!conv.slides_by_one() || conv.windows[1].size != conv.windows[0].size) return false;
  if (conv.windows[0].size != 3 && conv.windows[0].size != 5) return false;
  if (conv.image.batch == 0 || conv.out.height < 2 || conv.out.width < 2) return false;
  if (conv.format.channels_last) return conv.image.channels % kLanes == 0 && conv.filters() % kLanes == 0;
  return true;
}

void sparse_layouts(const Conv& conv, LayoutCall& call) {
  for (size_t i = 0; i < call.inputs.size(); ++i)
    call.inputs[i] = in_blocks(call.input_types[i], call.inputs[i], conv.format);
  for (Layout& layout : call.outputs) layout = {};
}

Launch conv_sparse(const Conv& conv, KernelCall& call) {
  const auto input = [&](int i) { return blocks_of(call.inputs[i], call.input_layouts[i], conv.format); };
  const std::optional<Blocks> windows = input(0), places = input(1), image = input(2);
  if (!windows || !places || !image || places->block != windows->block || places->column != windows->column) return {};
  const int64_t taps = conv.windows[0].size;
  const bool last = conv.format.channels_last;
  const Work work{*image,
                  *windows,
                  conv.windows[0].before,
                  conv.windows[1].before,
                  conv.image.batch,
                  conv.image.channels,
                  conv.filters(),
                  taps * taps * conv.image.channels,
                  last ? 1 : taps * taps,
                  last ? conv.image.channels : 1,
                  taps,
                  std::min<int64_t>(conv_parts(conv), conv.filters())};
  const Tiling tiling(work);
  const Room room(work, tiling);
  call.scratch_bytes = work.parts * room.bytes;
  return [=](const LaunchCall& launch) {
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          const Part part(work, tiling, room, work.filters * i / work.parts, work.filters * (i + 1) / work.parts,
                          static_cast<char*>(launch.scratch) + i * room.bytes);
          part.compute<decltype(width)>(launch.input<float>(0), launch.input<uint8_t>(1), launch.input<float>(2),
                                        launch.output<float>(0), launch.output<float>(1));
        }
      });
    });
  };
}

}  // namespace moonflow::cpu
