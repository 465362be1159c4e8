#include "kernels/cpu/matmul_bfloat16_pack.h"

#include <algorithm>

#include "kernels/cpu/bfloat16_pairs.h"
#include "kernels/cpu/device.h"

namespace moonflow::cpu {

#ifdef MOONFLOW_BFLOAT16
namespace {

// 32 neighbours of a row, of which `count` are there: 16 pairs.
[[MOONFLOW_BFLOAT16]] inline __m512i pairs_along(const Stored& from, int64_t i, int64_t j, int64_t count) {
  if (from.narrow) {
    const auto mask = static_cast<__mmask32>(count >= 32 ? 0xffffffffu : (1u << count) - 1);
    return _mm512_maskz_loadu_epi16(mask, from.half(i, j));
  }
  const __m512 first = _mm512_maskz_loadu_ps(lanes(count), from.wide(i, j));
  const __m512 second = _mm512_maskz_loadu_ps(lanes(count - kLanes), from.wide(i, j) + (count > kLanes ? kLanes : 0));
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

// The pairs down two rows, of 16 columns of which `count` are there; there may be only one row.
[[MOONFLOW_BFLOAT16]] inline __m512i pairs_down(const Stored& from, int64_t i, bool two, int64_t j, int64_t count) {
  const __mmask16 upper = lanes(count), lower = two ? upper : __mmask16{0};
  __m512i both;
  if (from.narrow) {
    const __m256i first = _mm256_maskz_loadu_epi16(upper, from.half(i, j));
    const __m256i second = _mm256_maskz_loadu_epi16(lower, from.half(two ? i + 1 : i, j));
    both = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  } else {
    const __m512 first = _mm512_maskz_loadu_ps(upper, from.wide(i, j));
    const __m512 second = _mm512_maskz_loadu_ps(lower, from.wide(two ? i + 1 : i, j));
    both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
  }
  return interleaved(both);
}

// 16 rows from row i on, 32 neighbours of each from j on: as columns of a panel.
[[MOONFLOW_BFLOAT16]] inline void turn_block(const Stored& from, int64_t i, int64_t j, Pair* to, int64_t row) {
  __m512i block[kLanes];
  if (from.narrow) {
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) block[c] = _mm512_loadu_si512(from.half(i + c, j));
  } else {
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) {
      const float* const numbers = from.wide(i + c, j);
      block[c] = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(numbers + kLanes), _mm512_loadu_ps(numbers));
    }
  }
  transpose_pairs(block);
#pragma GCC unroll 16
  for (int k = 0; k < kLanes; ++k) _mm512_storeu_si512(to + k * row, block[k]);
}

// The same where there are fewer: `columns` rows of `numbers` neighbours, of whose pairs `count` are wanted.
[[MOONFLOW_BFLOAT16]] void turn_part(const Stored& from, int64_t i, int64_t columns, int64_t j, int64_t numbers,
                                     int64_t count, Pair* to, int64_t row) {
  __m512i block[kLanes];
  for (int64_t c = 0; c < kLanes; ++c)
    block[c] = c < columns ? pairs_along(from, i + c, j, numbers) : _mm512_setzero_si512();
  transpose_pairs(block);
  for (int64_t k = 0; k < count; ++k) _mm512_storeu_si512(to + k * row, block[k]);
}

}  // namespace

[[MOONFLOW_BFLOAT16]] void pack_panel(const NarrowProduct& product, const void* b, int64_t first, int64_t width,
                                      Pair* panel) {
  const int64_t all_pairs = pairs(product), depth = panel_depth(product);
  const int64_t vectors = vectors_of(width);
  const PanelLayout layout(product, vectors);
  const Stored from{b, product.transpose_b ? product.inner : product.columns, product.narrow_b};
  if (!product.transpose_b) {
    for (int64_t k = 0; k < depth; ++k, panel += layout.row) {
      for (int64_t v = 0; v < vectors; ++v) {
        const int64_t j = v * kLanes;
        _mm512_storeu_si512(panel + v * layout.vector,
                            k < all_pairs ? pairs_down(from, 2 * k, 2 * k + 1 < product.inner, first + j, width - j)
                                          : _mm512_setzero_si512());
      }
    }
    return;
  }
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t columns = std::min(kLanes, width - v * kLanes);
    for (int64_t k = 0; k < depth; k += kLanes) {
      const int64_t count = std::min(kLanes, depth - k);
      Pair* const to = panel + k * layout.row + v * layout.vector;
      if (columns == kLanes && product.inner - 2 * k >= 2 * kLanes) {
        turn_block(from, first + v * kLanes, 2 * k, to, layout.row);
      } else {
        turn_part(from, first + v * kLanes, columns, 2 * k, product.inner - 2 * k, count, to, layout.row);
      }
    }
  }
}

// ---- the first factor ------------------------------------------------------------------------------------------

