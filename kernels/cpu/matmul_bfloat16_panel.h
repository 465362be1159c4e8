// What the ways to multiply in bfloat16 share: a panel of columns of the second factor, packed in pairs, and what
// becomes of the sums over it.
#pragma once

#include <algorithm>

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/matmul_bfloat16.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/sparse_terms.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

using Pair = Term;  // two bfloat16, neighbours along the inner axis; the first in the lower half

constexpr int64_t kLanes = 16;
constexpr int64_t kVectors = 4;      // of a panel that is multiplied in tiles
constexpr int64_t kMostVectors = 8;  // of a panel

inline int64_t vectors_of(int64_t columns) { return divide_up(columns, kLanes); }
inline int64_t pairs(const NarrowProduct& product) { return (product.inner + 1) / 2; }

// Each number of b is used once per row of a, so the speed is that of reading b: nothing is packed, and bfloat16 halves
// what is to be read.
constexpr int64_t kFewRows = 8;

inline bool is_few_rows(const NarrowProduct& product) {
  return product.batch == 1 && product.rows <= kFewRows && product.transpose_b && product.narrow_b &&
         !product.transpose_a;
}

inline bool multiplies_in_tiles(const NarrowProduct& product) { return has_tiles() && !is_few_rows(product); }

// Rows of pairs in a panel: tiles are whole.
inline int64_t panel_depth(const NarrowProduct& product) {
  return multiplies_in_tiles(product) ? round_up(pairs(product), kLanes) : pairs(product);
}

// A panel of so many vectors: how many pairs it is from row to row, and from vector to vector. For tiles each vector's
// rows lie together, so that a tile is one piece of memory.
struct PanelLayout {
  int64_t row, vector;

  PanelLayout(const NarrowProduct& product, int64_t vectors)
      : row(multiplies_in_tiles(product) ? kLanes : vectors * kLanes),
        vector(multiplies_in_tiles(product) ? panel_depth(product) * kLanes : kLanes) {}
};

// The first factor in tiles of 16 rows by 16 pairs, which may be fewer rows at the end: how many pairs it is from row
// to row of one, to the tile below and to the next along the inner axis.
struct LeftTiles {
  const Pair* data;
  int64_t row, below, next;
};

// What a panel is packed from. The columns of a b' that lies in rows are short pieces far apart, which the hardware
// does not guess; so while one panel is multiplied, those of the next are fetched.
struct PiecesOfRows {
  const char* data = nullptr;
  int64_t rows = 0, row_bytes = 0, bytes = 0;

  // Part `part` of `parts` of them.
  void fetch(int64_t part, int64_t parts) const {
    constexpr int64_t kLine = 64;  // bytes of a line of the cache
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i)
      for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(data + i * row_bytes + at, 0, 2);
  }
};

// Where sums over a panel end: in `columns` columns of out, for which `bias` is, if there is one. Where the product was
// turned over those are rows of out, which is float32 then.
struct PanelEnding {
  const NarrowProduct& product;
  const NarrowEnding& ending;
  int64_t columns;
  const float* bias;
  void* out;
  bool turned;

  // From a vector of the panel on.
  PanelEnding from(int64_t vector) const {
    const int64_t j = vector * kLanes, number = product.narrow_out ? 2 : 4;
    return {product,
            ending,
            columns - j,
            bias ? bias + j : nullptr,
            static_cast<char*>(out) + j * (turned ? product.rows : 1) * number,
            turned};
  }

  template <int kCount>
  bool is_whole() const {  // as most are
    return ending.is_plain() && !product.narrow_out && !turned && columns >= kCount * kLanes;
  }
};

// The lines of out that are to be read and written are fetched together while their sums are made: of so many vectors.
inline void fetch_out(const PanelEnding& end, int64_t begin, int64_t rows, int64_t vectors) {
  if (!end.ending.descends || end.turned) return;
  const int64_t columns = std::min(end.columns, vectors * kLanes);
  const float* out = static_cast<const float*>(end.out) + begin * end.product.columns;
  for (int64_t i = 0; i < rows; ++i, out += end.product.columns) {
    for (int64_t j = 0; j < columns; j += kLanes) __builtin_prefetch(out + j, 1);
    __builtin_prefetch(out + columns - 1, 1);
  }
}

// One row's sums as a column of out.
inline void end_turned_row(const PanelEnding& end, int64_t row, const float* sums, int64_t count) {
  float* const to = static_cast<float*>(end.out) + row;
  for (int64_t j = 0; j < count; ++j) {
    float& number = to[j * end.product.rows];
    number = end.ending.descends ? number - end.ending.factor * sums[j] : sums[j];
  }
}

// One row's sums in kCount registers.
template <int kCount>
[[MOONFLOW_BFLOAT16, gnu::always_inline]] inline void end_row(const PanelEnding& end, int64_t row,
                                                              __m512 (&sum)[kCount]) {
  const int64_t begin = row * end.product.columns;
  if (end.is_whole<kCount>()) {
    float* const to = static_cast<float*>(end.out) + begin;
    const __m512 factor = _mm512_set1_ps(end.ending.factor);
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      if (end.ending.descends) sum[v] = _mm512_fnmadd_ps(factor, sum[v], _mm512_loadu_ps(to + v * kLanes));
      _mm512_storeu_ps(to + v * kLanes, sum[v]);
    }
    return;
  }
  if (end.turned) {
    alignas(kAlignment) float sums[kCount * kLanes];
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) _mm512_store_ps(sums + v * kLanes, sum[v]);
    return end_turned_row(end, row, sums, std::min<int64_t>(end.columns, kCount * kLanes));
  }
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) {
    const __mmask16 mask = lanes(end.columns - v * kLanes);
    const int64_t at = begin + v * kLanes;
    __m512 y = sum[v];
    if (end.bias) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, end.bias + v * kLanes));
    // Written so that a NaN stays one.
    if (end.ending.relu) y = _mm512_max_ps(_mm512_setzero_ps(), y);
    if (end.product.narrow_out) {
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(end.out) + at, mask, (__m256i)_mm512_cvtneps_pbh(y));
    } else {
      float* const to = static_cast<float*>(end.out) + at;
      if (end.ending.descends)
        y = _mm512_fnmadd_ps(_mm512_set1_ps(end.ending.factor), y, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, y);
    }
  }
}

}  // namespace moonflow::cpu

#endif
