// Convolution with 3x3 and 5x5 filters as Winograd has it, in all three directions. winograd.h has the arithmetic.
//
// The output is cut into tiles of 4x4, under which lie tiles of n x n inputs, n = taps + 3. An input tile, spread along
// both axes, becomes n^2 points in every channel; so does the filter. At each point the sum over the channels is then a
// matrix product of its own,
//     products[p] (tiles, filters) = points[p] (tiles, channels) * weights[p] (channels, filters),
// and collecting the n^2 products along both axes gives the output tile, to which bias and relu are applied on its way
// to memory. The gradient of the image is the same with the filter turned by 180 degrees, channels and filters
// exchanged. The gradient of the filter takes the products of both sides' points over the tiles,
//     sums[p] (channels, filters) += points[p]^T (channels, tiles) * gradients[p] (tiles, filters),
// and collects them once at the end.
//
// Each thread has one contiguous part of the tiles, and takes a batch of them at a time: about a dozen, as many as one
// product in registers has rows, so that points and products stay in the second-level cache with the weights; more
// where the weights do not fit there, or are sums that each batch has to read and write. A tile is computed in the same
// way in whatever batch it falls, so the result is the same for any number of threads, but for the filter's gradient,
// which each thread sums over its own tiles.
//
// Images lie in blocks of 16 channels, so a register is a place in 16, 8 or 4 channels and transforms are plain
// arithmetic on registers. Neighbouring input tiles overlap by n - 4; the vertical half of the transform is done once
// per column of a row of tiles, in a strip of n rows, and only the horizontal half once per tile. Where 2x2 windows are
// pooled behind the convolution, they lie within tiles: the forward pass stores only each window's maximum and its
// place, and the gradients spread what comes back over the windows as they read it.
//
// Error: the numbers 1/90 to 21/4 of the transforms magnify roundings. Against float64, and measured by the largest
// result, up to 1.1e-5 were seen, where direct sums have 3e-7. A test holds it to 2e-5, which is what conv2d promises.
#include <cstring>
#include <optional>

#include "kernels/conv.h"
#include "kernels/conv_pool.h"
#include "kernels/cpu.h"
#include "kernels/simd.h"
#include "kernels/winograd.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kPanel = 32;  // filters side by side in the weights
constexpr int64_t kTiles = 14;  // in a unit of work at most: as many rows of a product as AVX-512 has registers for
constexpr int64_t kLine = 16;   // floats in a cache line

constexpr int64_t kBlock = Blocks::kLanes;

int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// ---- sizes ---------------------------------------------------------------------------------------------------------

// Steps between the elements of a row-major filter, seen from what is summed over to what is produced.
struct FilterSteps {
  int64_t summed, produced, row, column;
  int64_t start = 0;
};

// The output in tiles. The unit of work is a stretch of a row of tiles.
struct Tiling {
  int64_t rows, columns;  // of tiles in an image
  int64_t stretch;        // columns in a unit
  int64_t units_per_row;
  int64_t units;      // in the whole batch of images
  int64_t per_batch;  // units that are multiplied together

  Tiling(int64_t images, int64_t height, int64_t width, int64_t most_tiles) {
    rows = (height + 3) / 4;
    columns = (width + 3) / 4;
    units_per_row = (columns + kTiles - 1) / kTiles;
    stretch = (columns + units_per_row - 1) / units_per_row;
    units_per_row = (columns + stretch - 1) / stretch;
    units = images * rows * units_per_row;
    per_batch = most_tiles / stretch;
  }
  int64_t most_tiles() const { return per_batch * stretch; }
};

struct Unit {
  int64_t image, row, column, tiles;
};

Unit unit(const Tiling& tiling, int64_t index) {
  const int64_t column = index % tiling.units_per_row * tiling.stretch;
  const int64_t row = index / tiling.units_per_row % tiling.rows;
  return {index / tiling.units_per_row / tiling.rows, row, column, std::min(tiling.stretch, tiling.columns - column)};
}

// Everything a launch needs to know. For the gradient of the image, `image` is dy and `out` is dx.
struct Work {
  Blocks image, out;
  int64_t before_row, before_column;  // padding
  int64_t image_channels, out_channels;
  FilterSteps filter;
  Tiling tiling;
  bool bias, relu;
  bool image_pooled, out_pooled;  // only the largest of each 2x2 window is there, and where it was
  int parts;

