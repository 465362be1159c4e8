// What conv_winograd.cpp is made of, over registers: the sizes of the work, and the transforms of images, filters and
// gradients to points and back. That file explains them.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/conv_pool.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/winograd.h"

namespace moonflow::cpu::winograd {

constexpr int64_t kPanel = 32;  // filters side by side in the weights
constexpr int64_t kTiles = 14;  // in a unit of work at most: as many rows of a product as AVX-512 has registers for
constexpr int64_t kLine = 16;   // floats in a cache line

constexpr int64_t kBlock = Blocks::kLanes;

// ---- sizes ---------------------------------------------------------------------------------------------------------

// A filter as weights at the points: what it is made from, and how large it becomes.
struct FilterPoints {
  static constexpr char kMark[] = "winograd";
  int64_t taps;
  int64_t summed, produced;  // channels
  FilterSteps steps;

  int64_t points() const { return (taps + 3) * (taps + 3); }
  // Floats of the weights of one point; one line more than they are, as in Work.
  int64_t step() const { return round_up(summed, kBlock) * round_up(produced, kBlock) + kLine; }
};

// The output in tiles. The unit of work is a stretch of a row of tiles.
struct Tiling {
  int64_t rows, columns;  // of tiles in an image
  int64_t stretch;        // columns in a unit
  int64_t units_per_row;
  int64_t units;      // in the whole batch of images
  int64_t per_batch;  // units that are multiplied together

  // Whether the last row and the last column of tiles need only two outputs along their short side.
  bool narrow_row, narrow_column;

  Tiling(int64_t images, int64_t height, int64_t width, int64_t most_tiles) {
    rows = divide_up(height, 4);
    columns = divide_up(width, 4);
    units_per_row = divide_up(columns, kTiles);
    stretch = divide_up(columns, units_per_row);
    units_per_row = divide_up(columns, stretch);
    units = images * rows * units_per_row;
    per_batch = most_tiles / stretch;
    narrow_row = 4 * rows - height >= 2;
    narrow_column = 4 * columns - width >= 2;
  }
  int64_t most_tiles() const { return per_batch * stretch; }
};

struct Unit {
  int64_t image, row, column, tiles;
  bool narrow_row, narrow_column;       // of all its tiles, and of its last one
  int64_t place = 0, narrow_place = 0;  // of its first tile in the batch, and of that last one

  int64_t wide_tiles() const { return tiles - narrow_column; }
  bool is_narrow(int64_t tile) const { return tile >= wide_tiles(); }
  int64_t place_of(int64_t tile) const { return is_narrow(tile) ? narrow_place : place + tile; }
};

inline Unit unit(const Tiling& tiling, int64_t index) {
  const int64_t column = index % tiling.units_per_row * tiling.stretch;
  const int64_t row = index / tiling.units_per_row % tiling.rows;
  const int64_t tiles = std::min(tiling.stretch, tiling.columns - column);
  return {index / tiling.units_per_row / tiling.rows,
          row,
          column,
          tiles,
          tiling.narrow_row && row == tiling.rows - 1,
          tiling.narrow_column && column + tiles == tiling.columns};
}

// The units [first, last), whose tiles are multiplied together. The narrow ones lack points, so tiles lie in an order
// in which those that have a point are neighbours: narrow across, wide, narrow down, narrow both ways.
class Batch {
 public:
  Batch(const Tiling& tiling, int64_t first, int64_t last) : tiling_(tiling), first_(first), last_(last) {
    for (int64_t i = first; i < last; ++i) {
      const Unit here = unit(tiling, i);
      start_[group(here.narrow_row, false) + 1] += here.wide_tiles();
      start_[group(here.narrow_row, true) + 1] += here.narrow_column;
    }
    for (int i = 0; i < 4; ++i) start_[i + 1] += start_[i];
  }

  template <class Visit>
  void each_unit(const Visit& visit) const {
    int64_t place[4] = {start_[0], start_[1], start_[2], start_[3]};
    for (int64_t i = first_; i < last_; ++i) {
      Unit here = unit(tiling_, i);
      int64_t &wide = place[group(here.narrow_row, false)], &narrow = place[group(here.narrow_row, true)];
      here.place = wide;
      here.narrow_place = narrow;
      wide += here.wide_tiles();
      narrow += here.narrow_column;
      visit(here);
    }
  }

