// Pairs of bfloat16, neighbours along what is summed over, as products in bfloat16 read them.
#pragma once

#include "kernels/cpu/avx512.h"

#ifdef MOONFLOW_BFLOAT16

namespace moonflow::cpu {

// 16 pairs, of each the first number from the lower half.
[[MOONFLOW_BFLOAT16]] inline __m512i interleaved(const __m512i& halves) {
  const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                       5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(zip, halves);
}
[[MOONFLOW_BFLOAT16]] inline __m512i in_pairs(const __m512& first, const __m512& second) {
  return interleaved((__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// Rows of 16 pairs become columns.
[[MOONFLOW_BFLOAT16]] inline void transpose_pairs(__m512i (&rows)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
  }
}

}  // namespace moonflow::cpu

#endif
