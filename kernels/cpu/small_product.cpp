// A tile of the result stays in registers while k runs: six rows by as many registers as there are. Then each step of k
// has six broadcasts and up to four loads for up to 24 multiply-adds, which is more than the loads can take.
#include "kernels/cpu/small_product.h"

#include <algorithm>

#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

constexpr int kTileRows = 6;

template <class R, int kRows, int kRegisters, class T>
inline void multiply_tile(const SmallProduct<T>& p, int64_t row, int64_t column) {
  using Vector = typename R::Vector;
  Vector sums[kRows][kRegisters];
  T* c = p.c + row * p.c_row + column;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kRegisters; ++j) sums[i][j] = p.add ? Vector(R::at(c + i * p.c_row + j * R::kWidth)) : Vector{};
  }
  const T* a = p.a.data + row * p.a.row;
  const T* b = p.b + column;
  for (int64_t k = 0; k < p.inner; ++k, a += p.a.column, b += p.b_row) {
    Vector factors[kRegisters];
#pragma GCC unroll 8
    for (int j = 0; j < kRegisters; ++j) factors[j] = R::at(b + j * R::kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const T left = a[i * p.a.row];
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) sums[i][j] += left * factors[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kRegisters; ++j) R::at(c + i * p.c_row + j * R::kWidth) = sums[i][j];
  }
}

// All rows under one strip of columns, in tiles whose heights differ by one at most.
template <class R, int kRegisters, class T>
inline void multiply_strip(const SmallProduct<T>& p, int64_t column) {
  const int64_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = p.rows * tile / tiles, height = p.rows * (tile + 1) / tiles - row;
    switch (height) {
      case 6:
        multiply_tile<R, 6, kRegisters>(p, row, column);
        break;
      case 5:
        multiply_tile<R, 5, kRegisters>(p, row, column);
        break;
      case 4:
        multiply_tile<R, 4, kRegisters>(p, row, column);
        break;
      case 3:
        multiply_tile<R, 3, kRegisters>(p, row, column);
        break;
      case 2:
        multiply_tile<R, 2, kRegisters>(p, row, column);
        break;
      default:
        multiply_tile<R, 1, kRegisters>(p, row, column);
    }
  }
}

template <class R, class T>
inline void multiply_strips(const SmallProduct<T>& p) {
  constexpr int kRegisters = R::kCount == 32 ? 4 : 2;
  int64_t column = 0;
  for (; column + kRegisters * R::kWidth <= padded_row(p.columns); column += kRegisters * R::kWidth)
    multiply_strip<R, kRegisters>(p, column);
  for (; column < p.columns; column += R::kWidth) multiply_strip<R, 1>(p, column);
}

}  // namespace

void multiply(const SmallProduct<float>& product) {
  widest_register([&](auto wide) { multiply_strips<decltype(wide)>(product); });
}

void multiply(const SmallProduct<double>& product) {
  widest_register([&](auto wide) { multiply_strips<Holding<double, decltype(wide)>>(product); });
}

}  // namespace moonflow::cpu
