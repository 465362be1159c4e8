// The rows of one head, of a value that lies as (batch, length, heads, width), and copies of them that small products
// read.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/small_product.h"
#include "kernels/cpu/square.h"

namespace moonflow::cpu {

// A head's rows of a value that lies as (batch, length, heads, width).
template <class T>
struct Rows {
  T* data;
  int64_t count, width, step;
  T* row(int64_t i) const { return data + i * step; }
  // Begins to read a row. Rows lie apart, so the processor does not foresee which comes next.
  void fetch(int64_t i) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t column = 0; i < count && column < width; column += kLine) __builtin_prefetch(row(i) + column, 0, 2);
  }
  Rows part(int64_t first, int64_t number) const { return {row(first), number, width, step}; }
  Strided<std::remove_const_t<T>> strided() const { return {data, step, 1}; }
};

// Copies rows one behind the other, each filled up with zeros to whole registers.
template <class T>
void copy_rows(const Rows<const T>& from, T* to) {
  const int64_t step = row_step(from.width), padded = padded_row(from.width);
  for (int64_t i = 0; i < from.count; ++i, to += step)
    std::fill(std::copy_n(from.row(i), from.width, to), to + padded, T(0));
}

// The transpose of `factor` times the rows, each row of it filled up with zeros. Whole squares go through registers, of
// at most eight lanes, so that few rows are left over.
template <class T>
void copy_transposed(const Rows<const T>& from, T factor, T* to) {
  const int64_t step = row_step(from.count), padded = padded_row(from.count);
  int64_t square_rows = 0, square_columns = 0;
  if constexpr (std::is_same_v<T, float>) {
    widest_register([&](auto wide) {
      using R = Register<std::min(decltype(wide)::kWidth, 8)>;
      square_rows = from.count / R::kWidth * R::kWidth;
      square_columns = from.width / R::kWidth * R::kWidth;
      for (int64_t i = 0; i < square_rows; i += R::kWidth) {
        for (int64_t c = 0; c < square_columns; c += R::kWidth)
          copy_square<R>(from.row(i) + c, from.step, to + c * step + i, step, [=](auto& row) { row *= factor; });
      }
    });
  }
  for (int64_t i = 0; i < from.count; ++i) {
    for (int64_t c = i < square_rows ? square_columns : 0; c < from.width; ++c)
      to[c * step + i] = factor * from.row(i)[c];
  }
  for (int64_t c = 0; c < from.width; ++c) std::fill(to + c * step + from.count, to + c * step + padded, T(0));
}

// Where products write rows of an output: in their place if these are whole registers, and else in scratch first.
template <class T>
class Target {
 public:
  Target(const Rows<T>& rows, T* scratch)
      : rows_(rows),
        in_place_(rows.width == padded_row(rows.width)),
        data_(in_place_ ? rows.data : scratch),
        step_(in_place_ ? rows.step : row_step(rows.width)) {}

  T* data() const { return data_; }
  int64_t step() const { return step_; }
  void clear_from(int64_t first) const {
    for (int64_t i = first; i < rows_.count; ++i) std::fill_n(data_ + i * step_, padded_row(rows_.width), T(0));
  }
  // Once all is written.
  void finish() const {
    for (int64_t i = 0; !in_place_ && i < rows_.count; ++i) std::copy_n(data_ + i * step_, rows_.width, rows_.row(i));
  }

 private:
  const Rows<T> rows_;
  const bool in_place_;
  T* const data_;
  const int64_t step_;
};

}  // namespace moonflow::cpu
