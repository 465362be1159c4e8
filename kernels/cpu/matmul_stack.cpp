// Matrices of a few numbers are multiplied side by side, as many as a register has lanes, each lane a pair of its own:
// nothing is left over in a row of three or four. Larger ones are multiplied one after the other, in tiles.
#include "kernels/cpu/matmul_stack.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/small_product.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {
namespace {

// ---- side by side --------------------------------------------------------------------------------------------------

// Numbers of a pair and its product, of which each lane has its own: together they fit into the nearest cache.
constexpr int64_t kMostNumbers = 384;
int64_t numbers(const Product& sizes) {
  return sizes.rows * sizes.inner + sizes.inner * sizes.columns + sizes.rows * sizes.columns;
}
bool fits_lanes(const Product& sizes) { return numbers(sizes) <= kMostNumbers; }

// `matrices` of `count` numbers each, at most a lane's each: number k of matrix l goes to to[k * width + l].
template <class R>
void spread_matrices(const float* from, int64_t matrices, int64_t count, float* to) {
  const int64_t whole = matrices == R::kWidth ? count / R::kWidth * R::kWidth : 0;
  for (int64_t k = 0; k < whole; k += R::kWidth)
    copy_square<R>(from + k, count, to + k * R::kWidth, R::kWidth, [](const auto&) {});
  for (int64_t k = whole; k < count; ++k)
    for (int64_t l = 0; l < R::kWidth; ++l) to[k * R::kWidth + l] = l < matrices ? from[l * count + k] : 0;
}

// And back.
template <class R>
void gather_matrices(const float* from, int64_t matrices, int64_t count, float* to) {
  const int64_t whole = matrices == R::kWidth ? count / R::kWidth * R::kWidth : 0;
  for (int64_t k = 0; k < whole; k += R::kWidth)
    copy_square<R>(from + k * R::kWidth, R::kWidth, to + k, count, [](const auto&) {});
  for (int64_t k = whole; k < count; ++k)
    for (int64_t l = 0; l < matrices; ++l) to[l * count + k] = from[k * R::kWidth + l];
}

// kColumns neighbours in a row of the results.
template <class R, int kColumns>
inline void multiply_numbers(int64_t inner, const float* a, int64_t a_step, const float* b, int64_t b_column,
                             int64_t b_step, float* out) {
  typename R::Vector sums[kColumns] = {};
  for (int64_t k = 0; k < inner; ++k, a += a_step, b += b_step) {
    const typename R::Vector left = R::at(a);
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) sums[j] += left * R::at(b + j * b_column);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) R::at(out + j * R::kWidth) = sums[j];
}

template <class R>
void multiply_lanes(const Product& sizes, const float* a, const float* b, float* out) {
  constexpr int64_t kWidth = R::kWidth;
  const int64_t a_row = kWidth * (sizes.transpose_a ? 1 : sizes.inner);
  const int64_t a_step = kWidth * (sizes.transpose_a ? sizes.rows : 1);
  const int64_t b_column = kWidth * (sizes.transpose_b ? sizes.inner : 1);
  const int64_t b_step = kWidth * (sizes.transpose_b ? 1 : sizes.columns);
  for (int64_t i = 0; i < sizes.rows; ++i, a += a_row) {
    int64_t j = 0;
    for (; j + 4 <= sizes.columns; j += 4, out += 4 * kWidth)
      multiply_numbers<R, 4>(sizes.inner, a, a_step, b + j * b_column, b_column, b_step, out);
    for (; j < sizes.columns; ++j, out += kWidth)
      multiply_numbers<R, 1>(sizes.inner, a, a_step, b + j * b_column, b_column, b_step, out);
  }
}

template <class R>
void multiply_side_by_side(const Product& sizes, int64_t first, int64_t last, const float* a, const float* b,
                           float* out, float* scratch) {
  const int64_t of_a = sizes.rows * sizes.inner, of_b = sizes.inner * sizes.columns,
                of_out = sizes.rows * sizes.columns;
  float *const left = scratch, *const right = left + of_a * R::kWidth, *const product = right + of_b * R::kWidth;
  for (int64_t n = first; n < last; n += R::kWidth) {
    const int64_t matrices = std::min<int64_t>(R::kWidth, last - n);
    spread_matrices<R>(a + n * of_a, matrices, of_a, left);
    spread_matrices<R>(b + n * of_b, matrices, of_b, right);
    stand_alone(R(), [&] { multiply_lanes<R>(sizes, left, right, product); });
    gather_matrices<R>(product, matrices, of_out, out + n * of_out);
  }
}

// ---- one after the other -------------------------------------------------------------------------------------------
// Tiles read and write whole registers of b and of the result. Where those as they lie do not end with one, or b is a
// transpose, they are copied, which is little beside the product unless that has few rows, or few columns.

