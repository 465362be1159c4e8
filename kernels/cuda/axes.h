// Where the elements of a strided value are: axes as plain data, which a kernel can take along.
#pragma once

#include <cstdint>

#include "kernels/cuda/block.h"
#include "kernels/elementary.h"

namespace moonflow::cuda {

// Division of numbers that are not negative by one that is known beforehand: a multiplication and a shift, where a card
// takes a hundred instructions for a quotient (Granlund, Montgomery, Division by Invariant Integers using
// Multiplication, PLDI 1994).
class LongDivisor {
 public:
  LongDivisor() = default;
  explicit LongDivisor(int64_t by) : by_(by > 1 ? by : 1) {
    while ((uint64_t{1} << shift_) < static_cast<uint64_t>(by_)) ++shift_;
    const uint64_t above = (uint64_t{1} << shift_) - static_cast<uint64_t>(by_);
    multiplier_ = static_cast<uint64_t>((static_cast<unsigned __int128>(above) << 64) / by_) + 1;
  }

  MOONFLOW_BOTH int64_t quotient(int64_t x) const {
    const uint64_t n = static_cast<uint64_t>(x);
    const uint64_t high = static_cast<uint64_t>((static_cast<unsigned __int128>(n) * multiplier_) >> 64);
    return static_cast<int64_t>((high + n) >> shift_);
  }
  // x / by and what is left, in `rest`.
  MOONFLOW_BOTH int64_t quotient(int64_t x, int64_t& rest) const {
    const int64_t whole = quotient(x);
    rest = x - whole * by_;
    return whole;
  }

 private:
  int64_t by_ = 1;
  uint64_t multiplier_ = 1;
  int shift_ = 0;
};

// At most kMost axes, outermost first; element `index` of their product lies at offset_of(index).
template <int kMost>
struct Axes {
  int rank = 0;
  LongDivisor sizes[kMost];
  int64_t steps[kMost] = {};

  void append(int64_t size, int64_t step) {
    sizes[rank] = LongDivisor(size);
    steps[rank++] = step;
  }
  MOONFLOW_BOTH int64_t offset_of(int64_t index) const {
    int64_t offset = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      int64_t place;
      index = sizes[axis].quotient(index, place);
      offset += place * steps[axis];
    }
    return rank > 0 ? offset + index * steps[0] : offset;
  }
};

}  // namespace moonflow::cuda
