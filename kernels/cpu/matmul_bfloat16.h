// Matrix products whose factors are rounded to bfloat16 and whose sums are float32, by the instruction that some
// processors have for it (AVX512-BF16). It takes two neighbours along the inner axis at a time, so both matrices are
// read in pairs: of the second, one panel of columns after the other is packed that way, and rounded where it is
// float32, right before it is used. None of these allocates or locks, and each element is summed in one order whatever
// the number of threads.
#pragma once

#include <cstdint>

namespace moonflow::cpu {

// Whether this processor multiplies bfloat16, and may (see MOONFLOW_SIMD).
bool multiplies_bfloat16();

// out[n, i, j] = sum over k of a'[n, i, k] * b'[n, k, j], where a' is a or its transpose, and so for b. All row-major.
struct NarrowProduct {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t inner = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  // Which matrices are stored as bfloat16; the others are float32.
  bool narrow_a = false;
  bool narrow_b = false;
  bool narrow_out = false;
};

// What becomes of a sum before it is stored.
struct NarrowEnding {
  const float* bias = nullptr;  // one per column
  bool relu = false;
  bool descends = false;  // out -= factor * the product, out being float32: a step along a gradient that is not stored
  float factor = 0;

  bool is_plain() const { return !bias && !relu; }
};

// Scratch for as many threads as there are now.
int64_t narrow_scratch_bytes(const NarrowProduct& product);
// Only where multiplies_bfloat16().
void multiply_narrow(const NarrowProduct& product, const void* a, const void* b, const NarrowEnding& ending, void* out,
                     void* scratch);

}  // namespace moonflow::cpu
