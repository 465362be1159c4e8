// Every element of b is used once per row of a, so the speed is that of reading b from cache: four rows of b are read
// at a time, along k, in registers as wide as the processor has. Packing, which pays in a large product, only adds a
// copy.
#include "kernels/cpu/matmul_few_rows.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"

namespace moonflow::cpu {
namespace {

// out[j] for `count` (one or four) neighbouring rows of b. Long rows piece by piece: a single sum grows so large beside
// its addends that it takes up ever less of them.
template <class R, int count>
inline void dot(int64_t inner, const typename R::Element* a, const typename R::Element* b, typename R::Element* out) {
  using T = typename R::Element;
  constexpr int64_t kPiece = 4096;
  if (inner <= kPiece) return dots<R, 1, count, 2>(inner, a, inner, b, inner, out);
  double sums[count] = {};
  for (int64_t k = 0; k < inner; k += kPiece) {
    T piece[count];
    dots<R, 1, count, 2>(std::min(inner - k, kPiece), a + k, inner, b + k, inner, piece);
    for (int j = 0; j < count; ++j) sums[j] += piece[j];
  }
  for (int j = 0; j < count; ++j) out[j] = static_cast<T>(sums[j]);
}

// kRows rows of the result.
template <class R, int kRows>
inline void multiply_rows(int64_t columns, int64_t inner, const float* a, const float* b, float* out) {
  constexpr int kColumns = 5;
  float tile[kRows * kColumns];
  const auto store = [&](int64_t j, int count) {
    for (int i = 0; i < kRows; ++i)
      for (int c = 0; c < count; ++c) out[i * columns + j + c] = tile[i * count + c];
  };
  int64_t j = 0;
  for (; j + kColumns <= columns; j += kColumns) {
    dots<R, kRows, kColumns, 1>(inner, a, inner, b + j * inner, inner, tile);
    store(j, kColumns);
  }
  for (; j < columns; ++j) {
    dots<R, kRows, 1, 1>(inner, a, inner, b + j * inner, inner, tile);
    store(j, 1);
  }
}

}  // namespace

void multiply_few_columns(int64_t rows, int64_t columns, int64_t inner, const float* a, const float* b, float* out) {
  constexpr int64_t kGrainProducts = 1 << 18;
  const int64_t grain = kGrainProducts / std::max<int64_t>(1, columns * inner) + 1;
  parallel_for(rows, grain, [=](int64_t first, int64_t last) {
    widest_register([=](auto wide) {
      using R = decltype(wide);
      constexpr int kRows = R::kCount == 32 ? 4 : 2;
      int64_t i = first;
      for (; i + kRows <= last; i += kRows)
        multiply_rows<R, kRows>(columns, inner, a + i * inner, b, out + i * columns);
      for (; i < last; ++i) multiply_rows<R, 1>(columns, inner, a + i * inner, b, out + i * columns);
    });
  });
}

template <class T>
void multiply_few_rows(int64_t rows, int64_t columns, int64_t inner, const T* a, const T* b, T* out, bool backwards) {
  const int64_t grain = std::max<int64_t>(4, kWideGrain / std::max<int64_t>(1, inner * rows));
  parallel_for(columns, grain, [=](int64_t first, int64_t last) {
    widest_register([=](auto wide) {
      using R = Holding<T, decltype(wide)>;
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

template void multiply_few_rows(int64_t, int64_t, int64_t, const float*, const float*, float*, bool);
template void multiply_few_rows(int64_t, int64_t, int64_t, const double*, const double*, double*, bool);

}  // namespace moonflow::cpu
