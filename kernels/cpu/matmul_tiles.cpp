#include "kernels/cpu/matmul_tiles.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kPanel = 32;

// Calls body(R, part, first row, last row, first column, last column) for each part of the result: some of its rows, or
// of its columns in whole panels; one part per thread, as far as it pays.
template <class Body>
void divide_result(const Product& sizes, bool by_rows, const Body& body) {
  if (sizes.rows * sizes.columns == 0) return;
  const int64_t count = by_rows ? sizes.rows : (sizes.columns + kPanel - 1) / kPanel;
  const int64_t flops = 2 * sizes.rows * sizes.columns * sizes.inner;
  const int64_t parts = std::clamp<int64_t>(flops / kPartFlops, 1, std::min<int64_t>(threads(), count));
  parallel_for(parts, 1, [&](int64_t part, int64_t) {
    const int64_t first = count * part / parts, last = count * (part + 1) / parts;
    const int64_t first_row = by_rows ? first : 0, last_row = by_rows ? last : sizes.rows;
    const int64_t first_column = by_rows ? 0 : first * kPanel;
    const int64_t last_column = by_rows ? sizes.columns : std::min(last * kPanel, sizes.columns);
    widest_register([&](auto wide) { body(wide, part, first_row, last_row, first_column, last_column); });
  });
}

// ---- spread --------------------------------------------------------------------------------------------------------
// A tile is a dozen rows of the result in two registers' width, a panel; each number of a' is spread over a register
// and multiplied with one of a row of b. Tile follows tile along the rows of the result, which are read and written
// once, while a block of columns of b stays in the second cache.

// Columns of a tile, which are half a panel where registers are narrow.
template <class R>
constexpr int64_t kStrip = std::max<int64_t>(2 * R::kWidth, kPanelLanes);

// Columns whose panels fit into half of the second cache.
int64_t block_columns(const Product& sizes) {
  constexpr int64_t kFloats = 1 << 17;
  return std::max<int64_t>(1, kFloats / std::max<int64_t>(1, sizes.inner * kPanel)) * kPanel;
}

struct Spread {
  const Product& sizes;
  const float *a, *b;
  bool descends;
  float factor;
  float *out, *scratch;

  int64_t a_row() const { return sizes.transpose_a ? 1 : sizes.inner; }
  int64_t a_step() const { return sizes.transpose_a ? sizes.rows : 1; }
  // Rows of b far apart, or a power of two apart, fall into many pages, or into few sets of the cache. Then a panel is
  // copied, when it is used several times; with few registers a tile is soon done, and waits for its pages longer.
  template <class R>
  bool copies(int64_t rows) const {
    constexpr int64_t kSeveral = 56, kPower = 256, kFar = R::kCount == 32 ? 1 << 18 : 1 << 16;
    return rows > kSeveral && (sizes.columns % kPower == 0 || sizes.columns * sizes.inner > kFar);
  }
  // So do the columns of a transposed a, which each tile along a row of the result reads again.
  bool copies_left() const { return sizes.transpose_a && sizes.columns > 2 * kPanel; }
};

constexpr int64_t kMostLeftLanes = 16;

// Of a transposed a, the columns of a tile over `rows` rows of the result from row i on, one row of a after the other.
template <class R>
void copy_left(const Product& sizes, const float* a, int64_t i, int64_t rows, float* left) {
  const float *from = a + i, *const end = a + sizes.inner * sizes.rows;
  for (int64_t k = 0; k < sizes.inner; ++k, from += sizes.rows, left += kLeftLanes<R>) {
    if (end - from < kLeftLanes<R>) {  // nothing is behind the last
      std::copy(from, from + rows, left);
    } else {
      for (int64_t lane = 0; lane < kLeftLanes<R>; lane += R::kWidth) R::at(left + lane) = R::at(from + lane);
    }
  }
}

// One panel of b, `stride` floats from row to row, filled up with zeros.
template <class R>
void copy_panel(const float* b, int64_t columns, int64_t inner, int64_t width, int64_t stride, float* panel) {
  for (int64_t k = 0; k < inner; ++k, b += columns, panel += stride) {
    int64_t j = 0;
    for (; j + R::kWidth <= width; j += R::kWidth) R::at(panel + j) = R::at(b + j);
    for (; j < width; ++j) panel[j] = b[j];
    for (; j < stride; ++j) panel[j] = 0;
  }
}

// The rows of a' that a tile needs.
struct Left {
  const float* a;
  int64_t row, step;
};

