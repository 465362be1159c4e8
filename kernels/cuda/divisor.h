// Division by a number that is known beforehand and that many threads divide by.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/elementary.h"

namespace moonflow::cuda {

// Of a T that is not negative and below 2^31 or 2^63: a multiplication and a shift, where a card takes a hundred
// instructions for a quotient (Granlund, Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994).
template <class T>
struct DivisorOf {
  using Bits = std::make_unsigned_t<T>;
  using Twice = std::conditional_t<sizeof(T) == 4, uint64_t, unsigned __int128>;
  static constexpr int kBits = 8 * sizeof(T);

  T value = 1;
  Bits factor = 1;
  int shift = 0;

  DivisorOf() = default;
  explicit DivisorOf(T divisor) : value(divisor > 1 ? divisor : 1) {
    while ((Twice{1} << shift) < static_cast<Twice>(value)) ++shift;
    factor =
        static_cast<Bits>((((Twice{1} << shift) - static_cast<Twice>(value)) << kBits) / static_cast<Twice>(value) + 1);
  }

  MOONFLOW_BOTH T quotient(T x) const {
    const Bits n = static_cast<Bits>(x), high = static_cast<Bits>(Twice{n} * factor >> kBits);
    return static_cast<T>((high + n) >> shift);
  }
  // x / value and what is left, in `rest`.
  MOONFLOW_BOTH T quotient(T x, T& rest) const {
    const T whole = quotient(x);
    rest = x - whole * value;
    return whole;
  }
};

using Divisor = DivisorOf<uint32_t>;  // of what is below 2^31
using LongDivisor = DivisorOf<int64_t>;

}  // namespace moonflow::cuda
