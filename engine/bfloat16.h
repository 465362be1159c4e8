// bfloat16: the upper half of a float32, so the same range with 8 bits of precision instead of 24. C++ has no such type
// yet; this one is for storage. Arithmetic on it is arithmetic on float.
#pragma once

#include <cstdint>
#include <cstring>

namespace moonflow {

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  // To the nearest, of two equally near to the one whose last bit is 0. A NaN stays one. Without branches, so that
  // loops over it become vector code.
  explicit BFloat16(float x) {
    uint32_t whole;
    std::memcpy(&whole, &x, sizeof whole);
    const uint32_t rounded = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
    const uint32_t quiet = whole >> 16 | 0x40;  // a NaN's upper half alone could be an infinity
    bits = static_cast<uint16_t>((whole & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
  // Rounded once: through a float that keeps, in its last bit, whether anything was cut off.
  explicit BFloat16(double x) {
    float near = static_cast<float>(x);
    uint32_t whole;
    std::memcpy(&whole, &near, sizeof whole);
    const double back = near;
    if (back != x && back == back) {
      if ((x > 0 ? back > x : back < x)) --whole;  // toward zero
      whole |= 1;
      std::memcpy(&near, &whole, sizeof near);
    }
    *this = BFloat16(near);
  }
  template <class Integer>
  explicit BFloat16(Integer x) : BFloat16(static_cast<double>(x)) {}

  operator float() const {
    const uint32_t whole = uint32_t{bits} << 16;
    float x;
    std::memcpy(&x, &whole, sizeof x);
    return x;
  }
};
static_assert(sizeof(BFloat16) == 2);

}  // namespace moonflow
