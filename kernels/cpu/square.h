// A square of registers turned over: the innermost step of transposing floats, or anything else of 4 bytes, and
// doubles.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

// Integers of the size of R's elements, which name lanes.
template <class R>
using LanesOf = decltype(std::declval<typename R::Vector>() < std::declval<typename R::Vector>());

// The blocks of kStep lanes beside the diagonal of two rows change places: what of the upper row lies to the right goes
// to the lower one's left.
template <class R, int kStep, int... kLane>
void exchange(typename R::Vector& upper, typename R::Vector& lower, std::integer_sequence<int, kLane...>) {
  using Lanes = LanesOf<R>;
  const typename R::Vector above = upper;
  upper = __builtin_shuffle(above, lower, Lanes{((kLane & kStep) ? R::kWidth + kLane - kStep : kLane)...});
  lower = __builtin_shuffle(above, lower, Lanes{((kLane & kStep) ? R::kWidth + kLane : kLane + kStep)...});
}

// Lane j of row i becomes lane i of row j. Squares of twice the size by turns: J. O. Eklundh, "A fast computer method
// for matrix transposing", IEEE Transactions on Computers 1972.
template <class R, int kStep = 1>
void transpose(typename R::Vector (&rows)[R::kWidth]) {
#pragma GCC unroll 16
  for (int i = 0; i < R::kWidth; ++i)
    if ((i & kStep) == 0) exchange<R, kStep>(rows[i], rows[i + kStep], std::make_integer_sequence<int, R::kWidth>());
  if constexpr (2 * kStep < R::kWidth) transpose<R, 2 * kStep>(rows);
}

// Copies a square to its transpose, of whose rows, `from_step` apart, the first `count` are there; the others are zero.
template <class R>
void copy_square(int64_t count, const typename R::Element* from, int64_t from_step, typename R::Element* to,
                 int64_t to_step) {
  typename R::Vector rows[R::kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < R::kWidth; ++i) rows[i] = i < count ? R::at(from + i * from_step) : typename R::Vector{};
  transpose<R>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < R::kWidth; ++i) R::at(to + i * to_step) = rows[i];
}

// The same with all rows, calling change(row) for each register of the transpose.
template <class R, class Change>
void copy_square(const typename R::Element* from, int64_t from_step, typename R::Element* to, int64_t to_step,
                 const Change& change) {
  typename R::Vector rows[R::kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < R::kWidth; ++i) rows[i] = R::at(from + i * from_step);
  transpose<R>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < R::kWidth; ++i) {
    change(rows[i]);
    R::at(to + i * to_step) = rows[i];
  }
}

}  // namespace moonflow::cpu
