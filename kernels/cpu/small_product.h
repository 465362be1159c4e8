// Products of small matrices that lie in cache: what attention does for each head. Nothing is packed, allocated or
// shared between threads.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace moonflow::cpu {

// Rows of b and of the result begin at multiples of their step and are computed up to a multiple of this, so that only
// whole registers are read and written. What lies behind the last column must be there, and finite in b.
constexpr int64_t kRowMultiple = 16;
inline int64_t padded_row(int64_t width) { return checked_sum(width, kRowMultiple - 1) / kRowMultiple * kRowMultiple; }
// How far apart rows of that width are best laid: an odd number of cache lines, since rows that are a power of two
// apart share a few sets of the nearest cache, and a product that goes down a column drives them out of it.
inline int64_t row_step(int64_t width) { return padded_row(width) | kRowMultiple; }

// A matrix whose elements lie `row` and `column` apart: also the transpose of one that is stored.
template <class T>
struct Strided {
  const T* data;
  int64_t row, column;
};

// c[i, j] = sum over k of a[i, k] * b[k, j], or that added to c; steps count elements. An element is summed in the
// order of k, whatever the sizes.
template <class T>
struct SmallProduct {
  int64_t rows, columns, inner;
  Strided<T> a;
  const T* b;
  int64_t b_row;
  T* c;
  int64_t c_row;
  bool add = false;
};
void multiply(const SmallProduct<float>& product);
void multiply(const SmallProduct<double>& product);

}  // namespace moonflow::cpu
