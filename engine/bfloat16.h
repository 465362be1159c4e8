// bfloat16: the upper half of a float32, so the same range with 8 bits of precision instead of 24. C++ has no such type
// yet; this one is for storage. Arithmetic on it is arithmetic on float.
#pragma once

#include <cstdint>

namespace moonflow {

// constexpr throughout, which is what lets CUDA kernels use it too.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit constexpr BFloat16(float x) : bits(nearest(x)) {}
  explicit constexpr BFloat16(double x) : bits(nearest(rounded_to_odd(x))) {}
  template <class Integer>
  explicit constexpr BFloat16(Integer x) : BFloat16(static_cast<double>(x)) {}

  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t{bits} << 16); }

 private:
  // Of two equally near the one whose last bit is 0. A NaN stays one. Without branches, so that loops over it become
  // vector code.
  static constexpr uint16_t nearest(float x) {
    const uint32_t whole = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
    const uint32_t quiet = whole >> 16 | 0x40;  // a NaN's upper half alone could be an infinity
    return static_cast<uint16_t>((whole & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
  // A float that keeps, in its last bit, whether anything was cut off, so that rounding it rounds once.
  static constexpr float rounded_to_odd(double x) {
    const float near = static_cast<float>(x);
    const double back = near;
    if (back == x || back != back) return near;
    uint32_t whole = __builtin_bit_cast(uint32_t, near);
    if (x > 0 ? back > x : back < x) --whole;  // toward zero
    return __builtin_bit_cast(float, whole | 1);
  }
};
static_assert(sizeof(BFloat16) == 2);

}  // namespace moonflow
