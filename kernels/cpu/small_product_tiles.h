// Products of small matrices as in small_product.h, whose factors are rounded to bfloat16 and multiplied in the tile
// registers of AMX; sums are float32. Both factors are packed first, the second one perhaps for several products.
#pragma once

#include "kernels/cpu/small_product.h"

namespace moonflow::cpu {

// Whether there are such registers, and products of these sizes gain by being packed for them.
bool small_tiles_fit(int64_t rows, int64_t columns, int64_t inner);

// A matrix (rows, columns) packed in tiles of 16 rows by 32 columns. Floats of the scratch that it takes; `data` is on a
// cache line.
int64_t packed_left_floats(int64_t rows, int64_t inner);
int64_t packed_right_floats(int64_t inner, int64_t columns);

// The second factor of products, of which one may use the first rows and columns alone. Rows of b are padded as those
// of a SmallProduct are.
struct PackedRight {
  const uint16_t* data;
  int64_t inner;
};
PackedRight pack_right(int64_t inner, int64_t columns, const float* b, int64_t b_row, float* scratch);

// The product's own b is not looked at. Beyond its inner size, up to a multiple of 32, what is packed must be finite.
void multiply(const SmallProduct<float>& product, const PackedRight& right, float* left_scratch);

}  // namespace moonflow::cpu
