// A convolution of bytes, for all devices (conv_sizes.cpp): its attributes and its checked sizes.
#pragma once

#include "kernels/conv.h"

namespace moonflow {

// out[n, f, y, x] = scale[f] * sum over c, i, j of (x[n, c, ...] - zero_point) * filter[f, c, i, j] + bias[f], or the
// nearest byte to that and out_zero_point.
struct QuantizedConv {
  Conv conv;
  int64_t zero_point;  // of x
  bool is_signed;      // whether x is int8, and not uint8
  DType dtype;         // of the result: float32, uint8 or int8
  int64_t out_zero_point;

  constexpr bool gives_bytes() const { return dtype != DType::Float32; }
  // What there is to either side of out_zero_point.
  constexpr int64_t least() const { return (dtype == DType::Int8 ? -128 : 0) - out_zero_point; }
  constexpr int64_t most() const { return least() + 255; }

  // The bytes of x as uint8: with the sign turned over, and the zero point moved along.
  constexpr uint8_t flip() const { return is_signed ? 0x80 : 0; }
  constexpr int64_t unsigned_zero() const { return is_signed ? zero_point + 128 : zero_point; }
};

std::vector<AttrDef> quantized_conv_attrs();
QuantizedConv quantized_conv_of(const Attrs& attrs, const TensorType& x, const Shape& filter);

}  // namespace moonflow
