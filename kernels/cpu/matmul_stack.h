// Products of stacks of small float32 matrices, pair by pair: poses of many bodies, one small system for each sample,
// attention's heads written out. A library that is called for each pair takes longer to begin than to multiply.
#pragma once

#include "kernels/matmul.h"

namespace moonflow::cpu {

// Whether a pair is so small that this is faster than a library's product.
bool is_small_stack(const Product& sizes);

// `scratch` is for stack_scratch_bytes(sizes). An element is summed in the order of k.
int64_t stack_scratch_bytes(const Product& sizes);
void multiply_stack(const Product& sizes, const float* a, const float* b, float* out, float* scratch);

}  // namespace moonflow::cpu