namespace {

// In pairs, and in whole tiles, as it is: no row begins in the middle of one.
bool left_is_packed(const NarrowProduct& product) {
  const int64_t whole = multiplies_in_tiles(product) ? 2 * kLanes : 2;
  return product.narrow_a && !product.transpose_a && product.inner % whole == 0;
}

int64_t tiles_along(const NarrowProduct& product) { return vectors_of(pairs(product)); }

[[MOONFLOW_BFLOAT16]] void pack_rows(const Stored& from, int64_t inner, int64_t row, Pair* to) {
  for (int64_t k = 0; k < inner; k += 2 * kLanes) _mm512_storeu_si512(to + k / 2, pairs_along(from, row, k, inner - k));
}

[[MOONFLOW_BFLOAT16]] void pack_pair_of_rows(const Stored& from, int64_t inner, int64_t columns, int64_t pair,
                                             Pair* to) {
  for (int64_t j = 0; j < columns; j += kLanes)
    _mm512_storeu_si512(to + j, pairs_down(from, 2 * pair, 2 * pair + 1 < inner, j, columns - j));
}

// 16 rows of a' from row i on, 32 numbers of each from k on, as a tile.
[[MOONFLOW_BFLOAT16]] void pack_tile(const NarrowProduct& product, const Stored& from, int64_t i, int64_t k, Pair* to) {
  const int64_t rows = std::min(kLanes, product.rows - i);
  if (!product.transpose_a) {
    for (int64_t r = 0; r < rows; ++r)
      _mm512_storeu_si512(to + r * kLanes, pairs_along(from, i + r, k, product.inner - k));
    return;
  }
  __m512i block[kLanes];
  for (int64_t p = 0; p < kLanes; ++p, k += 2)
    block[p] = k < product.inner ? pairs_down(from, k, k + 1 < product.inner, i, rows) : _mm512_setzero_si512();
  transpose_pairs(block);
  for (int64_t r = 0; r < rows; ++r) _mm512_storeu_si512(to + r * kLanes, block[r]);
}

// Rows from row i on, of several tiles, so that a stored row is read in long pieces.
constexpr int64_t kTilesTogether = 4;
void pack_tiles(const NarrowProduct& product, const Stored& from, int64_t i, Pair* to) {
  const int64_t tile = kLanes * kLanes, below = tiles_along(product) * tile;
  const int64_t count = std::min(kTilesTogether, vectors_of(product.rows - i));
  for (int64_t k = 0; k < product.inner; k += 2 * kLanes, to += tile)
    for (int64_t t = 0; t < count; ++t) pack_tile(product, from, i + t * kLanes, k, to + t * below);
}

// What is packed at once: so many times of one product, and what each takes.
struct Runs {
  int64_t count, pairs;

  explicit Runs(const NarrowProduct& product) {
    if (multiplies_in_tiles(product))
      count = (vectors_of(product.rows) + kTilesTogether - 1) / kTilesTogether,
      pairs = kTilesTogether * tiles_along(product) * kLanes * kLanes;
    else if (product.transpose_a)
      count = cpu::pairs(product), pairs = round_up(product.rows, kLanes);
    else
      count = product.rows, pairs = round_up(cpu::pairs(product), kLanes);
  }
};

}  // namespace

int64_t PackedLeft::pairs_of_one(const NarrowProduct& product) {
  const Runs runs(product);
  return left_is_packed(product) ? 0 : runs.count * runs.pairs;
}

PackedLeft::PackedLeft(const NarrowProduct& product, const void* a, Pair* packed)
    : product_(product), as_stored_(left_is_packed(product)), data_(as_stored_ ? static_cast<const Pair*>(a) : packed) {
  if (as_stored_) return;
  const Runs runs(product);
  const int64_t bytes = product.rows * product.inner * (product.narrow_a ? 2 : 4);
  parallel_for(product.batch * runs.count, std::max<int64_t>(1, kWideGrain / runs.pairs),
               [=, &product](int64_t first, int64_t last) {
                 for (int64_t run = first; run < last; ++run) {
                   const int64_t n = run / runs.count, at = run % runs.count;
                   const Stored from{static_cast<const char*>(a) + n * bytes,
                                     product.transpose_a ? product.rows : product.inner, product.narrow_a};
                   Pair* const to = packed + run * runs.pairs;
                   if (multiplies_in_tiles(product)) {
                     pack_tiles(product, from, at * kTilesTogether * kLanes, to);
                   } else if (product.transpose_a) {
                     pack_pair_of_rows(from, product.inner, product.rows, at, to);
                   } else {
                     pack_rows(from, product.inner, at, to);
                   }
                 }
               });
}

Terms PackedLeft::terms(int64_t n) const {
  if (as_stored_) return {data_ + n * product_.rows * product_.inner / 2, product_.inner / 2, 1};
  const Runs runs(product_);
  const Pair* const data = data_ + n * runs.count * runs.pairs;
  if (product_.transpose_a) return {data, 1, runs.pairs};
  return {data, runs.pairs, 1};
}

LeftTiles PackedLeft::tiles(int64_t n) const {
  if (as_stored_) {
    const int64_t row = product_.inner / 2;
    return {data_ + n * product_.rows * row, row, kLanes * row, kLanes};
  }
  const Runs runs(product_);
  return {data_ + n * runs.count * runs.pairs, kLanes, runs.pairs / kTilesTogether, kLanes * kLanes};
}

#endif

}  // namespace moonflow::cpu
