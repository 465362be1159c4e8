// Matrix products by kernels of our own, for sizes that NVIDIA's library is no faster for, factors of two dtypes, and
// results with which more is to be done than to store them. What becomes of a sum is a struct of plain data with
//
//   bool begins() const;                                          whether there is anything to do after all
//   void operator()(int64_t place, int64_t column, T sum) const;  takes the sum of the element at `place` of the result
#pragma once

#include <array>

#include "kernels/cuda/block.h"
#include "kernels/matmul.h"

namespace moonflow::cuda {

// ---- factors -------------------------------------------------------------------------------------------------

// A stack of matrices.
template <class T>
struct Factor {
  using Number = T;
  const T* data;
  int64_t batch_step, row_step, column_step;
  MOONFLOW_DEVICE T at(int64_t batch, int64_t row, int64_t column) const {
    return data[batch * batch_step + row * row_step + column * column_step];
  }
};

// The same in bfloat16 or float16: stored so, or rounded as it is read.
template <class Half>
struct NarrowFactor {
  using Number = float;
  const void* data;
  int64_t batch_step, row_step, column_step;
  bool narrow;
  MOONFLOW_DEVICE float at(int64_t batch, int64_t row, int64_t column) const {
    const int64_t place = batch * batch_step + row * row_step + column * column_step;
    if (narrow) return static_cast<float>(static_cast<const Half*>(data)[place]);
    return static_cast<float>(Half(static_cast<const float*>(data)[place]));
  }
};

// ---- tiles: each block has one of the result -----------------------------------------------------------------

// A strip of either factor lies in shared memory, kDepth of the inner axis at a time, and each thread sums
// kEach * kEach elements of the tile in registers. Edges are filled up with zeros.
template <class From, int kEach, class End>
struct Tiles {
  using T = typename From::Number;
  static constexpr int kThreads = 256;
  static constexpr int kSide = 16 * kEach, kDepth = 16;
  static constexpr int kRow = kSide + 1;  // one more, so that what a warp writes lies in different banks
  static constexpr int64_t kSharedBytes = 2 * kDepth * kRow * sizeof(T);

  From a, b;
  End end;
  int64_t rows, columns, inner, tile_rows, tile_columns;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    if (!end.begins()) return;
    T *const left = block.template shared<T>(), *const right = left + kDepth * kRow;
    const int64_t batch = block.index() / (tile_rows * tile_columns), tile = block.index() % (tile_rows * tile_columns);
    const int64_t first_row = tile / tile_columns * kSide, first_column = tile % tile_columns * kSide;
    const int row = block.thread() / 16, column = block.thread() % 16;  // its own elements are 16 apart
    T sums[kEach * kEach] = {};
    for (int64_t first = 0; first < inner; first += kDepth) {
      // Neighbouring threads read neighbours, whichever axis those lie along.
      fill(block, a, batch, first_row, rows, first, a.column_step == 1, false, left);
      fill(block, b, batch, first_column, columns, first, b.row_step == 1, true, right);
      block.sync();
      MOONFLOW_UNROLL
      for (int k = 0; k < kDepth; ++k) {
        T of_row[kEach], of_column[kEach];
        MOONFLOW_UNROLL
        for (int i = 0; i < kEach; ++i) of_row[i] = left[k * kRow + row + 16 * i];
        MOONFLOW_UNROLL
        for (int j = 0; j < kEach; ++j) of_column[j] = right[k * kRow + column + 16 * j];
        MOONFLOW_UNROLL
        for (int at = 0; at < kEach * kEach; ++at) sums[at] += of_row[at / kEach] * of_column[at % kEach];
      }
      block.sync();
    }
    MOONFLOW_UNROLL
    for (int at = 0; at < kEach * kEach; ++at) {
      const int64_t to_row = first_row + row + at / kEach * 16, to_column = first_column + column + at % kEach * 16;
      if (to_row < rows && to_column < columns) end((batch * rows + to_row) * columns + to_column, to_column, sums[at]);
    }
  }

 private:
  // Lays out (depth, side): `side` counts rows of a or columns of b, from `first_side` on.
  template <class Block>
  MOONFLOW_DEVICE void fill(const Block& block, const From& from, int64_t batch, int64_t first_side, int64_t side_count,
                            int64_t first_depth, bool along_depth, bool is_b, T* to) const {
    for (int i = block.thread(); i < kSide * kDepth; i += kThreads) {
      const int depth = along_depth ? i % kDepth : i / kSide, side = along_depth ? i / kDepth : i % kSide;
      const int64_t s = first_side + side, d = first_depth + depth;
      const bool inside = s < side_count && d < inner;
      to[depth * kRow + side] = inside ? (is_b ? from.at(batch, d, s) : from.at(batch, s, d)) : T(0);
    }
  }
};