// One tile of the result: `rows` rows from row i on, `width` columns from column j on. `b` holds `filled` columns, and
// what it holds more than is wanted is thrown away.
template <class R>
void multiply_tile(const Spread& spread, const Left& left, int64_t i, int64_t rows, int64_t j, int64_t width,
                   const float* b, int64_t b_step, int64_t filled) {
  const Product& sizes = spread.sizes;
  float* out = spread.out + i * sizes.columns + j;
  const auto sum = [&](float* to, int64_t to_row, const auto& ending) {
    multiply_row<R>(rows, filled, sizes.inner, left.a, left.row, left.step, b, b_step, to, to_row, ending);
  };
  fetch_rows(out, sizes.columns, rows, kPanel);
  if (width == filled && spread.descends) return sum(out, sizes.columns, Descend{spread.factor});
  if (width == filled) return sum(out, sizes.columns, Replace());
  alignas(64) float tile[kTileRows<R> * kPanel];
  sum(tile, kPanel, Replace());
  for (int64_t row = 0; row < rows; ++row, out += sizes.columns) {
    for (int64_t c = 0; c < width; ++c) {
      const float y = tile[row * kPanel + c];
      out[c] = spread.descends ? out[c] - spread.factor * y : y;
    }
  }
}

template <class R>
void multiply_part(const Spread& spread, int64_t first_row, int64_t last_row, int64_t first_column, int64_t last_column,
                   float* scratch) {
  const Product& sizes = spread.sizes;
  const int64_t rows = last_row - first_row, groups = (rows + kTileRows<R> - 1) / kTileRows<R>;
  const bool copies = spread.copies<R>(rows), copies_left = spread.copies_left();
  float* const panels = scratch + kLeftLanes<R> * sizes.inner;
  const int64_t block = block_columns(sizes);
  for (int64_t from = first_column; from < last_column; from += block) {
    const int64_t to = std::min(from + block, last_column);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t i = first_row + rows * group / groups, next = first_row + rows * (group + 1) / groups;
      Left left{spread.a + i * spread.a_row(), spread.a_row(), spread.a_step()};
      if (copies_left) {
        copy_left<R>(sizes, spread.a, i, next - i, scratch);
        left = {scratch, 1, kLeftLanes<R>};
      }
      for (int64_t j = from; j < to; j += kStrip<R>) {
        const int64_t width = std::min(kStrip<R>, to - j);
        const int64_t filled = (width + kPanelLanes - 1) / kPanelLanes * kPanelLanes;
        float* panel = panels + (j - from) * sizes.inner;
        const bool copied = copies || width < filled;
        if (copied && group == 0) copy_panel<R>(spread.b + j, sizes.columns, sizes.inner, width, filled, panel);
        multiply_tile<R>(spread, left, i, next - i, j, width, copied ? panel : spread.b + j,
                         copied ? filled : sizes.columns, filled);
      }
    }
  }
}

// ---- panels --------------------------------------------------------------------------------------------------------
// The same tiles over a b^T whose columns stand side by side. A panel streams from the second cache, and so do the rows
// of a, so neither is cut up along k.

struct Panels {
  const Product& sizes;
  const float *a, *panels, *bias;
  bool relu;
  float* out;
};

// Adds the bias, and ends in out, which may be where the tile is.
inline void finish_tile(const Panels& work, const float* tile, int64_t tile_row, int64_t rows, int64_t width, int64_t i,
                        int64_t j) {
  for (int64_t row = 0; row < rows; ++row) {
    finish_row(tile + row * tile_row, width, work.bias ? work.bias + j : nullptr, work.relu,
               work.out + (i + row) * work.sizes.columns + j);
  }
}

