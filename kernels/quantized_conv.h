// Convolutions and products of bytes, for all devices (conv_sizes.cpp): their attributes and checked sizes.
#pragma once

#include "kernels/conv.h"

namespace moonflow {

// out[n, f, y, x] = scale[f] * sum over c, i, j of (x[n, c, ...] - zero) * (filter[f, c, i, j] - filter_zero[f])
//                   + bias[f],
// or the nearest byte to that and out_zero_point, or the sum alone. A product is one of windows of a single place: each
// row of x is a place of an image of height 1, channels last.
struct QuantizedConv {
  Conv conv;
  int64_t zero_point;  // of x, unless it is an input
  bool is_signed;      // whether x is int8, and not uint8
  DType dtype;         // of the result: float32, uint8 or int8, or int32 of sums
  int64_t out_zero_point;

  constexpr bool gives_sums() const { return dtype == DType::Int32; }
  constexpr bool gives_bytes() const { return dtype == DType::UInt8 || dtype == DType::Int8; }
  // What there is to either side of out_zero_point.
  constexpr int64_t least() const { return (dtype == DType::Int8 ? -128 : 0) - out_zero_point; }
  constexpr int64_t most() const { return least() + 255; }

  // Whether each channel has one filter of its own.
  constexpr bool is_depthwise() const {
    return conv.groups > 1 && conv.channels_per_group() == 1 && conv.filters_per_group() == 1;
  }
  // The bytes of x as uint8: with the sign turned over, and a zero point moved along.
  constexpr uint8_t flip() const { return is_signed ? 0x80 : 0; }
  constexpr int64_t unsigned_zero() const { return is_signed ? zero_point + 128 : zero_point; }
};

// The places of inputs, all from kScale on optional.
struct QuantizedInputs {
  static constexpr int kX = 0, kFilter = 1, kScale = 2, kBias = 3, kZero = 4, kFilterZero = 5;
};

std::vector<AttrDef> quantized_conv_attrs();
std::vector<AttrDef> quantized_dense_attrs();
QuantizedConv quantized_conv_of(const Attrs& attrs, const TensorType& x, const Shape& filter);
QuantizedConv quantized_dense_of(const Attrs& attrs, const TensorType& x, const Shape& weight);

}  // namespace moonflow
