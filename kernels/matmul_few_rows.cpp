// Every element of b is used once per row of a, so the speed is that of reading b from cache: four rows of b are read
// at a time, along k, in registers as wide as the processor has. Packing, which pays in a large product, only adds a
// copy.
#include "kernels/matmul_few_rows.h"

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow::cpu {
namespace {

// In pairs, so that the error grows with the logarithm of the lanes.
template <class R>
inline float sum(const typename R::Vector& lanes) {
  float parts[R::kWidth];
  R::at(parts) = lanes;
  for (int half = R::kWidth / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

// out[j] for `count` (one or four) neighbouring rows of b.
template <class R, int64_t count>
inline void dot(int64_t inner, const float* a, const float* b, float* out) {
  using Vector = typename R::Vector;
  constexpr int64_t kWidth = R::kWidth;
  Vector even[count] = {}, odd[count] = {};  // two sums, to hide the latency of one
  int64_t k = 0;
  for (; k + 2 * kWidth <= inner; k += 2 * kWidth) {
    const Vector first = R::at(a + k), second = R::at(a + k + kWidth);
    for (int64_t j = 0; j < count; ++j) even[j] += first * R::at(b + j * inner + k);
    for (int64_t j = 0; j < count; ++j) odd[j] += second * R::at(b + j * inner + k + kWidth);
  }
  for (; k + kWidth <= inner; k += kWidth) {
    const Vector first = R::at(a + k);
    for (int64_t j = 0; j < count; ++j) even[j] += first * R::at(b + j * inner + k);
  }
  for (int64_t j = 0; j < count; ++j) {
    float rest = 0;
    for (int64_t l = k; l < inner; ++l) rest += a[l] * b[j * inner + l];
    const Vector both = even[j] + odd[j];
    out[j] = sum<R>(both) + rest;
  }
}

}  // namespace

void multiply_few_rows(int64_t rows, int64_t columns, int64_t inner, const float* a, const float* b, float* out,
                       bool backwards) {
  const int64_t grain = std::max<int64_t>(4, kWideGrain / std::max<int64_t>(1, inner * rows));
  parallel_for(columns, grain, [=](int64_t first, int64_t last) {
    widest_register([=](auto wide) {
      using R = decltype(wide);
      const int64_t fours = (last - first) / 4;
      for (int64_t step = 0; step < fours; ++step) {
        const int64_t j = first + 4 * (backwards ? fours - 1 - step : step);
        for (int64_t i = 0; i < rows; ++i) dot<R, 4>(inner, a + i * inner, b + j * inner, out + i * columns + j);
      }
      for (int64_t j = first + 4 * fours; j < last; ++j)
        for (int64_t i = 0; i < rows; ++i) dot<R, 1>(inner, a + i * inner, b + j * inner, out + i * columns + j);
    });
  });
}

}  // namespace moonflow::cpu