  // Floats of scratch: first what is shared, then the same for each part. The matrices of the points are one line
  // longer than they need be, so that the same place of all of them does not fall into the same cache set.
  int64_t points_step() const { return tiling.most_tiles() * image.channels + kLine; }
  int64_t products_step() const { return tiling.most_tiles() * kPanel + kLine; }
  int64_t gradients_step() const { return tiling.most_tiles() * out.channels + kLine; }
  int64_t weights_step() const { return image.channels * out.channels + kLine; }
  int64_t strip_floats(int points) const { return points * (4 * tiling.stretch + points - 4) * kBlock; }
};

// ---- the product ---------------------------------------------------------------------------------------------------

// c (kRows, columns) = or += a (kRows, count) * b (count, columns), where columns fill kVectors registers. Rows are
// addressed from every third, which an address can reach without arithmetic.
template <class R, int kRows, int kVectors, bool kAdd>
void product(int64_t count, const float* a, int64_t a_row, int64_t a_step, const float* b, int64_t b_step, float* c,
             int64_t c_row) {
  using Vector = typename R::Vector;
  constexpr int kBases = (kRows + 2) / 3;
  const float* base[kBases];
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * a_row;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (kAdd)
        sum[i][v] = R::at(c + i * c_row + v * R::kWidth);
      else
        sum[i][v] = Vector{};
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = R::at(b + v * R::kWidth);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const float left = base[i / 3][(i % 3) * a_row];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] += left * right[v];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kBases; ++i) base[i] += a_step;
    b += b_step;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) R::at(c + i * c_row + v * R::kWidth) = sum[i][v];
  }
}

// The same for any number of rows up to kRows.
template <class R, int kRows, int kVectors, bool kAdd>
void product_of_rows(int64_t rows, int64_t count, const float* a, int64_t a_row, int64_t a_step, const float* b,
                     int64_t b_step, float* c, int64_t c_row) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return product_of_rows<R, kRows - 1, kVectors, kAdd>(rows, count, a, a_row, a_step, b, b_step, c, c_row);
    }
  }
  product<R, kRows, kVectors, kAdd>(count, a, a_row, a_step, b, b_step, c, c_row);
}

// The same for any number of rows, and for columns in multiples of 16.
template <class R, bool kAdd>
void multiply(int64_t rows, int64_t columns, int64_t count, const float* a, int64_t a_row, int64_t a_step,
              const float* b, int64_t b_step, float* c, int64_t c_row) {
  constexpr int kMostRows = R::kCount == 32 ? 14 : 6;
  const int64_t parts = (rows + kMostRows - 1) / kMostRows;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = rows * part / parts, here = rows * (part + 1) / parts - first;
    int64_t j = 0;
    for (; j + 2 * R::kWidth <= columns; j += 2 * R::kWidth) {
      product_of_rows<R, kMostRows, 2, kAdd>(here, count, a + first * a_row, a_row, a_step, b + j, b_step,
                                             c + first * c_row + j, c_row);
    }
    if (j == columns) continue;
    product_of_rows<R, kMostRows, 1, kAdd>(here, count, a + first * a_row, a_row, a_step, b + j, b_step,
                                           c + first * c_row + j, c_row);
  }
}

// ---- filters to weights --------------------------------------------------------------------------------------------

// weights[p][summed channel][produced channel] in panels of produced channels, for one block of these. Channels beyond
// the filter's are zeros.
template <class R, int kTaps>
void transform_filter(const Work& work, const float* filter, int64_t block, float* weights) {
  using W = Winograd<kTaps>;
  using Vector = typename R::Vector;
  constexpr int n = W::kPoints;
  const FilterSteps& steps = work.filter;
  const int64_t produced = std::min(kBlock, work.out_channels - block * kBlock);
  const int64_t panel = block * kBlock / kPanel * kPanel, width = std::min(kPanel, work.out.channels - panel);
  weights += panel * work.image.channels + block * kBlock - panel;
  for (int64_t c = 0; c < work.image.channels; ++c, weights += width) {
    alignas(64) float taps[kTaps][kTaps][kBlock] = {};
    if (c < work.image_channels) {
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
        for (int j = 0; j < n; ++j) R::at(weights + (i * n + j) * work.weights_step() + part) = W::scale(j) * to[j];
      }
    }
  }
}

// ---- images to points ----------------------------------------------------------------------------------------------

