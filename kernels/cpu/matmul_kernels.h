// Which kernel of the CPU multiplies two matrices, by their sizes, dtypes and layouts.
#pragma once

#include "kernels/matmul.h"

namespace moonflow::cpu {

// What happens to each element of the product before it is stored.
struct Finish {
  bool bias = false;  // one per column, the third input
  bool relu = false;
};

// Of the first two inputs, narrow ones and those of mixed precision too.
Launch prepare_product(const Product& sizes, Finish finish, KernelCall& call);
// A weight that lasts is laid out once, as the tiles of a product read it or in 8 bits, and kept.
void choose_layouts(LayoutCall& call, const Product& sizes);
// Whether to round the factors is worth its time; `b` is the dtype of the second.
bool narrow_pays(const Product& sizes, DType narrow, DType b);

}  // namespace moonflow::cpu
