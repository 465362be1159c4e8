// Products of matrices of any size, in float32 and float64. A factor need not be stored as a matrix: it may be what the
// windows of a convolution see.
#pragma once

#include <cstdint>

#include "kernels/matmul.h"

namespace moonflow::cpu {

// Indices along one side of a factor, a nest of four counts from the slowest to the fastest: (outer, y, x, inner). Each
// moves its element in memory, and y and x in an image besides.
struct Walk {
  static constexpr int64_t kEndless = int64_t{1} << 62;  // of inners that are all there is
  int64_t ys = 1, xs = 1, inners = 1;
  int64_t outer_step = 0, inner_step = 0;  // in elements
  int64_t y = 0, y_step = 0, x = 0, x_step = 0;
};

// A matrix of (lanes, terms): a product sums over terms. An element's place is the sum of what its lane and its term
// say. In an image it is (y / y_apart, x / x_apart) of what the two add up to; where that is no whole number, or lies
// outside of the image, the element is zero.
template <class T>
struct Factor {
  const T* data;
  Walk lanes, terms;
  int64_t height = 1, width = 1, row = 0, column = 0;
  int64_t y_apart = 1, x_apart = 1;
  bool runs_along_lanes = true;  // where neighbours lie close in memory; else along terms
  int64_t group = 0;             // from one group's elements to those of the next

  bool is_matrix() const { return lanes.inners == Walk::kEndless && terms.inners == Walk::kEndless; }
};

template <class T>
Factor<T> matrix_factor(const T* data, int64_t lane_step, int64_t term_step, int64_t group = 0);

// Element (i, j) of a group lies at i * row + j / run * apart + j % run. Where it is a matrix, all of whose columns are
// a run, there is added to it the bias of its column, unless there is none, and with `relu` 0 takes the place of what
// is negative.
template <class T>
struct PackedResult {
  T* data;
  int64_t row;
  int64_t run, apart;
  int64_t group = 0;
  const T* bias = nullptr;
  bool relu = false;
};

struct PackedSizes {
  int64_t groups = 1;  // of independent products
  int64_t rows = 0, columns = 0, inner = 0;
};

// result = a b^T for each group, with lanes of a as rows and lanes of b as columns. Neither allocates nor locks. Each
// element is summed in one order whatever the number of threads. `scratch` is for packed_scratch_bytes.
template <class T>
int64_t packed_scratch_bytes(const PackedSizes& sizes);
template <class T>
void multiply_packed(const PackedSizes& sizes, const Factor<T>& a, const Factor<T>& b, const PackedResult<T>& result,
                     void* scratch);
// The same with result -= factor * a b^T.
template <class T>
void descend_packed(const PackedSizes& sizes, const Factor<T>& a, const Factor<T>& b, T factor,
                    const PackedResult<T>& result, void* scratch);

// The product of row-major matrices, or of stacks of them.
PackedSizes packed_sizes(const Product& product);
template <class T>
Factor<T> left_factor(const Product& product, const T* a);
template <class T>
Factor<T> right_factor(const Product& product, const T* b);
template <class T>
PackedResult<T> packed_result(const Product& product, T* out);

}  // namespace moonflow::cpu