// The vertical half of the transform: strip[i][column][lane] for the columns [first, last) of a strip that starts at
// (top, left), in one block of channels. Rows outside of the image are zeros.
template <class R, int kTaps>
void spread_columns(const Blocks& from, const float* image, int64_t top, int64_t left, int64_t first, int64_t last,
                    int64_t strip_row, float* strip) {
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
      W::spread(d);
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i) R::at(strip + i * strip_row + x * kBlock + part) = d[i];
    }
  }
}

// The same for a pooled image. kOdd says whether the strip starts with the lower row of a window.
template <class R, int kTaps, bool kOdd>
void spread_pooled_columns(const Blocks& from, const float* image, const uint8_t* image_places, int64_t top,
                           int64_t left, int64_t first, int64_t last, int64_t strip_row, float* strip) {
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
        W::spread(d);
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) R::at(strip + i * strip_row + x * kBlock + part) = d[i];
      }
    }
  }
}

// points[p][tile][channel] for the tiles of a unit. `places` is there when the image is pooled.
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
      spread_columns<R, kTaps>(from, image + block, top, left, first, last, strip_row, strip);
    } else if (work.before_row % 2 == 0) {
      spread_pooled_columns<R, kTaps, false>(from, image + block, places + block, top, left, first, last, strip_row,
                                             strip);
    } else {
      spread_pooled_columns<R, kTaps, true>(from, image + block, places + block, top, left, first, last, strip_row,
                                            strip);
    }
    for (int i = 0; i < n; ++i) {
      for (int64_t tile = 0; tile < unit.tiles; ++tile) {
        const float* at = strip + i * strip_row + 4 * tile * kBlock;
        float* to = points + i * n * work.points_step() + tile * from.channels + c;
        for (int64_t part = 0; part < kBlock; part += R::kWidth) {
          typename R::Vector d[n];
#pragma GCC unroll 8
          for (int j = 0; j < n; ++j) d[j] = R::at(at + j * kBlock + part);
          W::spread(d);
#pragma GCC unroll 8
          for (int j = 0; j < n; ++j) R::at(to + j * work.points_step() + part) = d[j];
        }
      }
    }
  }
}

// ---- products to the image -----------------------------------------------------------------------------------------

// The tiles of a unit, in the channels of a panel, out of products[p][tile][channel].
template <class R, int kTaps, bool kPooled>
void collect_tiles(const Work& work, const Unit& unit, int64_t panel, int64_t width, const float* products,
                   const float* bias, float* out, uint8_t* places) {
  using W = Winograd<kTaps>;
  using Vector = typename R::Vector;
  constexpr int n = W::kPoints;
  const Blocks& to = work.out;
  const int64_t top = 4 * unit.row, rows = std::min<int64_t>(4, to.height - top);
  for (int64_t tile = 0; tile < unit.tiles; ++tile) {
    const int64_t left = 4 * (unit.column + tile), columns = std::min<int64_t>(4, to.width - left);
    const int64_t corner =
        unit.image * to.batch + (kPooled ? top / 2 : top) * to.row + (kPooled ? left / 2 : left) * to.column;
    for (int64_t c = 0; c < width; c += R::kWidth) {
      Vector half[4][n];
      for (int j = 0; j < n; ++j) {
        Vector from[n], four[4];
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) {
          from[i] = R::at(products + (i * n + j) * work.products_step() + tile * kPanel + c);
        }
        W::collect(from, four);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) half[i][j] = four[i];
      }
      Vector more = Vector{};
      if (work.bias) more = R::at(bias + panel + c);
      const int64_t at = corner + (panel + c) / kBlock * to.block + c % kBlock;
      if constexpr (kPooled) {
        for (int64_t i = 0; i < rows; i += 2) {
          Vector above[4], below[4];
          W::collect(half[i], above);
          W::collect(half[i + 1], below);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            above[j] += more;
            below[j] += more;
          }
#pragma GCC unroll 2
          for (int j = 0; j < 4; j += 2) {
            if (j >= columns) break;
            const int64_t window = at + i / 2 * to.row + j / 2 * to.column;
            pool_window<R>(above[j], above[j + 1], below[j], below[j + 1], out + window, places + window);
          }
        }
      } else {
        for (int64_t i = 0; i < rows; ++i) {
          Vector four[4];
          W::collect(half[i], four);
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) {
            if (j >= columns) break;
            four[j] += more;
            if (work.relu) four[j] = four[j] < 0 ? Vector{} : four[j];
            R::at(out + at + i * to.row + j * to.column) = four[j];
          }
        }
      }
    }
  }
}

// ---- the image's direction -----------------------------------------------------------------------------------------

