// Numbers of two bytes: bfloat16, the upper half of a float32, so the same range with 8 bits of precision instead of
// 24; and float16, the half precision of IEEE 754, with 11 bits between 2^-14 and 65504, and fewer down to 2^-24. C++
// has no such types yet; these are for storage. Arithmetic on them is arithmetic on float.
//
// Both round to the nearest number, of two equally near to the one whose last bit is 0, and a NaN stays one. float16
// gets the very bits that x86's instructions for it (F16C) give. Without branches, so that loops over conversions
// become vector code; constexpr throughout, which is what lets CUDA kernels use them too, but where a card has an
// instruction for a conversion.
#pragma once

#include <cstdint>
#include <type_traits>

namespace moonflow {

// A float that keeps, in its last bit, whether anything of x was cut off, so that rounding it again rounds once.
constexpr float rounded_to_odd(double x) {
  const float near = static_cast<float>(x);
  const double back = near;
  const bool is_exact = (back == x) | (back != back), is_farther = x > 0 ? back > x : back < x;
  const uint32_t whole = __builtin_bit_cast(uint32_t, near);
  const uint32_t odd = (whole - (is_farther ? 1 : 0)) | 1;  // toward zero
  return __builtin_bit_cast(float, is_exact ? whole : odd);
}

// What holds each number of an integer type exactly; of int64, but for its last bits.
template <class Integer>
using Exact = std::conditional_t<(sizeof(Integer) < 4), float, double>;

#ifdef __CUDA_ARCH__
#define MOONFLOW_CONVERSION __host__ __device__  // a constexpr function cannot name an instruction
#else
#define MOONFLOW_CONVERSION constexpr
#endif

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit MOONFLOW_CONVERSION BFloat16(float x) : bits(nearest(x)) {}
  explicit MOONFLOW_CONVERSION BFloat16(double x) : bits(nearest(rounded_to_odd(x))) {}
  template <class Integer>
  explicit MOONFLOW_CONVERSION BFloat16(Integer x) : BFloat16(static_cast<Exact<Integer>>(x)) {}

  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

 private:
  static MOONFLOW_CONVERSION uint16_t nearest(float x) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    uint16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#else
    const uint32_t whole = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
    const uint32_t quiet = whole >> 16 | 0x40;  // a NaN's upper half alone could be an infinity
    return static_cast<uint16_t>((whole & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
#endif
  }
};

struct Float16 {
  uint16_t bits;

  Float16() = default;
  explicit MOONFLOW_CONVERSION Float16(float x) : bits(nearest(x)) {}
  explicit MOONFLOW_CONVERSION Float16(double x) : bits(nearest(rounded_to_odd(x))) {}
  template <class Integer>
  explicit MOONFLOW_CONVERSION Float16(Integer x) : Float16(static_cast<Exact<Integer>>(x)) {}

  MOONFLOW_CONVERSION operator float() const {
#ifdef __CUDA_ARCH__
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
#else
    const uint32_t size = bits & 0x7fff, sign = (bits & uint32_t{0x8000}) << 16;
    // From 0x7c00 on an infinity or a NaN. Each choice is between two numbers, or GCC compiles no loop for registers.
    const uint32_t bias = size < 0x7c00 ? kBias : 2 * kBias;
    const uint32_t normal = ((size << 13) + bias) | (size > 0x7c00 ? kQuiet : 0);
    const uint32_t denormal = bits_of(__builtin_bit_cast(float, kOneHalf + size) - 0.5f);
    const uint32_t whole = size < 0x400 ? denormal : normal;
    return __builtin_bit_cast(float, whole | sign);
#endif
  }

 private:
  static constexpr uint32_t kBias = uint32_t{127 - 15} << 23;  // between the exponents of float32 and float16
  static constexpr uint32_t kQuiet = 0x400000;                 // the bit that tells a NaN that may be computed with
  // 0.5, whose last bit is worth 2^-24, as is that of a denormal float16: adding it rounds there.
  static constexpr uint32_t kOneHalf = 0x3f000000;

  static constexpr uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }

  static MOONFLOW_CONVERSION uint16_t nearest(float x) {
#ifdef __CUDA_ARCH__
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#else
    const uint32_t size = bits_of(x) & 0x7fffffff, sign = bits_of(x) >> 16 & 0x8000;
    // Rounding may carry into the exponent, from the last denormal to the first normal, and to infinity.
    const uint32_t normal = (size - kBias + 0xfff + (size >> 13 & 1)) >> 13;
    const uint32_t denormal = bits_of(__builtin_bit_cast(float, size) + 0.5f) - kOneHalf;
    const uint32_t finite = size < 0x38800000 ? denormal : normal;  // 2^-14
    const uint32_t special = size > 0x7f800000 ? (size | kQuiet) >> 13 & 0x7fff : 0x7c00;
    return static_cast<uint16_t>(sign | (size < 0x47800000 ? finite : special));  // 65536
#endif
  }
};
#undef MOONFLOW_CONVERSION

static_assert(sizeof(BFloat16) == 2 && sizeof(Float16) == 2);

template <class T>
constexpr bool kNarrow = false;
template <>
inline constexpr bool kNarrow<BFloat16> = true;
template <>
inline constexpr bool kNarrow<Float16> = true;

}  // namespace moonflow
