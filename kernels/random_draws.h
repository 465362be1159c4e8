// What the random ops draw for one element, in which every device agrees: see kernels/philox.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "engine/narrow.h"
#include "engine/op.h"
#include "kernels/philox.h"

namespace moonflow::draws {

// The attribute "rate" of dropout, and of what does part of its work: the part that is dropped.
inline double checked_rate(const Attrs& attrs) {
  const double rate = attrs.number("rate");
  require(rate >= 0 && rate < 1, ErrorCode::InvalidArgument, "rate must be in [0, 1), got ", rate);
  return rate;
}

// A dropped element's number is below this. The mask does not depend on the dtype.
inline uint32_t threshold_of(double rate) { return static_cast<uint32_t>(rate * 0x1p32); }

// ---- draws of T ----------------------------------------------------------------------------------------------
// Most take half of a block: both(block, first, second) gives the elements 2 i and 2 i + 1 of block i.

template <class T>
struct Uniform {
  double low, high;
  T most;  // the largest value that may come

  // Of numbers that are T here and stored as `dtype`.
  Uniform(double low, double high, DType dtype) : low(low), high(high), most(most_of(low, high, dtype)) {}
  MOONFLOW_HOST_DEVICE void both(const philox::Block& block, T& first, T& second) const {
    first = of(philox::bits_of(block, 0));
    second = of(philox::bits_of(block, 1));
  }
  MOONFLOW_HOST_DEVICE T of(uint64_t bits) const {
    const double u = std::is_same_v<T, float> ? double{philox::uniform24(bits)} : philox::uniform53(bits);
    // Rounding may carry a number just below `high` up to it; it is kept below. low * (1 - u) cannot overflow.
    const T value = static_cast<T>((Rounded{low} * Rounded{1 - u} + Rounded{high} * Rounded{u}).value);
    return value < most ? value : most;
  }

 private:
  // The number of `dtype` before `high`, or `high` where `low` is as near to it as that.
  static T most_of(double low, double high, DType dtype) {
    if (dtype == DType::BFloat16) return before<BFloat16>(low, high);
    if (dtype == DType::Float16) return before<Float16>(low, high);
    return std::nextafter(static_cast<T>(high), static_cast<T>(low));
  }
  template <class Narrow>
  static T before(double low, double high) {
    Narrow number(high);
    if (Narrow(low) < number)
      number.bits = static_cast<uint16_t>(number > 0 ? number.bits - 1 : number < 0 ? number.bits + 1 : 0x8001);
    return number;
  }
};

template <class T>
struct Normal {
  double mean, stddev;
  MOONFLOW_HOST_DEVICE void both(const philox::Block& block, T& first, T& second) const {
    const philox::NormalPair pair = philox::normal_pair(block);
    first = of(pair.first);
    second = of(pair.second);
  }
  MOONFLOW_HOST_DEVICE T of(double standard) const {
    return static_cast<T>((Rounded{mean} + Rounded{stddev} * Rounded{standard}).value);
  }
};

template <class T>
struct Integer {
  int64_t low;
  uint64_t width;  // of [low, high), which always fits 64 bits without a sign
  MOONFLOW_HOST_DEVICE void both(const philox::Block& block, T& first, T& second) const {
    first = of(philox::bits_of(block, 0));
    second = of(philox::bits_of(block, 1));
  }
  MOONFLOW_HOST_DEVICE T of(uint64_t bits) const {
    return static_cast<T>(static_cast<int64_t>(static_cast<uint64_t>(low) + philox::below(bits, width)));
  }
};

// Takes as many blocks as it needs.
template <class T>
struct TruncatedNormal {
  Normal<T> normal;
  MOONFLOW_HOST_DEVICE T operator()(const philox::Sequence& sequence, uint64_t i) const {
    return normal.of(philox::truncated_normal(sequence, i));
  }
};

}  // namespace moonflow::draws
