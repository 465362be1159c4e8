// Where a product was turned over because its second factor is the one with the zeros: its rows end as columns of out.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/square.h"

namespace moonflow::cpu {

// One register of sums, of which `count` are there, ends beside each other in out.
template <class R, class Ending>
void end_some(typename R::Vector sums, int64_t count, float* out, const Ending& ending) {
  float some[R::kWidth] = {};
  float* const to = count == R::kWidth ? out : some;
  if (to == some) std::copy_n(out, count, some);
  if (Ending::kBeginsFromThere) sums += R::at(to);
  ending.template end<R>(sums, to);
  if (to == some) std::copy_n(some, count, out);
}

// Sums of `rows` rows, `row` apart, in `columns` columns, end in out, whose rows lie `out_row` apart. Both are read to
// the end of a register.
template <class R, class Ending>
void end_as_columns(const float* sums, int64_t row, int64_t rows, int64_t columns, float* out, int64_t out_row,
                    const Ending& ending) {
  for (int64_t j = 0; j < columns; j += R::kWidth) {
    const int64_t out_rows = std::min<int64_t>(columns - j, R::kWidth);
    for (int64_t i = 0; i < rows; i += R::kWidth) {
      typename R::Vector square[R::kWidth];
#pragma GCC unroll 16
      for (int k = 0; k < R::kWidth; ++k) square[k] = R::at(sums + (i + k) * row + j);
      transpose<R>(square);
      const int64_t count = std::min<int64_t>(rows - i, R::kWidth);
#pragma GCC unroll 16
      for (int k = 0; k < R::kWidth; ++k)
        if (k < out_rows) end_some<R>(square[k], count, out + (j + k) * out_row + i, ending);
    }
  }
}

}  // namespace moonflow::cpu
