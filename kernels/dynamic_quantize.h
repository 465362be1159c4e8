// What dynamic_quantize makes of floats, on every device.
#pragma once

#include <cstdint>

#include "kernels/elementary_parts.h"

namespace moonflow {

// Bytes for the numbers from `least` to `most`, which have 0 in between.
struct ByteRange {
  // A number of at most 22 bits, this added to it and taken away again, is the nearest whole one, halves to the even
  // one.
  static constexpr float kOnesAreLast = 12582912;  // 1.5 * 2^23

  float scale;  // what a byte is worth
  float zero;   // the byte that stands for 0

  MOONFLOW_BOTH static ByteRange of(float least, float most) {
    const float scale = most == least ? 1.0f : (most - least) / 255.0f;
    return {scale, rounded(within(-least / scale, 0, 255))};
  }
  MOONFLOW_BOTH uint8_t operator()(float x) const {
    return static_cast<uint8_t>(static_cast<int32_t>(rounded(within(x / scale, -zero, 255 - zero)) + zero));
  }

 private:
  // A NaN becomes the lower end.
  MOONFLOW_BOTH static float within(float x, float lowest, float highest) {
    x = x > lowest ? x : lowest;
    return x < highest ? x : highest;
  }
  MOONFLOW_BOTH static float rounded(float x) { return (x + kOnesAreLast) - kOnesAreLast; }
};

class Catalog;
void add_dynamic_quantize(Catalog& catalog);

}  // namespace moonflow
