// Every element of b is used once per row of a, so the speed is that of reading b from cache: four rows of b are read
// at a time, in registers as wide as the processor has. Packing, which pays in a large product, only adds a copy.
#include "kernels/cpu/matmul_few_rows.h"

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/dots.h"

namespace moonflow::cpu {
namespace {

// Long sums are taken piece by piece: a single one grows so large beside its addends that it takes up ever less of
// them.
constexpr int64_t kPiece = 4096;

// out[j] for `count` (one or four) neighbouring rows of b.
template <class R, int count>
inline void dot(int64_t inner, const typename R::Element* a, const typename R::Element* b, typename R::Element* out) {
  using T = typename R::Element;
  if (inner <= kPiece) return dots<R, 1, count, 2>(inner, a, inner, b, inner, out);
  double sums[count] = {};
  for (int64_t k = 0; k < inner; k += kPiece) {
    T piece[count];
    dots<R, 1, count, 2>(std::min(inner - k, kPiece), a + k, inner, b + k, inner, piece);
    for (int j = 0; j < count; ++j) sums[j] += piece[j];
  }
  for (int j = 0; j < count; ++j) out[j] = static_cast<T>(sums[j]);
}

// For each of kRows rows of sums, sums[j] += sum of kTerms neighbouring rows of b, each times its number of a.
template <int kRows, int kTerms, class T>
inline void add_terms(int64_t width, const T* a, int64_t a_row, int64_t a_step, const T* b, int64_t columns, T* sums) {
  T factors[kRows][kTerms];
  for (int i = 0; i < kRows; ++i)
    for (int k = 0; k < kTerms; ++k) factors[i][k] = a[i * a_row + k * a_step];
#pragma GCC ivdep
  for (int64_t j = 0; j < width; ++j) {
    T right[kTerms];
    for (int k = 0; k < kTerms; ++k) right[k] = b[k * columns + j];
    for (int i = 0; i < kRows; ++i) {
      T sum = factors[i][0] * right[0];
      for (int k = 1; k < kTerms; ++k) sum += factors[i][k] * right[k];
      sums[i * columns + j] += sum;
    }
  }
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

template <class T>
void multiply_rows_across(const Product& sizes, const T* a, const T* b, T* out) {
  constexpr int64_t kTogether = 4096, kLeastColumns = 64;  // sums, which lie in a near cache while rows of b go by
  const int64_t rows = sizes.rows, columns = sizes.columns, inner = sizes.inner;
  const int64_t a_row = sizes.transpose_a ? 1 : inner, a_step = sizes.transpose_a ? rows : 1;
  const int64_t grain = std::max(kLeastColumns, kWideGrain / std::max<int64_t>(1, inner * rows));
  const bool is_long = inner > kPiece;
  parallel_for(columns, grain, [=](int64_t first, int64_t last) {
    widest([=] {
      with_count<kRowsAcross>(rows, [=](auto count) {
        constexpr int kRows = decltype(count)::value;
        const auto each_row = [=](int64_t begin, int64_t width, const auto& body) {
          for (int i = 0; i < kRows; ++i) body(i * width, out + i * columns + begin);
        };
        double totals[kTogether];
        for (int64_t begin = first; begin < last; begin += kTogether / kRows) {
          const int64_t width = std::min(kTogether / kRows, last - begin);
          std::fill_n(totals, is_long ? kRows * width : 0, 0.0);
          for (int64_t piece = 0; piece < inner; piece += kPiece) {
            const int64_t end = std::min(inner, piece + kPiece);
            each_row(begin, width, [=](int64_t, T* sums) { std::fill_n(sums, width, T(0)); });
            const auto add = [=](auto terms, int64_t k) {
              add_terms<kRows, decltype(terms)::value>(width, a + k * a_step, a_row, a_step, b + k * columns + begin,
                                                       columns, out + begin);
            };
            constexpr int kTerms = kRows == kRowsAcross ? 4 : 8;  // whose factors stay in registers
            int64_t k = piece;
            for (; k + kTerms <= end; k += kTerms) add(std::integral_constant<int, kTerms>(), k);
            for (; k < end; ++k) add(std::integral_constant<int, 1>(), k);
            each_row(begin, width, [&](int64_t at, const T* sums) {
              for (int64_t j = 0; is_long && j < width; ++j) totals[at + j] += static_cast<double>(sums[j]);
            });
          }
          each_row(begin, width, [&](int64_t at, T* sums) {
            for (int64_t j = 0; is_long && j < width; ++j) sums[j] = static_cast<T>(totals[at + j]);
          });
        }
      });
    });
  });
}

template void multiply_few_rows(int64_t, int64_t, int64_t, const float*, const float*, float*, bool);
template void multiply_few_rows(int64_t, int64_t, int64_t, const double*, const double*, double*, bool);
template void multiply_rows_across(const Product&, const float*, const float*, float*);
template void multiply_rows_across(const Product&, const double*, const double*, double*);

}  // namespace moonflow::cpu