bool reads_in_place(const Product& sizes) { return !sizes.transpose_b && sizes.columns % kRowMultiple == 0; }
bool writes_in_place(const Product& sizes) { return sizes.columns % kRowMultiple == 0; }

// The transpose of (columns, inner), with rows `step` apart.
template <class R>
void turn(const float* b, int64_t columns, int64_t inner, float* to, int64_t step) {
  const int64_t whole_columns = columns / R::kWidth * R::kWidth, whole_inner = inner / R::kWidth * R::kWidth;
  for (int64_t j = 0; j < whole_columns; j += R::kWidth) {
    for (int64_t k = 0; k < whole_inner; k += R::kWidth)
      copy_square<R>(b + j * inner + k, inner, to + k * step + j, step, [](const auto&) {});
    for (int64_t k = whole_inner; k < inner; ++k)
      for (int64_t l = j; l < j + R::kWidth; ++l) to[k * step + l] = b[l * inner + k];
  }
  for (int64_t k = 0; k < inner; ++k) {
    for (int64_t j = whole_columns; j < columns; ++j) to[k * step + j] = b[j * inner + k];
    std::fill(to + k * step + columns, to + (k + 1) * step, 0.0f);
  }
}

void copy_rows(const float* from, int64_t rows, int64_t width, int64_t from_step, float* to, int64_t to_step) {
  for (int64_t i = 0; i < rows; ++i, from += from_step, to += to_step) {
    std::copy(from, from + width, to);
    if (to_step > width) std::fill(to + width, to + to_step, 0.0f);
  }
}

template <class R>
void multiply_in_turn(const Product& sizes, int64_t first, int64_t last, const float* a, const float* b, float* out,
                      float* scratch) {
  const int64_t step = padded_row(sizes.columns), of_b = sizes.inner * sizes.columns;
  const int64_t of_out = sizes.rows * sizes.columns;
  float* const padded = scratch + (reads_in_place(sizes) ? 0 : sizes.inner * step);
  const int64_t a_row = sizes.transpose_a ? 1 : sizes.inner, a_column = sizes.transpose_a ? sizes.rows : 1;
  for (int64_t n = first; n < last; ++n) {
    const float* right = b + n * of_b;
    if (sizes.transpose_b)
      turn<R>(right, sizes.columns, sizes.inner, scratch, step);
    else if (!reads_in_place(sizes))
      copy_rows(right, sizes.inner, sizes.columns, sizes.columns, scratch, step);
    float* const to = writes_in_place(sizes) ? out + n * of_out : padded;
    multiply(SmallProduct<float>{sizes.rows,
                                 sizes.columns,
                                 sizes.inner,
                                 {a + n * sizes.rows * sizes.inner, a_row, a_column},
                                 reads_in_place(sizes) ? right : scratch,
                                 step,
                                 to,
                                 step});
    if (!writes_in_place(sizes)) copy_rows(padded, sizes.rows, sizes.columns, step, out + n * of_out, sizes.columns);
  }
}

// Of one thread.
int64_t scratch_floats(const Product& sizes) {
  if (fits_lanes(sizes)) return numbers(sizes) * Register<16>::kWidth;
  return (sizes.inner + sizes.rows) * padded_row(sizes.columns);
}

}  // namespace

bool is_small_stack(const Product& sizes) {
  constexpr int64_t kMostTerms = 150'000, kMostOfOne = 60'000, kLeastColumns = 8, kRowsWorthTurning = 4;
  const int64_t terms = sizes.rows * sizes.columns * sizes.inner;
  if (terms > (sizes.batch > 1 ? kMostTerms : kMostOfOne)) return false;
  if (fits_lanes(sizes)) return true;
  return sizes.columns >= kLeastColumns && (!sizes.transpose_b || sizes.rows >= kRowsWorthTurning);
}

int64_t stack_scratch_bytes(const Product& sizes) {
  return threads() * scratch_floats(sizes) * static_cast<int64_t>(sizeof(float));
}

void multiply_stack(const Product& sizes, const float* a, const float* b, float* out, float* scratch) {
  const int64_t work = std::max<int64_t>(1, numbers(sizes) + sizes.rows * sizes.columns * sizes.inner / 8);
  const int64_t parts = std::clamp<int64_t>(sizes.batch * work / kGrain, 1, std::min<int64_t>(threads(), sizes.batch));
  parallel_for(parts, 1, [&](int64_t part, int64_t) {
    const int64_t first = sizes.batch * part / parts, last = sizes.batch * (part + 1) / parts;
    float* const own = scratch + part * scratch_floats(sizes);
    widest_register([&](auto wide) {
      using R = decltype(wide);
      if (fits_lanes(sizes))
        multiply_side_by_side<R>(sizes, first, last, a, b, out, own);
      else
        multiply_in_turn<R>(sizes, first, last, a, b, out, own);
    });
  });
}

}  // namespace moonflow::cpu