struct Values {
  const float *image, *filter, *bias;
  const uint8_t* image_places;
  float* out;
  uint8_t* out_places;
};

template <class R, int kTaps>
void convolve_units(const Work& work, int64_t first, int64_t last, const Values& values, const float* weights,
                    float* scratch) {
  constexpr int n = Winograd<kTaps>::kPoints;
  float *points = scratch, *products = points + n * n * work.points_step(),
        *strip = products + n * n * work.products_step();
  for (int64_t from = first; from < last; from += work.tiling.per_batch) {
    const int64_t to = std::min(last, from + work.tiling.per_batch);
    int64_t tiles = 0;
    for (int64_t i = from; i < to; ++i) {
      const Unit here = unit(work.tiling, i);
      float* at = points + tiles * work.image.channels;
      transform_image<R, kTaps>(work, here, values.image, values.image_places, strip, at);
      tiles += here.tiles;
    }
    for (int64_t panel = 0; panel < work.out.channels; panel += kPanel) {
      const int64_t width = std::min(kPanel, work.out.channels - panel);
      for (int p = 0; p < n * n; ++p) {
        multiply<R, false>(tiles, width, work.image.channels, points + p * work.points_step(), work.image.channels, 1,
                           weights + p * work.weights_step() + panel * work.image.channels, width,
                           products + p * work.products_step(), kPanel);
      }
      tiles = 0;
      for (int64_t i = from; i < to; ++i) {
        const Unit here = unit(work.tiling, i);
        const float* at = products + tiles * kPanel;
        if (work.out_pooled) {
          collect_tiles<R, kTaps, true>(work, here, panel, width, at, values.bias, values.out, values.out_places);
        } else {
          collect_tiles<R, kTaps, false>(work, here, panel, width, at, values.bias, values.out, nullptr);
        }
        tiles += here.tiles;
      }
    }
  }
}

template <int kTaps>
Launch convolve(const Work& work, KernelCall& call) {
  constexpr int n = Winograd<kTaps>::kPoints;
  const int64_t weights = n * n * work.weights_step(), padded_bias = work.bias ? work.out.channels : 0;
  const int64_t part = round_up(n * n * (work.points_step() + work.products_step()) + work.strip_floats(n), kLine);
  call.scratch_bytes = (weights + padded_bias + work.parts * part) * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    float* scratch = static_cast<float*>(launch.scratch);
    float* bias = scratch + weights;
    if (work.bias) {  // with zeros in the lanes beyond its channels
      const float* given = launch.input<float>(2);
      std::fill(std::copy(given, given + work.out_channels, bias), bias + padded_bias, 0.0f);
    }
    const Values values{launch.input<float>(0),
                        launch.input<float>(work.image_pooled ? 2 : 1),
                        bias,
                        work.image_pooled ? launch.input<uint8_t>(1) : nullptr,
                        launch.output<float>(0),
                        work.out_pooled ? launch.output<uint8_t>(1) : nullptr};
    parallel_for(work.out.channels / kBlock, work.parts == 1 ? work.out.channels : 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t b = first; b < last; ++b)
          transform_filter<decltype(width), kTaps>(work, values.filter, b, scratch);
      });
    });
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          convolve_units<decltype(width), kTaps>(work, work.tiling.units * i / work.parts,
                                                 work.tiling.units * (i + 1) / work.parts, values, scratch,
                                                 bias + padded_bias + i * part);
        }
      });
    });
  };
}

// ---- the filter's direction ----------------------------------------------------------------------------------------

// gradients[p][tile][filter] for the tiles of a unit, and dy summed over its places into bias.
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
        W::evaluate(four, to);
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) half[i][j] = to[i];
      }
      R::at(bias + c) += sum;
      for (int i = 0; i < n; ++i) {
        Vector to[n];
        W::evaluate(half[i], to);
#pragma GCC unroll 8
        for (int j = 0; j < n; ++j)
          R::at(gradients + (i * n + j) * work.gradients_step() + tile * from.channels + c) = to[j];
      }
    }
  }
}

