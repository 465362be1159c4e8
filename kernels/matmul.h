// The sizes of matrix products, for all devices.
#pragma once

#include "engine/op.h"

namespace moonflow {

// out[i, j] = sum over k of a'[i, k] * b'[k, j], for each of `batch` pairs; a' is a or its transpose.
struct Product {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t inner = 0;
  bool transpose_a = false;
  bool transpose_b = false;
};

// Checked: of two matrices, or of two stacks of them.
Product product(const Shape& a, const Shape& b, bool transpose_a, bool transpose_b);
Product matmul_product(const Attrs& attrs, const Shape& a, const Shape& b);
Product dense_product(const Shape& x, const Shape& weight);
double flops_of(const Product& sizes);

// Whether the attributes of a matmul say these transposes, and nothing of its precision.
bool is_plain_product(const Attrs& matmul, bool transpose_a, bool transpose_b);

}  // namespace moonflow