  struct Range {
    int64_t first, count;
  };
  // The tiles that have a point, by whether the narrow form has its row and its column.
  Range tiles(bool narrow_row, bool narrow_column) const {
    const int64_t first = start_[group(false, narrow_column)];
    return {first, start_[group(narrow_row, narrow_row && narrow_column) + 1] - first};
  }

 private:
  static int group(bool narrow_row, bool narrow_column) {
    if (narrow_column) return narrow_row ? 3 : 0;
    return narrow_row ? 2 : 1;
  }

  const Tiling& tiling_;
  int64_t first_, last_;
  int64_t start_[5] = {};
};

// Everything a launch needs to know. For the gradient of the image, `image` is dy and `out` is dx.
struct Work {
  Blocks image, out;
  int64_t before_row, before_column;  // padding
  int64_t image_channels, out_channels;
  FilterSteps filter;
  Tiling tiling;
  bool bias;
  Activation activation;
  bool sum;                       // with what lies as the output does, before the activation
  bool image_pooled, out_pooled;  // only the largest of each 2x2 window is there, and where it was
  int parts;

  // Floats of scratch: first what is shared, then the same for each part. The matrices of the points are one line
  // longer than they need be, so that the same place of all of them does not fall into the same cache set.
  int64_t points_step() const { return tiling.most_tiles() * image.channels + kLine; }
  // The products of a tile lie side by side, as they are collected.
  static constexpr int64_t products_tile(int64_t points) { return points * points * kPanel + kLine; }
  int64_t gradients_step() const { return tiling.most_tiles() * out.channels + kLine; }
  int64_t weights_step() const { return image.channels * out.channels + kLine; }
  FilterPoints filter_points(int64_t taps) const { return {taps, image_channels, out_channels, filter}; }
  int64_t strip_floats(int points) const { return points * (4 * tiling.stretch + points - 4) * kBlock; }
};

// ---- filters to weights --------------------------------------------------------------------------------------------

// weights[p][summed channel][produced channel] in panels of produced channels, for one block of these. Channels beyond
// the filter's are zeros.
template <class R, int kTaps>
void transform_filter(const FilterPoints& form, const float* filter, int64_t block, float* weights) {
  using W = Winograd<kTaps>;
  using Vector = typename R::Vector;
  constexpr int n = W::kPoints;
  const FilterSteps& steps = form.steps;
  const int64_t produced = std::min(kBlock, form.produced - block * kBlock), step = form.step();
  const int64_t panel = block * kBlock / kPanel * kPanel,
                width = std::min(kPanel, round_up(form.produced, kBlock) - panel);
  const int64_t summed = round_up(form.summed, kBlock);
  weights += panel * summed + block * kBlock - panel;
  for (int64_t c = 0; c < summed; ++c, weights += width) {
    alignas(64) float taps[kTaps][kTaps][kBlock] = {};
    if (c < form.summed) {
      const float* from = filter + steps.start + c * steps.summed + block * kBlock * steps.produced;
      for (int64_t lane = 0; lane < produced; ++lane, from += steps.produced) {
        for (int i = 0; i < kTaps; ++i) {
          for (int j = 0; j < kTaps; ++j) taps[i][j][lane] = from[i * steps.row + j * steps.column];
        }
      }
    }
    for (int64_t part = 0; part < kBlock; part += R::kWidth) {
      Vector half[n][kTaps];
      for (int j = 0; j < kTaps; ++j) {
        Vector from[kTaps], to[n];
#pragma GCC unroll 8
        for (int i = 0; i < kTaps; ++i) from[i] = R::at(&taps[i][j][part]);
        W::evaluate(from, to);
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) half[i][j] = W::scale(i) * to[i];
      }
      for (int i = 0; i < n; ++i) {
        Vector to[n];
        W::evaluate(half[i], to);
#pragma GCC unroll 8
        for (int j = 0; j < n; ++j) R::at(weights + (i * n + j) * step + part) = W::scale(j) * to[j];
      }
    }
  }
}

// ---- images to points ----------------------------------------------------------------------------------------------

template <class W, class V>
void spread(bool narrow, V& d) {
  if (narrow)
    W::template spread<true>(d);
  else
    W::spread(d);
}

