// What the ways to multiply in bfloat16 share: a panel of columns of the second factor, packed in pairs, and what
// becomes of the sums over it.
#pragma once

#include <algorithm>

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/matmul_bfloat16.h"
#include "kernels/cpu/sparse_terms.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

using Pair = Term;  // two bfloat16, neighbours along the inner axis; the first in the lower half

constexpr int64_t kLanes = 16;
constexpr int64_t kVectors = 4;      // of a panel that is multiplied in tiles
constexpr int64_t kMostVectors = 8;  // of a panel

inline int64_t vectors_of(int64_t columns) { return (columns + kLanes - 1) / kLanes; }
inline int64_t pairs(const NarrowProduct& product) { return (product.inner + 1) / 2; }

inline __mmask16 lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}

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
