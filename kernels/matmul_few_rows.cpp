// Every element of b is used once per row of a, so the speed is that of reading b from cache: four rows of b are read
// at a time, along k, in registers as wide as the processor has. Packing, which pays in a large product, only adds a
// copy.
#include "kernels/matmul_few_rows.h"

#include <cstring>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow::cpu {
namespace {

constexpr int64_t kLanes = 16;
using Lanes [[gnu::vector_size(kLanes * sizeof(float)), gnu::may_alias]] = float;

// By reference: how such a type is returned depends on the processor.
inline void load(Lanes& lanes, const float* from) { std::memcpy(&lanes, from, sizeof lanes); }

// sum += a * b[0 .. lanes)
inline void add_product(Lanes& sum, const Lanes& a, const float* b) {
  Lanes lanes;
  load(lanes, b);
  sum += a * lanes;
}

// In pairs, so that the error grows with the logarithm of the lanes.
inline float sum(const Lanes& lanes) {
  float parts[kLanes];
  std::memcpy(parts, &lanes, sizeof lanes);
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  return parts[0];
}

// out[j] for `count` (one to four) neighbouring rows of b.
template <int64_t count>
inline void dot(int64_t inner, const float* a, const float* b, float* out) {
  Lanes even[count] = {}, odd[count] = {};
  int64_t k = 0;
  for (; k + 2 * kLanes <= inner; k += 2 * kLanes) {
    Lanes first, second;
    load(first, a + k);
    load(second, a + k + kLanes);
    for (int64_t j = 0; j < count; ++j) add_product(even[j], first, b + j * inner + k);
    for (int64_t j = 0; j < count; ++j) add_product(odd[j], second, b + j * inner + k + kLanes);
  }
  for (; k + kLanes <= inner; k += kLanes) {
    Lanes first;
    load(first, a + k);
    for (int64_t j = 0; j < count; ++j) add_product(even[j], first, b + j * inner + k);
  }
  for (int64_t j = 0; j < count; ++j) {
    float rest = 0;
    for (int64_t l = k; l < inner; ++l) rest += a[l] * b[j * inner + l];
    even[j] += odd[j];
    out[j] = sum(even[j]) + rest;
  }
}

}  // namespace

void multiply_few_rows(int64_t rows, int64_t columns, int64_t inner, const float* a, const float* b, float* out) {
  const int64_t grain = std::max<int64_t>(4, kWideGrain / std::max<int64_t>(1, inner * rows));
  parallel_for(columns, grain, [=](int64_t first, int64_t last) {
    widest([=] {
      int64_t j = first;
      for (; j + 4 <= last; j += 4)
        for (int64_t i = 0; i < rows; ++i) dot<4>(inner, a + i * inner, b + j * inner, out + i * columns + j);
      for (; j < last; ++j)
        for (int64_t i = 0; i < rows; ++i) dot<1>(inner, a + i * inner, b + j * inner, out + i * columns + j);
    });
  });
}

}  // namespace moonflow::cpu