// Adds the tiles of some units to sums[p][channel][filter] and to bias.
template <class R, int kTaps>
void sum_units(const Work& work, int64_t first, int64_t last, const float* dy, const uint8_t* places,
               const float* image, float* sums, float* bias, float* scratch) {
  constexpr int n = Winograd<kTaps>::kPoints;
  float *points = scratch, *gradients = points + n * n * work.points_step(),
        *strip = gradients + n * n * work.gradients_step();
  for (int64_t from = first; from < last; from += work.tiling.per_batch) {
    const int64_t to = std::min(last, from + work.tiling.per_batch);
    int64_t tiles = 0;
    for (int64_t i = from; i < to; ++i) {
      const Unit here = unit(work.tiling, i);
      transform_image<R, kTaps>(work, here, image, nullptr, strip, points + tiles * work.image.channels);
      float* at = gradients + tiles * work.out.channels;
      if (work.out_pooled) {
        transform_gradient<R, kTaps, true>(work, here, dy, places, at, bias);
      } else {
        transform_gradient<R, kTaps, false>(work, here, dy, nullptr, at, bias);
      }
      tiles += here.tiles;
    }
    for (int p = 0; p < n * n; ++p) {
      multiply<R, true>(work.image.channels, work.out.channels, tiles, points + p * work.points_step(), 1,
                        work.image.channels, gradients + p * work.gradients_step(), work.out.channels,
                        sums + p * work.weights_step(), work.out.channels);
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

template <int kTaps>
Launch sum_filter(const Work& work, KernelCall& call) {
  constexpr int n = Winograd<kTaps>::kPoints;
  const int64_t sums = n * n * work.weights_step() + work.out.channels;  // of one part, with the bias behind
  const int64_t part =
      round_up(sums + n * n * (work.points_step() + work.gradients_step()) + work.strip_floats(n), kLine);
  call.scratch_bytes = work.parts * part * static_cast<int64_t>(sizeof(float));
  return [=](const LaunchCall& launch) {
    const float *dy = launch.input<float>(0), *image = launch.input<float>(work.out_pooled ? 2 : 1);
    const uint8_t* places = work.out_pooled ? launch.input<uint8_t>(1) : nullptr;
    float *dfilter = launch.output<float>(0), *dbias = work.bias ? launch.output<float>(1) : nullptr;
    float* scratch = static_cast<float*>(launch.scratch);
    const int64_t bias_at = n * n * work.weights_step();
    parallel_for(work.parts, 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t i = first; i < last; ++i) {
          float* own = scratch + i * part;
          std::memset(own, 0, sums * sizeof(float));
          sum_units<decltype(width), kTaps>(work, work.tiling.units * i / work.parts,
                                            work.tiling.units * (i + 1) / work.parts, dy, places, image, own,
                                            own + bias_at, own + sums);
        }
      });
    });
    parallel_for(work.out.channels / kBlock, work.parts == 1 ? work.out.channels : 1, [&](int64_t first, int64_t last) {
      widest_register([&](auto width) {
        for (int64_t b = first; b < last; ++b) collect_filter<decltype(width), kTaps>(work, scratch, part, b, dfilter);
      });
    });
    if (!dbias) return;
    for (int64_t f = 0; f < work.out_channels; ++f) {
      dbias[f] = scratch[bias_at + f];
      for (int i = 1; i < work.parts; ++i) dbias[f] += scratch[i * part + bias_at + f];
    }
  };
}

// ---- what the op asks ----------------------------------------------------------------------------------------------

// Of all points, in floats.
int64_t weights_floats(const Conv& conv) {
  const int64_t points = conv.windows[0].size + 3;
  return points * points * round_up(conv.image.channels, kBlock) * round_up(conv.filters(), kBlock);
}

// Tiles that meet the weights together. The more, the less often the weights come from where they are; but their own
// points should stay nearer. For the filter's gradient tiles are what is summed over, and the weights are sums that
// each batch reads and writes.
int64_t batch_tiles(const Conv& conv, ConvKind kind) {
  const bool near = weights_floats(conv) <= int64_t{1} << 18;  // 1 MiB, about what a second-level cache has
  return (is_filter_grad(kind) ? 2 : 1) * (near ? 1 : 4) * kTiles;
}

FilterSteps filter_steps(const Conv& conv, ConvKind kind) {
  const int64_t taps = conv.windows[0].size, channels = conv.image.channels;
  const int64_t step = conv.format.channels_last ? channels : 1,
                of_channel = conv.format.channels_last ? 1 : taps * taps;
  const int64_t of_filter = taps * taps * channels;
  if (!is_input_grad(kind)) return {of_channel, of_filter, taps * step, step};
  return {of_filter, of_channel, -taps * step, -step, (taps * taps - 1) * step};  // turned by 180 degrees
}

}  // namespace