template <class R>
void multiply_part(const Panels& work, int64_t first_row, int64_t last_row, int64_t first_column, int64_t last_column) {
  const Product& sizes = work.sizes;
  // Rows that are a multiple of 4 KiB apart share one set of the nearest cache, which holds a dozen lines.
  const int64_t most_rows = std::min<int64_t>(kTileRows<R>, sizes.inner % 1024 == 0 ? 8 : 14);
  const int64_t rows = last_row - first_row, groups = (rows + most_rows - 1) / most_rows;
  // Tiles of 16 registers are faster whole, as long as what is left over has sums enough to hide their latency.
  const bool whole_groups = R::kCount == 16 && rows % most_rows >= 4;
  const Step<kPanelLanes> step;
  const int64_t b_vector = R::kWidth == step ? step * sizes.inner : R::kWidth;
  alignas(64) float beside[kTileRows<R> * kPanel];
  for (int64_t j = first_column; j < last_column; j += kPanel) {
    const int64_t width = std::min(kPanel, last_column - j), filled = (width + step - 1) / step * step;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t from = whole_groups ? group * most_rows : rows * group / groups;
      const int64_t to = whole_groups ? std::min(rows, from + most_rows) : rows * (group + 1) / groups;
      const int64_t i = first_row + from, here = to - from;
      const bool whole = width == filled;
      float* tile = whole ? work.out + i * sizes.columns + j : beside;
      const int64_t tile_row = whole ? sizes.columns : kPanel;
      if (whole) fetch_rows(tile, tile_row, here, kPanel);
      const float* a = work.a + i * sizes.inner;
      for (int64_t c = 0; c < filled; c += 2 * R::kWidth) {
        const float* b = work.panels + (j + c) / step * step * sizes.inner + c % step;
        if (c + 2 * R::kWidth <= filled) {
          product_of_rows<R, kTileRows<R>, 2>(here, sizes.inner, a, sizes.inner, Step<1>(), b, step, b_vector, tile + c,
                                              tile_row, Replace());
        } else {
          product_of_rows<R, kTileRows<R>, 1>(here, sizes.inner, a, sizes.inner, Step<1>(), b, step, b_vector, tile + c,
                                              tile_row, Replace());
        }
      }
      if (!whole || work.bias || work.relu) finish_tile(work, tile, tile_row, here, width, i, j);
    }
  }
}

// ---- turned --------------------------------------------------------------------------------------------------------
// The transpose of the result, b a^T, in the same tiles: the larger factor is spread over registers as it lies in
// memory, a row of it in order, and only the smaller one is laid out. Some tiles of the result's columns at a time are
// turned back, while they are near.

constexpr int64_t kTurnedTiles = 4;

// Rows of a that fill no tile are multiplied along their terms, this many at a time.
constexpr int kRestRows = 4;

struct Turned {
  const Product& sizes;
  const float *a, *b, *bias;
  bool relu;
  float* out;

  template <class R>
  int64_t whole_rows() const {
    return sizes.rows / (2 * R::kWidth) * (2 * R::kWidth);
  }
};

// `lanes` rows of a as one panel.
template <class R>
void turn_rows(const float* a, int64_t inner, int64_t lanes, float* panel) {
  const int64_t whole = inner / R::kWidth * R::kWidth;
  for (int64_t k = 0; k < whole; k += R::kWidth)
    for (int64_t lane = 0; lane < lanes; lane += R::kWidth)
      copy_square<R>(a + lane * inner + k, inner, panel + k * lanes + lane, lanes, [](const auto&) {});
  for (int64_t k = whole; k < inner; ++k)
    for (int64_t lane = 0; lane < lanes; ++lane) panel[k * lanes + lane] = a[lane * inner + k];
}

inline float finished(const Turned& work, float sum, int64_t j) {
  const float y = work.bias ? sum + work.bias[j] : sum;
  return work.relu && y < 0 ? 0 : y;
}

// Turns back `count` columns of the result from column j on, `rows` of each.
template <class R>
void turn_back(const Turned& work, const float* tiles, int64_t rows, int64_t j, int64_t count) {
  const int64_t columns = work.sizes.columns, whole = count / R::kWidth * R::kWidth;
  for (int64_t i = 0; i < rows; i += R::kWidth) {
    for (int64_t c = 0; c < whole; c += R::kWidth) {
      const typename R::Vector zero{}, bias = work.bias ? typename R::Vector(R::at(work.bias + j + c)) : zero;
      copy_square<R>(tiles + c * rows + i, rows, work.out + i * columns + j + c, columns, [&](auto& y) {
        y += bias;
        if (work.relu) y = y < 0 ? zero : y;
      });
    }
    for (int64_t c = whole; c < count; ++c)
      for (int64_t l = i; l < i + R::kWidth; ++l)
        work.out[l * columns + j + c] = finished(work, tiles[c * rows + l], j + c);
  }
}

