// Products a b^T in TF32 that are too small to fill a card with tiles and are summed over a long axis: each block has a
// small tile, and its warps share that axis. Their sums are added in the order of the warps, so one launch does what
// the library's parts and their reduction do in two. What becomes of a sum is as in kernels/cuda/tiles.h.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/cuda/tensor_cores.h"
#include "kernels/matmul.h"

namespace moonflow::cuda {

template <class End>
struct SplitProduct {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
  static constexpr int kTileRows = 16, kTileColumns = 32;
  static constexpr int kRow = kTileColumns + 8;  // of the sums in shared memory; what a warp writes: different banks
  static constexpr int64_t kSharedBytes = kWarps * kTileRows * kRow * sizeof(float);
  using OfWarp = WarpSums<kTileRows, kTileColumns>;

  const float *a, *b;  // (rows, inner) and (columns, inner)
  End end;
  int64_t rows, columns, inner;

  static int64_t blocks(const Product& s) {
    return (s.rows + kTileRows - 1) / kTileRows * ((s.columns + kTileColumns - 1) / kTileColumns);
  }

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const uint32_t across = static_cast<uint32_t>((columns + kTileColumns - 1) / kTileColumns);
    const uint32_t tile = static_cast<uint32_t>(block.index());
    const int64_t first_row = int64_t{tile / across} * kTileRows, first_column = int64_t{tile % across} * kTileColumns;
    const int thread = block.thread(), warp = thread / kWarp, lane = thread % kWarp;
    OfWarp sums;
    sums.add_runs(lane, inner, warp, kWarps, Rows{a, first_row, rows, inner}, Rows{b, first_column, columns, inner});

    float* const parts = block.template shared<float>();
    MOONFLOW_UNROLL
    for (int pair = 0; pair < OfWarp::kPairs; ++pair) {
      float* const to = parts + (warp * kTileRows + OfWarp::row(lane, pair)) * kRow + OfWarp::column(lane, pair);
      for (int i = 0; i < 2; ++i) to[i] = sums.of(pair, i);
    }
    block.sync();
    for (int at = thread; at < kTileRows * kTileColumns; at += kThreads) {
      const int row = at / kTileColumns, column = at % kTileColumns;
      float sum = 0;
      MOONFLOW_UNROLL
      for (int part = 0; part < kWarps; ++part) sum += parts[(part * kTileRows + row) * kRow + column];
      const int64_t to_row = first_row + row, to_column = first_column + column;
      if (to_row < rows && to_column < columns) end(to_row * columns + to_column, to_column, sum);
    }
  }

 private:
  // Those of a factor from `first` on; zeros beyond its edges.
  struct Rows {
    const float* data;
    int64_t first, count, inner;
    MOONFLOW_DEVICE Pack<float, 4> operator()(int row, int64_t k) const {
      const int64_t left = first + row < count ? inner - k : 0;
      const bool whole = left > 0 && inner % 4 == 0 && is_aligned<float, 4>(data);
      return read<float, 4>(data + (first + row) * inner + k, left, whole);
    }
  };
};

// Whether that is worth more than the library: one tile or less for each part of a large card, whose sums are long
// enough to be shared by warps, and not so long that what the tiles read again and again costs more than a launch.
inline bool splits_well(const Product& s) {
  using Kernel = SplitProduct<int>;
  return s.batch == 1 && !s.transpose_a && s.transpose_b && s.inner >= 16 * Kernel::kWarps && s.inner <= 1024 &&
         Kernel::blocks(s) <= kProcessors;
}

}  // namespace moonflow::cuda
