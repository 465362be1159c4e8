// A few rows times a weight that is kept in numbers of 8 bits: a product that waits for its weight reads a quarter of
// what it would in float32. What is multiplied are whole numbers, of 8 bits and of 16, whose sums are exact.
#pragma once

#include "engine/device.h"
#include "kernels/matmul.h"

namespace moonflow::cpu {

// How the second factor is kept, in the order in which a product reads it. The numbers of each column of the product
// times a scale of its own are the weights: w[j, k] = scale[j] * n[j, k], |n| <= 127, rounded to the nearest. Whole
// numbers up to 127 stay what they are. A column in which not all is finite gives NaN.
Layout quantized_layout(const Product& sizes);
bool is_quantized(const Layout& layout);
// From rows.
Launch quantizer(const Layout& layout);

int64_t quantized_scratch_bytes(const Product& sizes);
// out[i, j] = sum over k of a[i, k] * w[j, k], where 256 neighbours of a are rounded to 2^-15 of the largest of them or
// finer: an error of at most that times the sum of |w[j, k]|, and none where all are whole numbers below 2^15. A row of
// a in which not all is finite gives NaN. Neither allocates nor locks. Each element is summed in one order whatever the
// number of threads. With `backwards`, the last columns are read first.
void multiply_quantized(const Product& sizes, const float* a, const void* weight, float* out, void* scratch,
                        bool backwards);

}  // namespace moonflow::cpu