bool winograd_fits(const Conv& conv, ConvKind kind) {
  for (const Window& window : conv.windows) {
    if (window.size != conv.windows[0].size || window.stride != 1 || window.dilation != 1) return false;
  }
  const int64_t taps = conv.windows[0].size, channels = conv.image.channels, filters = conv.filters();
  if ((taps != 3 && taps != 5) || conv.groups != 1 || conv.format.spatial_axes != 2) return false;
  if (conv.format.channels_last && (channels % kBlock != 0 || filters % kBlock != 0)) return false;
  // The filter's gradient has the weights once for each thread; that should stay within 128 MiB.
  if (weights_floats(conv) * (is_filter_grad(kind) ? threads() : 1) > int64_t{1} << 25) return false;
  return conv.image.batch * conv.image.height * conv.image.width * conv.out.height * conv.out.width > 0;
}

// Counted in cycles of a core with AVX-512, roughly; other registers slow both sides alike.
bool winograd_is_faster(const Conv& conv, ConvKind kind) {
  const double taps = static_cast<double>(conv.windows[0].size), points = taps + 3;
  const ImageSize& made = is_input_grad(kind) ? conv.image : conv.out;
  const double channels = static_cast<double>(round_up(conv.image.channels, kBlock)),
               filters = static_cast<double>(round_up(conv.out.channels, kBlock));
  const double tiles = static_cast<double>(made.batch * ((made.height + 3) / 4) * ((made.width + 3) / 4));
  const double places = static_cast<double>(conv.out.batch * conv.out.height * conv.out.width);
  // What is produced fills registers there as here.
  const double summed = is_input_grad(kind) ? filters : static_cast<double>(conv.image.channels);
  const double direct = places * taps * taps * summed * (is_input_grad(kind) ? channels : filters) / 28;
  const double transforms = tiles * (channels + filters) / kBlock * 4 + channels * filters / kBlock * 10;
  return 1.1 * points * points * (tiles * channels * filters / 28 + transforms) < direct;
}

void winograd_layouts(const Conv& conv, ConvKind kind, LayoutCall& call) {
  // The first input is an image; of the others, x of the filter's gradient and the places of a pooled image.
  const int images = 1 + (is_filter_grad(kind) ? 1 : 0) + (is_pooled(kind) && !is_forward(kind) ? 1 : 0);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool image = static_cast<int>(i) < images;
    call.inputs[i] = image ? in_blocks(call.input_types[i], call.inputs[i], conv.format) : Layout{};
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] = is_filter_grad(kind) ? Layout{} : in_blocks(call.output_types[i], {}, conv.format);
  }
}

Launch conv_winograd(const Conv& conv, ConvKind kind, bool relu, KernelCall& call) {
  const bool filter = is_filter_grad(kind), turned = is_input_grad(kind), pooled = is_pooled(kind);
  const auto input = [&](int i) { return blocks_of(call.inputs[i], call.input_layouts[i], conv.format); };
  const auto output = [&](int i) { return blocks_of(call.outputs[i], call.output_layouts[i], conv.format); };
  std::optional<Blocks> image = filter ? input(pooled ? 2 : 1) : input(0), out = filter ? input(0) : output(0);
  if (!image || !out) return {};
  if (pooled) {  // places lie as what they are about, which is half as high and wide as what is computed
    const std::optional<Blocks> places = is_forward(kind) ? output(1) : input(1);
    Blocks& about = turned ? *image : *out;
    if (!places || places->block != about.block || places->column != about.column) return {};
    about.height = conv.out.height;
    about.width = conv.out.width;
  }
  const int64_t taps = conv.windows[0].size, above = conv.windows[0].before, left = conv.windows[1].before;
  const Work work{*image,
                  *out,
                  turned ? taps - 1 - above : above,
                  turned ? taps - 1 - left : left,
                  turned ? conv.filters() : conv.image.channels,
                  turned ? conv.image.channels : conv.filters(),
                  filter_steps(conv, kind),
                  Tiling(conv.image.batch, out->height, out->width, batch_tiles(conv, kind)),
                  kind == ConvKind::ForwardBias || kind == ConvKind::FilterBiasGrad || (pooled && !turned),
                  relu,
                  pooled && turned,
                  pooled && !turned,
                  conv_parts(conv)};
  if (taps == 3) return filter ? sum_filter<3>(work, call) : convolve<3>(work, call);
  return filter ? sum_filter<5>(work, call) : convolve<5>(work, call);
}

}  // namespace moonflow::cpu