// The vertical half of the transform: strip[i][column][lane] for the columns [first, last) of a strip that starts at
// (top, left), in one block of channels. Rows outside of the image are zeros; rows that the narrow form lacks are left
// with anything.
template <class R, int kTaps>
void spread_columns(const Blocks& from, const float* image, bool narrow, int64_t top, int64_t left, int64_t first,
                    int64_t last, int64_t strip_row, float* strip) {
  using W = Winograd<kTaps>;
  constexpr int n = W::kPoints;
  static constexpr float kZeros[kBlock] = {};
  const float* rows[n];
  int64_t steps[n];
  for (int i = 0; i < n; ++i) {
    const bool inside = top + i >= 0 && top + i < from.height;
    rows[i] = inside ? image + (top + i) * from.row : kZeros;
    steps[i] = inside ? from.column : 0;
  }
  for (int64_t x = first; x < last; ++x) {
    for (int64_t part = 0; part < kBlock; part += R::kWidth) {
      typename R::Vector d[n];
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i) d[i] = R::at(rows[i] + (left + x) * steps[i] + part);
#pragma GCC unroll 4
      for (int i = n - 4; i < n; ++i) __builtin_prefetch(rows[i] + (left + x) * steps[i] + 4 * from.row);
      spread<W>(narrow, d);
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i) R::at(strip + i * strip_row + x * kBlock + part) = d[i];
    }
  }
}

// The same for a pooled image. kOdd says whether the strip starts with the lower row of a window.
template <class R, int kTaps, bool kOdd>
void spread_pooled_columns(const Blocks& from, const float* image, const uint8_t* image_places, bool narrow,
                           int64_t top, int64_t left, int64_t first, int64_t last, int64_t strip_row, float* strip) {
  using W = Winograd<kTaps>;
  constexpr int n = W::kPoints, kRows = n / 2 + kOdd;
  static constexpr float kZeros[kBlock] = {};
  static constexpr uint8_t kNoPlaces[kBlock] = {};
  const float* rows[kRows];
  const uint8_t* row_places[kRows];
  int64_t steps[kRows];
  for (int i = 0; i < kRows; ++i) {
    const int64_t y = top - kOdd + 2 * i;
    const bool inside = y >= 0 && y < from.height;
    rows[i] = inside ? image + y / 2 * from.row : kZeros;
    row_places[i] = inside ? image_places + y / 2 * from.row : kNoPlaces;
    steps[i] = inside ? from.column : 0;
  }
  for (int64_t window = (left + first) / 2; 2 * window < left + last; ++window) {
    for (int64_t part = 0; part < kBlock; part += R::kWidth) {
      typename R::Vector gradients[kRows];
      typename R::Integers places[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        gradients[i] = R::at(rows[i] + window * steps[i] + part);
        R::widen(row_places[i] + window * steps[i] + part, places[i]);
      }
#pragma GCC unroll 2
      for (int right = 0; right < 2; ++right) {
        const int64_t x = 2 * window + right - left;
        if (x < first || x >= last) continue;
        typename R::Vector d[n];
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) {
          const int row = i + kOdd;
          pass_to_place<R>(gradients[row / 2], places[row / 2], row % 2 * 2 + right, d[i]);
        }
        spread<W>(narrow, d);
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) R::at(strip + i * strip_row + x * kBlock + part) = d[i];
      }
    }
  }
}

// points[p][place][channel] for the tiles of a unit. `places` is there when the image is pooled.
template <class R, int kTaps>
void transform_image(const Work& work, const Unit& unit, const float* image, const uint8_t* places, float* strip,
                     float* points) {
  using W = Winograd<kTaps>;
  constexpr int n = W::kPoints;
  const Blocks& from = work.image;
  const int64_t columns = 4 * unit.tiles + n - 4, strip_row = columns * kBlock;
  const int64_t top = 4 * unit.row - work.before_row, left = 4 * unit.column - work.before_column;
  const int64_t first = std::clamp<int64_t>(-left, 0, columns), last = std::clamp(from.width - left, first, columns);
  for (int i = 0; i < n; ++i) {
    std::memset(strip + i * strip_row, 0, first * kBlock * sizeof(float));
    std::memset(strip + i * strip_row + last * kBlock, 0, (columns - last) * kBlock * sizeof(float));
  }

  for (int64_t c = 0; c < from.channels; c += kBlock) {
    const int64_t block = unit.image * from.batch + c / kBlock * from.block;
    if (!places) {
      spread_columns<R, kTaps>(from, image + block, unit.narrow_row, top, left, first, last, strip_row, strip);
    } else if (work.before_row % 2 == 0) {
      spread_pooled_columns<R, kTaps, false>(from, image + block, places + block, unit.narrow_row, top, left, first,
                                             last, strip_row, strip);
    } else {
      spread_pooled_columns<R, kTaps, true>(from, image + block, places + block, unit.narrow_row, top, left, first,
                                            last, strip_row, strip);
    }
    for (int i = 0; i < n; ++i) {
      if (unit.narrow_row && !W::is_narrow(i)) continue;
      for (int64_t tile = 0; tile < unit.tiles; ++tile) {
        const float* at = strip + i * strip_row + 4 * tile * kBlock;
        float* to = points + i * n * work.points_step() + unit.place_of(tile) * from.channels + c;
        for (int64_t part = 0; part < kBlock; part += R::kWidth) {
          typename R::Vector d[n];
#pragma GCC unroll 8
          for (int j = 0; j < n; ++j) d[j] = R::at(at + j * kBlock + part);
          spread<W>(unit.is_narrow(tile), d);
#pragma GCC unroll 8
          for (int j = 0; j < n; ++j) R::at(to + j * work.points_step() + part) = d[j];
        }
      }
    }
  }
}

