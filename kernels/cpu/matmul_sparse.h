// Products of float32 matrices of which one is mostly zeros, as relu and dropout leave them, and as pictures of letters
// and counts of words are: what is zero is left out. Whether it is so is seen when the matrices are there, by looking
// at some of both, so each of these may decline and do nothing; then another kernel is to multiply. Which one it is
// depends on values and sizes alone, and each element is summed in one order whatever the number of threads. A zero
// still meets an infinity or a NaN.
#pragma once

#include "kernels/cpu/matmul_tiles.h"

namespace moonflow::cpu {

struct SparseProduct {
  Product sizes;
  bool b_in_panels = false;  // b^T as multiply_panels has it

  // Whether it is large enough to look.
  bool may_pay() const;
  // For as many threads as there are now.
  int64_t scratch_bytes() const;
};

// out = a' b'
bool multiply_sparse(const SparseProduct& product, const float* a, const float* b, float* out, void* scratch);
// out -= factor * a' b'
bool descend_sparse(const SparseProduct& product, const float* a, const float* b, float factor, float* out,
                    void* scratch);

}  // namespace moonflow::cpu
