// What a reduction along axes means on every device: which axes it takes, how the elements fall into groups, and what
// is folded. Free of OpenMP; the loops are in cpu/reduce.h and reduce.cu.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "engine/op.h"
#include "kernels/broadcast.h"
#include "kernels/elementary.h"

namespace moonflow::reduce {

// By axis of the shape, whether the attribute "axis" names it; an empty one names all.
std::vector<bool> reduced_axes(const Attrs& attrs, const Shape& shape);
// The axes along which a value of `target` was repeated to become one of `shape`.
std::vector<bool> broadcast_axes(const Shape& shape, const Ints& target);

// A value seen as reduced and kept axes, neighbours of one kind joined. Where the innermost axis is kept, its elements
// are `columns`: output k begins at kept.offsets_of(k / columns) + k % columns.
struct Groups {
  Groups(const Shape& shape, const std::vector<bool>& reduced);

  Broadcast<1> kept{{}}, folded{{}};  // steps in the input; `kept` is without the columns
  int64_t outputs = 1;                     // of the whole reduction
  int64_t count = 1;                       // inputs of each output
  int64_t columns = 1;                     // innermost kept elements, 1 where the innermost axis is reduced
};

// ---- what is reduced: acc = fold(acc, x, center), merge(acc, acc), finish(acc, count, center) -----------------
// One whose Center is another reduction wants its result as the center of the terms. Those that fold the same way and
// only finish differently name what they share as their Fold, so that a loop over it is compiled once for all of them.

struct NoCenter {};

// What sums and products of T are taken in. Integers wrap around, and what is left of them fits their own bits.
template <class T>
using Wide = typename std::conditional_t<std::is_floating_point_v<T>, std::decay<double>, std::make_unsigned<T>>::type;

template <class T, class A>
struct SumIn {
  using Fold = SumIn;
  using Acc = A;
  using Center = NoCenter;
  static constexpr Acc kStart = 0;
  MOONFLOW_BOTH static Acc fold(Acc acc, T x, double) { return merge(acc, static_cast<Acc>(x)); }
  MOONFLOW_BOTH static Acc merge(Acc a, Acc b) { return static_cast<Acc>(a + b); }
  MOONFLOW_BOTH static T finish(Acc acc, int64_t, double) { return static_cast<T>(acc); }
};
template <class T>
struct Sum : SumIn<T, Wide<T>> {};
template <class T>
struct Mean : Sum<T> {
  MOONFLOW_BOTH static T finish(double acc, int64_t count, double) {
    return static_cast<T>(acc / static_cast<double>(count));
  }
};
// As a center: the mean before it is rounded to T.
template <class T>
struct ExactMean : Sum<T> {
  MOONFLOW_BOTH static double finish(double acc, int64_t count, double) { return acc / static_cast<double>(count); }
};
template <class T>
struct SumOfSquares : Sum<T> {
  using Fold = SumOfSquares;
  MOONFLOW_BOTH static double fold(double acc, T x, double) {
    return acc + static_cast<double>(x) * static_cast<double>(x);
  }
  MOONFLOW_BOTH static double finish(double acc, int64_t, double) { return acc; }
};
template <class T, class A>
struct ProdIn {
  using Fold = ProdIn;
  using Acc = A;
  using Center = NoCenter;
  static constexpr Acc kStart = 1;
  MOONFLOW_BOTH static Acc fold(Acc acc, T x, double) { return merge(acc, static_cast<Acc>(x)); }
  MOONFLOW_BOTH static Acc merge(Acc a, Acc b) { return static_cast<Acc>(a * b); }
  MOONFLOW_BOTH static T finish(Acc acc, int64_t, double) { return static_cast<T>(acc); }
};
template <class T>
struct Prod : ProdIn<T, Wide<T>> {};
template <class T>
struct Max {
  using Fold = Max;
  using Acc = T;
  using Center = NoCenter;
  static constexpr T kStart =
      std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  MOONFLOW_BOTH static T fold(T acc, T x, double) { return (x > acc) | (x != x) ? x : acc; }  // a NaN wins
  MOONFLOW_BOTH static T merge(T a, T b) { return fold(a, b, 0); }
  MOONFLOW_BOTH static T finish(T acc, int64_t, double) { return acc; }
};
template <class T>
struct Min {
  using Fold = Min;
  using Acc = T;
  using Center = NoCenter;
  static constexpr T kStart =
      std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  MOONFLOW_BOTH static T fold(T acc, T x, double) { return (x < acc) | (x != x) ? x : acc; }
  MOONFLOW_BOTH static T merge(T a, T b) { return fold(a, b, 0); }
  MOONFLOW_BOTH static T finish(T acc, int64_t, double) { return acc; }
};
// 0 or 1, as wide as an element, or a loop would narrow each of them.
template <class T>
using Truth = std::conditional_t<sizeof(T) == 8, int64_t, std::conditional_t<sizeof(T) == 4, int32_t, int8_t>>;

template <class T>
struct Any {
  using Fold = Any;
  using Acc = Truth<T>;
  using Center = NoCenter;
  static constexpr Acc kStart = 0;
  MOONFLOW_BOTH static Acc fold(Acc acc, T x, double) { return acc | (x != 0); }
  MOONFLOW_BOTH static Acc merge(Acc a, Acc b) { return a | b; }
  MOONFLOW_BOTH static int8_t finish(Acc acc, int64_t, double) { return static_cast<int8_t>(acc); }
};
template <class T>
struct All {
  using Fold = All;
  using Acc = Truth<T>;
  using Center = NoCenter;
  static constexpr Acc kStart = 1;
  MOONFLOW_BOTH static Acc fold(Acc acc, T x, double) { return acc & (x != 0); }
  MOONFLOW_BOTH static Acc merge(Acc a, Acc b) { return a & b; }
  MOONFLOW_BOTH static int8_t finish(Acc acc, int64_t, double) { return static_cast<int8_t>(acc); }
};
// About the mean of T.
template <class T, class Mean>
struct SquaredDeviations : SumIn<T, double> {
  using Fold = SquaredDeviations;
  using Center = Mean;
  MOONFLOW_BOTH static double fold(double acc, T x, double center) {
    const double difference = static_cast<double>(x) - center;
    return acc + difference * difference;
  }
};
template <class T>
struct Variance : SquaredDeviations<T, ExactMean<T>> {
  MOONFLOW_BOTH static T finish(double acc, int64_t count, double) {
    return static_cast<T>(acc / static_cast<double>(count));
  }
};
template <class T>
struct Std : Variance<T> {
  MOONFLOW_BOTH static T finish(double acc, int64_t count, double) {
    return static_cast<T>(std::sqrt(acc / static_cast<double>(count)));
  }
};
// A largest element of infinity, or none at all, is no center to subtract.
template <class T>
struct FiniteMax : Max<T> {
  MOONFLOW_BOTH static double finish(T acc, int64_t, double) {
    return std::isfinite(acc) ? static_cast<double>(acc) : 0.0;
  }
};
template <class T>
struct LogSumExp : Sum<T> {
  using Fold = LogSumExp;
  using Center = FiniteMax<T>;
  MOONFLOW_BOTH static double fold(double acc, T x, double center) {
    return acc + elementary::exp(x - static_cast<T>(center));
  }
  MOONFLOW_BOTH static T finish(double acc, int64_t, double center) { return static_cast<T>(center + std::log(acc)); }
};

// ---- of integers of up to 32 bits, in numbers that hold what comes out -----------------------------------------

// Calls f with a value of the dtype.
template <class F>
decltype(auto) visit_whole(DType dtype, F&& f) {
  if (dtype == DType::Int8) return f(int8_t{});
  if (dtype == DType::UInt8) return f(uint8_t{});
  require(dtype == DType::Int32, ErrorCode::DtypeMismatch, "needs int8, uint8 or int32, got ", dtype);
  return f(int32_t{});
}

template <class T>
struct WholeSum : SumIn<T, uint64_t> {
  MOONFLOW_BOTH static int64_t finish(uint64_t acc, int64_t, double) { return static_cast<int64_t>(acc); }
};
template <class T>
struct WholeProd : ProdIn<T, uint64_t> {
  MOONFLOW_BOTH static int64_t finish(uint64_t acc, int64_t, double) { return static_cast<int64_t>(acc); }
};
template <class T>
struct WholeMean : SumIn<T, uint64_t> {
  MOONFLOW_BOTH static double finish(uint64_t acc, int64_t count, double) {
    return static_cast<double>(static_cast<int64_t>(acc)) / static_cast<double>(count);
  }
};
template <class T>
struct WholeVariance : SquaredDeviations<T, WholeMean<T>> {
  MOONFLOW_BOTH static double finish(double acc, int64_t count, double) { return acc / static_cast<double>(count); }
};
template <class T>
struct WholeStd : WholeVariance<T> {
  MOONFLOW_BOTH static double finish(double acc, int64_t count, double) {
    return std::sqrt(acc / static_cast<double>(count));
  }
};

}  // namespace moonflow::reduce