// ---- products to the image -----------------------------------------------------------------------------------------

// A tile of a unit, in the channels of a panel, out of products[p][channel].
template <class R, int kTaps, bool kPooled, bool kNarrowRow, bool kNarrowColumn>
void collect_tile(const Work& work, const Unit& unit, int64_t tile, int64_t panel, int64_t width, const float* products,
                  const float* bias, const float* addend, float* out, uint8_t* places) {
  using W = Winograd<kTaps>;
  using Vector = typename R::Vector;
  constexpr int n = W::kPoints, kRows = kNarrowRow ? 2 : 4, kColumns = kNarrowColumn ? 2 : 4;
  const Blocks& to = work.out;
  const int64_t top = 4 * unit.row, rows = std::min<int64_t>(kRows, to.height - top);
  const int64_t left = 4 * (unit.column + tile), columns = std::min<int64_t>(kColumns, to.width - left);
  const int64_t corner =
      unit.image * to.batch + (kPooled ? top / 2 : top) * to.row + (kPooled ? left / 2 : left) * to.column;
  for (int64_t c = 0; c < width; c += R::kWidth) {
    Vector half[kRows][n];
    for (int j = 0; j < n; ++j) {
      if (kNarrowColumn && !W::is_narrow(j)) continue;
      Vector from[n], down[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i) {
        if (!kNarrowRow || W::is_narrow(i)) from[i] = R::at(products + (i * n + j) * kPanel + c);
      }
      W::template collect<kNarrowRow>(from, down);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i) half[i][j] = down[i];
    }
    Vector more = Vector{};
    if (work.bias) more = R::at(bias + panel + c);
    const int64_t at = corner + (panel + c) / kBlock * to.block + c % kBlock;
    if constexpr (kPooled) {
      for (int64_t i = 0; i < rows; i += 2) {
        Vector above[kColumns], below[kColumns];
        W::template collect<kNarrowColumn>(half[i], above);
        W::template collect<kNarrowColumn>(half[i + 1], below);
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) {
          above[j] += more;
          below[j] += more;
        }
#pragma GCC unroll 2
        for (int j = 0; j < kColumns; j += 2) {
          if (j >= columns) break;
          const int64_t window = at + i / 2 * to.row + j / 2 * to.column;
          pool_window<R>(above[j], above[j + 1], below[j], below[j + 1], out + window, places + window);
        }
      }
    } else {
      for (int64_t i = 0; i < rows; ++i) {
        Vector across[kColumns];
        W::template collect<kNarrowColumn>(half[i], across);
#pragma GCC unroll 4
        for (int j = 0; j < kColumns; ++j) {
          if (j >= columns) break;
          across[j] += more;
          if (work.sum) across[j] += R::at(addend + at + i * to.row + j * to.column);
          activate<R>(work.activation, across[j]);
          R::at(out + at + i * to.row + j * to.column) = across[j];
        }
      }
    }
  }
}

// The tiles of a unit, out of products[place][p][channel].
template <class R, int kTaps, bool kPooled>
void collect_tiles(const Work& work, const Unit& unit, int64_t panel, int64_t width, const float* products,
                   const float* bias, const float* addend, float* out, uint8_t* places) {
  const auto collect = [&](int64_t tile, auto narrow_row, auto narrow_column) {
    collect_tile<R, kTaps, kPooled, narrow_row, narrow_column>(
        work, unit, tile, panel, width, products + unit.place_of(tile) * work.products_tile(Winograd<kTaps>::kPoints),
        bias, addend, out, places);
  };
  const auto collect_row = [&](auto narrow_row) {
    for (int64_t tile = 0; tile < unit.wide_tiles(); ++tile) collect(tile, narrow_row, std::false_type());
    if (unit.narrow_column) collect(unit.tiles - 1, narrow_row, std::true_type());
  };
  if (unit.narrow_row)
    collect_row(std::true_type());
  else
    collect_row(std::false_type());
}