// ---- dots: each warp has one element of the result -----------------------------------------------------------

template <class From, class End>
struct Dots {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  From a, b;
  End end;
  int64_t count, rows, columns, inner;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t place = block.index() * kWarps + block.thread() / kWarp;
    if (place >= count || !end.begins()) return;
    const int lane = block.thread() % kWarp;
    const int64_t column = place % columns, row = place / columns % rows, batch = place / columns / rows;
    typename From::Number sum = 0;
    for (int64_t k = lane; k < inner; k += kWarp) sum += a.at(batch, row, k) * b.at(batch, k, column);
    sum = over_warp(block, sum, Sum());
    if (lane == 0) end(place, column, sum);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// What the factors are, beside their sizes.
struct Stored {
  bool narrow_a = false, narrow_b = false;
  bool rounds = false;  // those that are float32 are rounded to what the others are

  bool any() const { return narrow_a || narrow_b || rounds; }
};

// Few results of long sums, as logits are, and as one sample makes of any layer.
inline bool wants_dots(const Product& s) {
  return s.inner >= 2 * kWarp && (s.batch * s.rows * s.columns <= 4096 || (s.batch == 1 && s.rows <= 4));
}

// Larger tiles read less, smaller ones give each part of the card something to do.
inline bool wants_large_tiles(int64_t results) { return results >= kProcessors * 64 * 64; }

template <class From, class End>
void multiply_factors(Stream& stream, const Product& s, const From& left, const From& right, const End& end) {
  const int64_t count = s.batch * s.rows * s.columns;
  if (count == 0) return;
  if (wants_dots(s)) {
    using Kernel = Dots<From, End>;
    const int64_t blocks = (count + Kernel::kWarps - 1) / Kernel::kWarps;
    return launch(stream, blocks, Kernel{left, right, end, count, s.rows, s.columns, s.inner});
  }
  const auto in_tiles = [&](auto kernel) {
    using Kernel = decltype(kernel);
    kernel.tile_rows = (s.rows + Kernel::kSide - 1) / Kernel::kSide;
    kernel.tile_columns = (s.columns + Kernel::kSide - 1) / Kernel::kSide;
    launch(stream, s.batch * kernel.tile_rows * kernel.tile_columns, kernel, Kernel::kSharedBytes);
  };
  if (wants_large_tiles(count))
    in_tiles(Tiles<From, 4, End>{left, right, end, s.rows, s.columns, s.inner, 0, 0});
  else
    in_tiles(Tiles<From, 2, End>{left, right, end, s.rows, s.columns, s.inner, 0, 0});
}

// How far apart the matrices, rows and columns of a factor lie. Of what is stored as the transpose, rows are columns.
inline std::array<int64_t, 3> factor_steps(int64_t rows, int64_t columns, bool transposed) {
  return {rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
}

// Of factors in T.
template <class T, class End>
void multiply(Stream& stream, const Product& s, const void* a, const void* b, const End& end) {
  const auto of_a = factor_steps(s.rows, s.inner, s.transpose_a),
             of_b = factor_steps(s.inner, s.columns, s.transpose_b);
  multiply_factors(stream, s, Factor<T>{static_cast<const T*>(a), of_a[0], of_a[1], of_a[2]},
                   Factor<T>{static_cast<const T*>(b), of_b[0], of_b[1], of_b[2]}, end);
}

// Of factors that are in Half, or rounded to it.
template <class Half, class End>
void multiply_narrow(Stream& stream, const Product& s, const Stored& stored, const void* a, const void* b,
                     const End& end) {
  const auto of_a = factor_steps(s.rows, s.inner, s.transpose_a),
             of_b = factor_steps(s.inner, s.columns, s.transpose_b);
  multiply_factors(stream, s, NarrowFactor<Half>{a, of_a[0], of_a[1], of_a[2], stored.narrow_a},
                   NarrowFactor<Half>{b, of_b[0], of_b[1], of_b[2], stored.narrow_b}, end);
}

}  // namespace moonflow::cuda
