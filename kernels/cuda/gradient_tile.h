// A tile of the gradient of a dense layer's weight, dy^T x, by a block of threads. The sums are short, since they go
// over the rows of a batch, so what counts is how long the block waits for its first numbers: strips of both factors,
// kDepth rows of kSide columns, are on their way into a ring in shared memory while those before them are multiplied,
// and whoever has the tile can ask for what else it needs in between.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/cuda/tensor_cores.h"

namespace moonflow::cuda {

struct Strips {
  static constexpr int kThreads = 256, kSide = 64, kDepth = 16;
  // Rows are eight numbers longer than they need be: what a warp reads at once lies in different banks.
  static constexpr int kRow = kSide + 8, kNumbers = kDepth * kRow;
};

// What each thread of the block sums, eight pairs of neighbours in rows of the tile, by its own arithmetic.
template <class Real>
class OwnSums {
 public:
  using Number = Real;
  static constexpr int kPairs = 8;
  // A thread has 4 x 4 and a warp 16 x 32, for which it reads the fewest numbers.
  static MOONFLOW_DEVICE int row(int thread, int pair) { return thread / 64 * 16 + thread % 32 / 8 * 4 + pair / 2; }
  static MOONFLOW_DEVICE int column(int thread, int pair) {
    return thread / 32 % 2 * 32 + thread % 8 * 4 + pair % 2 * 2;
  }

  // Adds the products of a strip of dy and one of x.
  MOONFLOW_DEVICE void add(int thread, const Real* dy, const Real* x) {
    MOONFLOW_UNROLL
    for (int k = 0; k < Strips::kDepth; ++k) {
      Real of_row[4], of_column[4];
      read_four(dy + k * Strips::kRow + row(thread, 0), of_row);
      read_four(x + k * Strips::kRow + column(thread, 0), of_column);
      MOONFLOW_UNROLL
      for (int at = 0; at < 16; ++at) sums_[at] += of_row[at / 4] * of_column[at % 4];
    }
  }
  MOONFLOW_DEVICE Real of(int pair, int i) const { return sums_[2 * pair + i]; }

 private:
  static MOONFLOW_DEVICE void read_four(const Real* from, Real* to) {
    constexpr int kN = 16 / sizeof(Real);
    MOONFLOW_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = reinterpret_cast<const Pack<Real, kN>*>(from)[i / kN].values[i % kN];
  }

  Real sums_[2 * kPairs] = {};
};

// The same with factors rounded to TF32, by tensor cores: each warp has 32 rows of 16.
class TensorSums {
 public:
  using Number = float;
  static constexpr int kPairs = 8;
  static MOONFLOW_DEVICE int row(int thread, int pair) { return first_row(thread) + OfWarp::row(thread % kWarp, pair); }
  static MOONFLOW_DEVICE int column(int thread, int pair) {
    return first_column(thread) + OfWarp::column(thread % kWarp, pair);
  }

  MOONFLOW_DEVICE void add(int thread, const float* dy, const float* x) {
    MOONFLOW_UNROLL
    for (int first = 0; first < Strips::kDepth; first += OfWarp::kDepth) {
      const float* const left = dy + first * Strips::kRow + first_row(thread);
      const float* const right = x + first * Strips::kRow + first_column(thread);
      of_warp_.add(
          thread % kWarp, [left](int row, int k) { return left[k * Strips::kRow + row]; },
          [right](int k, int column) { return right[k * Strips::kRow + column]; });
    }
  }
  MOONFLOW_DEVICE float of(int pair, int i) const { return of_warp_.of(pair, i); }

 private:
  using OfWarp = WarpSums<32, 16>;
  static_assert(OfWarp::kPairs == kPairs);
  static MOONFLOW_DEVICE int first_row(int thread) { return thread / kWarp / 4 * 32; }
  static MOONFLOW_DEVICE int first_column(int thread) { return thread / kWarp % 4 * 16; }

  OfWarp of_warp_;
};

template <class Sums>
struct GradientTile {
  using T = typename Sums::Number;
  static constexpr int kThreads = Strips::kThreads, kSide = Strips::kSide, kDepth = Strips::kDepth;
  // As many as every launch has room for.
  static constexpr int kStrips = sizeof(T) == 4 ? 5 : 2;
  static constexpr int64_t kSharedBytes = kStrips * 2 * Strips::kNumbers * sizeof(T);

  const T *dy, *x;  // (rows, units) and (rows, in); no x where only dy is to be looked at
  int64_t rows, units, in;
  int64_t first_unit, first_in;  // where the tile lies

  // Sends for the first strips.
  template <class Block>
  MOONFLOW_DEVICE void begin(const Block& block) const {
    for (int strip = 0; strip < kStrips - 1; ++strip) fetch(block, strip);
  }

  // Adds up. `look(strip)` is called for each strip of dy while it is there: kDepth rows, Strips::kRow apart.
  template <class Block, class Look>
  MOONFLOW_DEVICE void add_to(Sums& sums, const Block& block, const Look& look) const {
    for (int strip = 0; strip < count(); ++strip) {
      block.template wait_for_copies<kStrips - 2>();
      block.sync();  // this strip is there, and nobody needs the one before any more
      fetch(block, strip + kStrips - 1);
      const T* const from = place(block, strip);
      look(from);
      if (x != nullptr) sums.add(block.thread(), from, from + Strips::kNumbers);
    }
  }

 private:
  MOONFLOW_DEVICE int count() const { return static_cast<int>((rows + kDepth - 1) / kDepth); }
  template <class Block>
  MOONFLOW_DEVICE static T* place(const Block& block, int strip) {
    return block.template shared<T>() + strip % kStrips * (2 * Strips::kNumbers);
  }

  template <class Block>
  MOONFLOW_DEVICE void fetch(const Block& block, int strip) const {
    if (strip < count()) {
      T* const to = place(block, strip);
      fetch(block, dy, units, first_unit, strip, to);
      if (x != nullptr) fetch(block, x, in, first_in, strip, to + Strips::kNumbers);
    }
    block.end_copies();  // also of none, so that groups can be counted
  }

  // Of a factor with so many columns, from `first` on; zeros beyond its edges.
  template <class Block>
  MOONFLOW_DEVICE void fetch(const Block& block, const T* factor, int64_t columns, int64_t first, int strip,
                             T* to) const {
    constexpr int kN = 16 / sizeof(T), kPacks = kSide / kN;
    const bool whole = columns % kN == 0 && is_aligned<T, kN>(factor);
    MOONFLOW_UNROLL
    for (int i = 0; i < kDepth * kPacks / kThreads; ++i) {
      const int pack = block.thread() + i * kThreads, row = pack / kPacks, column = pack % kPacks * kN;
      const int64_t of_row = int64_t{strip} * kDepth + row, left = of_row < rows ? columns - first - column : 0;
      const int here = left <= 0 ? 0 : left < kN ? static_cast<int>(left) : kN;
      const T* const from = here > 0 ? factor + of_row * columns + first + column : factor;
      T* const into = to + row * Strips::kRow + column;
      if (whole) {
        block.template begin_copy<16>(into, from, here * static_cast<int>(sizeof(T)));
        continue;
      }
      for (int n = 0; n < kN; ++n)
        block.template begin_copy<sizeof(T)>(into + n, n < here ? from + n : factor, n < here ? sizeof(T) : 0);
    }
  }
};

}  // namespace moonflow::cuda
