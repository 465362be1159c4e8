// Products of float32 matrices, tile by tile of the result in registers, for the sizes that layers have: mostly where
// one of the matrices is small enough for the second cache. All are single ones, and row-major. None of these allocates
// or locks, and each element is summed in one order whatever the number of threads.
#pragma once

#include "kernels/matmul.h"

namespace moonflow::cpu {

// A part of a product this small is over before a second thread would be at work, and on a busy machine much sooner.
constexpr int64_t kPartFlops = 500'000;

// A row of a product with the bias of its columns, unless that is nullptr, and 0 instead of what is negative with
// `relu`; `to` may be where the row is.
template <class T>
inline void finish_row(const T* row, int64_t count, const T* bias, bool relu, T* to) {
#pragma GCC ivdep
  for (int64_t j = 0; j < count; ++j) {
    const T y = bias ? row[j] + bias[j] : row[j];
    to[j] = relu && y < 0 ? T(0) : y;
  }
}

// The product a b^T, plus a bias per column unless that is nullptr, and 0 instead of what is negative with `relu`. The
// columns of b^T stand side by side: `panels` holds element (j, k) of b, which is (columns, inner), at
//   (j / kPanelLanes * inner + k) * kPanelLanes + j % kPanelLanes,
// and zeros for columns beyond the last.
constexpr int64_t kPanelLanes = 16;
void multiply_panels(const Product& sizes, const float* a, const float* panels, const float* bias, bool relu,
                     float* out);

// The same with b as it is. The columns of a^T stand side by side instead, so a is the smaller factor, and its rows are
// many. `scratch` is for turned_scratch_bytes(sizes).
int64_t turned_scratch_bytes(const Product& sizes);
void multiply_turned(const Product& sizes, const float* a, const float* b, const float* bias, bool relu, float* out,
                     float* scratch);

// The other ways with b as it is: a b and a^T b. `scratch` is for spread_scratch_bytes(sizes).
int64_t spread_scratch_bytes(const Product& sizes);
void multiply_spread(const Product& sizes, const float* a, const float* b, float* out, float* scratch);
// out -= factor * the product: a step of gradient descent, whose gradient is never stored. The threads divide out as
// those of multiply_panels divide b, so that a thread's part of a layer's weight stays in its cache.
void descend_spread(const Product& sizes, const float* a, const float* b, float factor, float* out, float* scratch);

}  // namespace moonflow::cpu
