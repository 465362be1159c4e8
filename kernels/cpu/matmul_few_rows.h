// A few rows times a transposed matrix: what a dense layer does for one sample, or for a handful; and a matrix beside a
// vector.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace moonflow::cpu {

// out[i, j] = sum over k of a[i, k] * b[j, k], all row-major and dense, of float or double. Neither allocates nor
// locks. Each element is summed in one order whatever the number of threads. With `backwards`, the last rows of b are
// read first.
template <class T>
void multiply_few_rows(int64_t rows, int64_t columns, int64_t inner, const T* a, const T* b, T* out, bool backwards);

// The products a b and a^T b with fewer rows still; the rest as above.
constexpr int kRowsAcross = 4;
template <class T>
void multiply_rows_across(const Product& sizes, const T* a, const T* b, T* out);

// The first product for few rows of b, as the last layer of a classifier has them.
void multiply_few_columns(int64_t rows, int64_t columns, int64_t inner, const float* a, const float* b, float* out);

}  // namespace moonflow::cpu