// Columns [from, to) of kRows rows from row i on.
template <class R, int kRows>
void multiply_rest(const Turned& work, int64_t i, int64_t from, int64_t to) {
  constexpr int kColumns = 3;
  const int64_t inner = work.sizes.inner;
  float sums[kRows * kColumns];
  const auto end = [&](int64_t j, int count) {
    for (int row = 0; row < kRows; ++row)
      for (int c = 0; c < count; ++c)
        work.out[(i + row) * work.sizes.columns + j + c] = finished(work, sums[row * count + c], j + c);
  };
  int64_t j = from;
  for (; j + kColumns <= to; j += kColumns) {
    dots<R, kRows, kColumns, 1>(inner, work.a + i * inner, inner, work.b + j * inner, inner, sums);
    end(j, kColumns);
  }
  for (; j < to; ++j) {
    dots<R, kRows, 1, 1>(inner, work.a + i * inner, inner, work.b + j * inner, inner, sums);
    end(j, 1);
  }
}

template <class R>
void multiply_part(const Turned& work, int64_t first_column, int64_t last_column, float* scratch) {
  constexpr int64_t kLanes = 2 * R::kWidth, kColumns = kTurnedTiles * kTileRows<R>;
  const int64_t inner = work.sizes.inner, rows = work.whole_rows<R>();
  float* const tiles = scratch + rows * inner;
  for (int64_t i = 0; i < rows; i += kLanes) turn_rows<R>(work.a + i * inner, inner, kLanes, scratch + i * inner);
  for (int64_t from = first_column; from < last_column; from += kColumns) {
    const int64_t to = std::min(from + kColumns, last_column);
    for (int64_t i = 0; i < rows; i += kLanes) {
      for (int64_t j = from; j < to; j += kTileRows<R>) {
        multiply_row<R>(std::min<int64_t>(kTileRows<R>, to - j), kLanes, inner, work.b + j * inner, inner, 1,
                        scratch + i * inner, kLanes, tiles + (j - from) * rows + i, rows, Replace());
      }
    }
    turn_back<R>(work, tiles, rows, from, to - from);
    stand_alone(R(), [&] {
      int64_t i = rows;
      for (; i + kRestRows <= work.sizes.rows; i += kRestRows) multiply_rest<R, kRestRows>(work, i, from, to);
      for (; i < work.sizes.rows; ++i) multiply_rest<R, 1>(work, i, from, to);
    });
  }
}

// Of one thread.
int64_t turned_floats(const Product& sizes) {
  const int64_t rows = (sizes.rows + kPanelLanes - 1) / kPanelLanes * kPanelLanes;  // so it ends with a cache line
  return rows * (sizes.inner + kTurnedTiles * kTileRows<Register<16>>);
}
int64_t scratch_floats(const Product& sizes) { return (block_columns(sizes) + kMostLeftLanes) * sizes.inner; }

void multiply(const Spread& spread, bool by_rows) {
  divide_result(spread.sizes, by_rows, [&](auto wide, int64_t part, const auto&... ends) {
    multiply_part<decltype(wide)>(spread, ends..., spread.scratch + part * scratch_floats(spread.sizes));
  });
}

}  // namespace

void multiply_panels(const Product& sizes, const float* a, const float* panels, const float* bias, bool relu,
                     float* out) {
  const Panels work{sizes, a, panels, bias, relu, out};
  divide_result(sizes, sizes.rows > sizes.columns,
                [&](auto wide, int64_t, const auto&... ends) { multiply_part<decltype(wide)>(work, ends...); });
}

int64_t turned_scratch_bytes(const Product& sizes) {
  return threads() * turned_floats(sizes) * static_cast<int64_t>(sizeof(float));
}

void multiply_turned(const Product& sizes, const float* a, const float* b, const float* bias, bool relu, float* out,
                     float* scratch) {
  const Turned work{sizes, a, b, bias, relu, out};
  divide_result(sizes, false, [&](auto wide, int64_t part, int64_t, int64_t, const auto&... columns) {
    multiply_part<decltype(wide)>(work, columns..., scratch + part * turned_floats(sizes));
  });
}

int64_t spread_scratch_bytes(const Product& sizes) {
  return threads() * scratch_floats(sizes) * static_cast<int64_t>(sizeof(float));
}

void multiply_spread(const Product& sizes, const float* a, const float* b, float* out, float* scratch) {
  multiply({sizes, a, b, false, 0, out, scratch}, sizes.rows > sizes.columns);
}

void descend_spread(const Product& sizes, const float* a, const float* b, float factor, float* out, float* scratch) {
  multiply({sizes, a, b, true, factor, out, scratch}, true);
}

}  // namespace moonflow::cpu