// ---- gradients to points, and back to the filter -------------------------------------------------------------------

// gradients[p][place][filter] for the tiles of a unit, and dy summed over its places into bias.
template <class R, int kTaps, bool kPooled>
void transform_gradient(const Work& work, const Unit& unit, const float* dy, const uint8_t* places, float* gradients,
                        float* bias) {
  using W = Winograd<kTaps>;
  using Vector = typename R::Vector;
  constexpr int n = W::kPoints;
  const Blocks& from = work.out;
  const int64_t top = 4 * unit.row, rows = std::min<int64_t>(4, from.height - top);
  for (int64_t tile = 0; tile < unit.tiles; ++tile) {
    const int64_t left = 4 * (unit.column + tile), columns = std::min<int64_t>(4, from.width - left);
    for (int64_t c = 0; c < from.channels; c += R::kWidth) {
      const int64_t corner = unit.image * from.batch + c / kBlock * from.block + c % kBlock +
                             (kPooled ? top / 2 : top) * from.row + (kPooled ? left / 2 : left) * from.column;
      Vector half[n][4], sum = Vector{};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        Vector four[4] = {}, to[n];
        if (j < columns) {
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            if (i >= rows) break;
            if constexpr (kPooled) {
              const int64_t window = corner + i / 2 * from.row + j / 2 * from.column;
              typename R::Integers numbers;
              R::widen(places + window, numbers);
              pass_to_place<R>(R::at(dy + window), numbers, i % 2 * 2 + j % 2, four[i]);
            } else {
              four[i] = R::at(dy + corner + i * from.row + j * from.column);
            }
          }
        }
        sum += (four[0] + four[1]) + (four[2] + four[3]);
        W::evaluate(four, to, unit.narrow_row ? 1 : 3);
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) half[i][j] = to[i];
      }
      R::at(bias + c) += sum;
      for (int i = 0; i < n; ++i) {
        Vector to[n];
        W::evaluate(half[i], to, unit.is_narrow(tile) ? 1 : 3);
#pragma GCC unroll 8
        for (int j = 0; j < n; ++j)
          R::at(gradients + (i * n + j) * work.gradients_step() + unit.place_of(tile) * from.channels + c) = to[j];
      }
    }
  }
}

// The filter's gradient in one block of filters, out of the parts' sums.
template <class R, int kTaps>
void collect_filter(const Work& work, const float* sums, int64_t part_step, int64_t block, float* dfilter) {
  using W = Winograd<kTaps>;
  using Vector = typename R::Vector;
  constexpr int n = W::kPoints;
  const FilterSteps& steps = work.filter;
  const int64_t filters = std::min(kBlock, work.out_channels - block * kBlock);
  for (int64_t c = 0; c < work.image_channels; ++c) {
    alignas(64) float taps[kTaps][kTaps][kBlock];
    for (int64_t lane = 0; lane < kBlock; lane += R::kWidth) {
      const float* at = sums + c * work.out.channels + block * kBlock + lane;
      Vector half[kTaps][n];
      for (int j = 0; j < n; ++j) {
        Vector from[n], to[kTaps];
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) {
          const float* place = at + (i * n + j) * work.weights_step();
          from[i] = R::at(place);
          for (int part = 1; part < work.parts; ++part) from[i] += R::at(place + part * part_step);
          from[i] *= W::scale(i) * W::scale(j);
        }
        W::collect(from, to);
#pragma GCC unroll 8
        for (int i = 0; i < kTaps; ++i) half[i][j] = to[i];
      }
      for (int i = 0; i < kTaps; ++i) {
        Vector to[kTaps];
        W::collect(half[i], to);
#pragma GCC unroll 8
        for (int j = 0; j < kTaps; ++j) R::at(&taps[i][j][lane]) = to[j];
      }
    }
    float* to = dfilter + c * steps.summed + block * kBlock * steps.produced;
    for (int64_t lane = 0; lane < filters; ++lane, to += steps.produced) {
      for (int i = 0; i < kTaps; ++i) {
        for (int j = 0; j < kTaps; ++j) to[i * steps.row + j * steps.column] = taps[i][j][lane];
      }
    }
  }
}

}  // namespace moonflow::cpu::winograd
