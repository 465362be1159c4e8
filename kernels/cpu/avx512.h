// The instructions of AVX-512 and its bfloat16, under the names of <immintrin.h>: for what arithmetic on simd.h's
// registers cannot say. A function that uses them is marked [[MOONFLOW_AVX512]], or [[MOONFLOW_BFLOAT16]] for all of
// them, which are defined where they exist, and is called where simd() says so or has_bfloat16().
// MOONFLOW_SIMULATED_AVX512 makes them of plain C++: those that SIMDe 0.7 knows, and here the others.
#pragma once

#include "kernels/cpu/simd.h"

#if defined(MOONFLOW_SIMD_VERSIONS)

#define MOONFLOW_AVX512 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,bmi2,fma,prefer-vector-width=512")
#define MOONFLOW_BFLOAT16 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prefer-vector-width=512")
// The compiler's own header starts from registers that hold nothing yet, and GCC 12 warns of that wherever it is used.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

namespace moonflow::cpu {
inline bool has_bfloat16() { return __builtin_cpu_supports("avx512bf16") != 0; }
}  // namespace moonflow::cpu

#elif defined(MOONFLOW_SIMULATED_AVX512)

#define MOONFLOW_AVX512
#define MOONFLOW_BFLOAT16
#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_INLINE  // or the compiler is at it for minutes
#include <simde/x86/avx512.h>

#include <cstring>
#include <iterator>

namespace moonflow::cpu {

inline bool has_bfloat16() { return true; }

namespace simulated {

// The lanes of a mask are read and written, the others' memory is not touched and reads as 0.
template <class Vector, class T>
Vector load(uint32_t mask, const void* from) {
  T lanes[sizeof(Vector) / sizeof(T)] = {};
  for (size_t i = 0; i < std::size(lanes); ++i)
    if (mask >> i & 1) std::memcpy(&lanes[i], static_cast<const T*>(from) + i, sizeof(T));
  Vector loaded;
  std::memcpy(&loaded, lanes, sizeof loaded);
  return loaded;
}
template <class T, class Vector>
void store(void* to, uint32_t mask, const Vector& stored) {
  T lanes[sizeof(Vector) / sizeof(T)];
  std::memcpy(lanes, &stored, sizeof stored);
  for (size_t i = 0; i < std::size(lanes); ++i)
    if (mask >> i & 1) std::memcpy(static_cast<T*>(to) + i, &lanes[i], sizeof(T));
}

// To the nearest bfloat16, of two as near the even one; NaN stays NaN. The upper lanes of a wider result are 0.
template <class Narrow, class Wide>
Narrow narrowed(const Wide& wide) {
  uint32_t from[sizeof(Wide) / 4];
  uint16_t to[sizeof(Narrow) / 2] = {};
  std::memcpy(from, &wide, sizeof wide);
  for (size_t i = 0; i < std::size(from); ++i) {
    const bool is_nan = (from[i] & 0x7fffffff) > 0x7f800000;
    to[i] = static_cast<uint16_t>((is_nan ? from[i] | 0x400000 : from[i] + 0x7fff + (from[i] >> 16 & 1)) >> 16);
  }
  Narrow narrow;
  std::memcpy(&narrow, to, sizeof narrow);
  return narrow;
}

}  // namespace simulated
}  // namespace moonflow::cpu

using __mmask8 = uint8_t;
using __mmask16 = uint16_t;
using __mmask32 = uint32_t;

inline __m128 _mm_maskz_loadu_ps(__mmask8 mask, const void* from) {
  return moonflow::cpu::simulated::load<__m128, float>(mask, from);
}
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* from) {
  return moonflow::cpu::simulated::load<__m512, float>(mask, from);
}
inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* from) {
  return moonflow::cpu::simulated::load<__m256i, uint16_t>(mask, from);
}
inline __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void* from) {
  return moonflow::cpu::simulated::load<__m512i, uint16_t>(mask, from);
}
inline void _mm_mask_storeu_ps(void* to, __mmask8 mask, __m128 stored) {
  moonflow::cpu::simulated::store<float>(to, mask, stored);
}
inline void _mm512_mask_storeu_ps(void* to, __mmask16 mask, __m512 stored) {
  moonflow::cpu::simulated::store<float>(to, mask, stored);
}
inline void _mm_mask_storeu_epi16(void* to, __mmask8 mask, __m128i stored) {
  moonflow::cpu::simulated::store<uint16_t>(to, mask, stored);
}
inline void _mm256_mask_storeu_epi16(void* to, __mmask16 mask, __m256i stored) {
  moonflow::cpu::simulated::store<uint16_t>(to, mask, stored);
}
inline __m128i _mm_cvtneps_pbh(__m128 wide) { return moonflow::cpu::simulated::narrowed<__m128i>(wide); }
inline __m256i _mm512_cvtneps_pbh(__m512 wide) { return moonflow::cpu::simulated::narrowed<__m256i>(wide); }
inline __m512i _mm512_cvtne2ps_pbh(__m512 upper, __m512 lower) {
  const __m256i halves[] = {_mm512_cvtneps_pbh(lower), _mm512_cvtneps_pbh(upper)};
  __m512i both;
  std::memcpy(&both, halves, sizeof both);
  return both;
}
inline __mmask32 _mm512_cmpeq_epi16_mask(__m512i a, __m512i b) {
  uint16_t left[32], right[32];
  std::memcpy(left, &a, sizeof left);
  std::memcpy(right, &b, sizeof right);
  __mmask32 equal = 0;
  for (size_t i = 0; i < std::size(left); ++i) equal |= static_cast<__mmask32>(left[i] == right[i]) << i;
  return equal;
}
inline __m256 _mm512_extractf32x8_ps(__m512 from, int half) {
  __m256 part;
  std::memcpy(&part, reinterpret_cast<const char*>(&from) + 32 * half, sizeof part);
  return part;
}

#endif

#ifdef MOONFLOW_BFLOAT16
namespace moonflow::cpu {
// The first `count` of 16 lanes: none below 1, and all from 16 on.
inline __mmask16 lanes(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1);
}
}  // namespace moonflow::cpu
#endif
