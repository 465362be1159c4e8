// A product of float32 or float64 matrices whose result stays in registers while it is summed. Nothing is packed: what
// is small enough for this lies in the near caches as it is.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

// What becomes of a product: it replaces what is there, is added to it, or is a gradient to descend along.
struct Replace {
  static constexpr bool kBeginsFromThere = false;
  template <class R>
  void end(const typename R::Vector& sum, typename R::Element* c) const {
    R::at(c) = sum;
  }
};
struct Add {
  static constexpr bool kBeginsFromThere = true;
  template <class R>
  void end(const typename R::Vector& sum, typename R::Element* c) const {
    R::at(c) = sum;
  }
};
struct ReplaceOrAdd {  // once it is summed, so that a long sum of many blocks is as exact as a short one
  static constexpr bool kBeginsFromThere = false;
  const bool& adds;
  template <class R>
  void end(const typename R::Vector& sum, typename R::Element* c) const {
    if (adds)
      R::at(c) += sum;
    else
      R::at(c) = sum;
  }
};
struct Descend {  // of float32
  static constexpr bool kBeginsFromThere = false;
  const float& factor;  // in memory: a register that holds it while products are summed is one that they lack
  template <class R>
  void end(const typename R::Vector& sum, typename R::Element* c) const {
    R::at(c) -= factor * sum;
  }
};

template <class R>
using Element = typename R::Element;

// A step that is known where the loop is compiled.
template <int64_t kStep>
using Step = std::integral_constant<int64_t, kStep>;
template <class S>
constexpr bool kIsKnown = std::is_empty_v<S>;
// A step between rows of b that come from afar, in pieces. What the next panel reads of each is fetched when this one's
// is read.
struct FarStep {
  int64_t step;
  operator int64_t() const { return step; }
};

// a (kRows, count) * b (count, columns), where columns fill kVectors registers, b_vector apart, ends in c (kRows,
// columns). Steps are numbers, or known ones. Rows are addressed from every third, which an address can reach without
// arithmetic.
template <class R, int kRows, int kVectors, class ARow, class AStep, class BStep, class BVector, class Ending>
void product(int64_t count, const Element<R>* a, ARow a_row, AStep a_step, const Element<R>* b, BStep b_step,
             BVector b_vector, Element<R>* c, int64_t c_row, const Ending& ending) {
  using Vector = typename R::Vector;
  constexpr int kBases = (kRows + 2) / 3;
  const Element<R>* base[kBases];
  Vector sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kBases; ++i) base[i] = a + 3 * i * a_row;
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (Ending::kBeginsFromThere)
        sum[i][v] = R::at(c + i * c_row + v * R::kWidth);
      else
        sum[i][v] = Vector{};
    }
  }
  const auto add_term = [&] {
    Vector right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      right[v] = R::at(b + v * b_vector);
      if (std::is_same_v<BStep, FarStep>) __builtin_prefetch(b + (kVectors + v) * R::kWidth, 0, 2);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Element<R> left = base[i / 3][(i % 3) * a_row];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] += left * right[v];
    }
#pragma GCC unroll 16
    for (int i = 0; i < kBases; ++i) base[i] += a_step;
    b += b_step;
  };
  // A third of the instructions, and of a small tile half, are beside its sums. A core that works for a neighbour at
  // the same time is short of room for those, and several terms at once have fewer.
  if constexpr (kIsKnown<AStep> && kIsKnown<BStep>) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < count; ++k) add_term();
  } else if constexpr (R::kCount == 16) {
#pragma GCC unroll 2
    for (int64_t k = 0; k < count; ++k) add_term();
  } else {
    for (int64_t k = 0; k < count; ++k) add_term();
  }
  asm("" : "+r"(c), "+r"(c_row));  // or places in c would be computed before the loop, which needs all registers
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) ending.template end<R>(sum[i][v], c + i * c_row + v * R::kWidth);
  }
}

// The same for any number of rows up to kRows.
template <class R, int kRows, int kVectors, class ARow, class AStep, class BStep, class BVector, class Ending>
void product_of_rows(int64_t rows, int64_t count, const Element<R>* a, ARow a_row, AStep a_step, const Element<R>* b,
                     BStep b_step, BVector b_vector, Element<R>* c, int64_t c_row, const Ending& ending) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return product_of_rows<R, kRows - 1, kVectors>(rows, count, a, a_row, a_step, b, b_step, b_vector, c, c_row,
                                                     ending);
    }
  }
  stand_alone(typename R::Floats(),
              [=] { product<R, kRows, kVectors>(count, a, a_row, a_step, b, b_step, b_vector, c, c_row, ending); });
}

// Rows in a tile of two registers' width: as many as there are registers for.
template <class R>
constexpr int kTileRows = R::kCount == 32 ? 14 : 6;
// Numbers of a that such a tile's rows have side by side where they are copied, in whole registers.
template <class R>
constexpr int64_t kLeftLanes = (kTileRows<R> + R::kWidth - 1) / R::kWidth* R::kWidth;

// Fetches together what a tile writes next; storing to one row after the other would wait for each.
template <class T>
inline void fetch_rows(const T* to, int64_t row, int64_t rows, int64_t count) {
  for (int64_t i = 0; i < rows; ++i, to += row) {
    __builtin_prefetch(to, 1);
    __builtin_prefetch(to + count - 1, 1);
  }
}

// The same for columns in multiples of 16.
template <class R, class Ending>
void multiply_row(int64_t rows, int64_t columns, int64_t count, const Element<R>* a, int64_t a_row, int64_t a_step,
                  const Element<R>* b, int64_t b_step, Element<R>* c, int64_t c_row, const Ending& ending) {
  int64_t j = 0;
  for (; j + 2 * R::kWidth <= columns; j += 2 * R::kWidth) {
    product_of_rows<R, kTileRows<R>, 2>(rows, count, a, a_row, a_step, b + j, b_step, Step<R::kWidth>(), c + j, c_row,
                                        ending);
  }
  if (j == columns) return;
  product_of_rows<R, kTileRows<R>, 1>(rows, count, a, a_row, a_step, b + j, b_step, Step<R::kWidth>(), c + j, c_row,
                                      ending);
}

// The same for any number of rows.
template <class R, class Ending>
void multiply(int64_t rows, int64_t columns, int64_t count, const Element<R>* a, int64_t a_row, int64_t a_step,
              const Element<R>* b, int64_t b_step, Element<R>* c, int64_t c_row, const Ending& ending) {
  const int64_t parts = (rows + kTileRows<R> - 1) / kTileRows<R>;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = rows * part / parts, here = rows * (part + 1) / parts - first;
    multiply_row<R>(here, columns, count, a + first * a_row, a_row, a_step, b, b_step, c + first * c_row, c_row,
                    ending);
  }
}

}  // namespace moonflow::cpu
