// The loop of all reductions on the CPU. Sums run in double; how they are grouped depends on the shapes alone, so the
// result has the same bits for any number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/broadcast.h"
#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow::reduce {

using cpu::Broadcast;

// A value seen as reduced and kept axes. Two cases share one inner loop, `rows` of neighbouring columns added up:
// where the innermost axis is kept, the columns are outputs; where it is reduced, a run of it is folded into lanes,
// which are merged at the end.
struct Geometry {
  Geometry(const Shape& shape, const std::vector<bool>& reduced);

  static constexpr int64_t kChunk = 128;  // columns of one job
  static constexpr int64_t kLanes = 64;

  Broadcast<1> kept{{}}, folded{{}};  // steps in the input; `kept` is without the columns
  int64_t outputs = 1;                // of the whole reduction
  int64_t count = 1;                  // inputs of each output
  int64_t columns = 1;                // innermost kept elements, 1 where the innermost axis is reduced
  int64_t chunks = 1;                 // of columns
  int64_t groups = 1;                 // of outputs: kept elements times chunks
  int64_t blocks = 1;                 // parts of `count` that are reduced apart, where there are too few groups
};

// ---- what is reduced: acc = fold(acc, x, center), merge(acc, acc), finish(acc, count, center) -----------------
// A functor with kCenter wants a first reduction's result as the center of its terms.

struct NoCenter {};

template <class T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;  // integers wrap around

template <class T>
struct Sum {
  using Acc = Wide<T>;
  using Center = NoCenter;
  static constexpr Acc kStart = 0;
  static Acc fold(Acc acc, T x, double) { return acc + static_cast<Acc>(x); }
  static Acc merge(Acc a, Acc b) { return a + b; }
  static T finish(Acc acc, int64_t, double) { return static_cast<T>(acc); }
};
template <class T>
struct Mean : Sum<T> {
  static T finish(double acc, int64_t count, double) { return static_cast<T>(acc / static_cast<double>(count)); }
};
// As a center: the mean before it is rounded to T.
template <class T>
struct ExactMean : Sum<T> {
  static double finish(double acc, int64_t count, double) { return acc / static_cast<double>(count); }
};
template <class T>
struct SumOfSquares : Sum<T> {
  static double fold(double acc, T x, double) { return acc + static_cast<double>(x) * static_cast<double>(x); }
  static double finish(double acc, int64_t, double) { return acc; }
};
template <class T>
struct Prod {
  using Acc = Wide<T>;
  using Center = NoCenter;
  static constexpr Acc kStart = 1;
  static Acc fold(Acc acc, T x, double) { return acc * static_cast<Acc>(x); }
  static Acc merge(Acc a, Acc b) { return a * b; }
  static T finish(Acc acc, int64_t, double) { return static_cast<T>(acc); }
};
template <class T>
struct Max {
  using Acc = T;
  using Center = NoCenter;
  static constexpr T kStart =
      std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  static T fold(T acc, T x, double) { return x > acc || x != x ? x : acc; }  // a NaN wins
  static T merge(T a, T b) { return fold(a, b, 0); }
  static T finish(T acc, int64_t, double) { return acc; }
};
template <class T>
struct Min {
  using Acc = T;
  using Center = NoCenter;
  static constexpr T kStart =
      std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  static T fold(T acc, T x, double) { return x < acc || x != x ? x : acc; }
  static T merge(T a, T b) { return fold(a, b, 0); }
  static T finish(T acc, int64_t, double) { return acc; }
};
template <class T>
struct Any {
  using Acc = int8_t;
  using Center = NoCenter;
  static constexpr int8_t kStart = 0;
  static int8_t fold(int8_t acc, T x, double) { return acc | (x != 0); }
  static int8_t merge(int8_t a, int8_t b) { return a | b; }
  static int8_t finish(int8_t acc, int64_t, double) { return acc; }
};
template <class T>
struct All {
  using Acc = int8_t;
  using Center = NoCenter;
  static constexpr int8_t kStart = 1;
  static int8_t fold(int8_t acc, T x, double) { return acc & (x != 0); }
  static int8_t merge(int8_t a, int8_t b) { return a & b; }
  static int8_t finish(int8_t acc, int64_t, double) { return acc; }
};
template <class T>
struct Variance : Sum<T> {
  using Center = ExactMean<T>;
  static double fold(double acc, T x, double center) {
    const double difference = static_cast<double>(x) - center;
    return acc + difference * difference;
  }
  static T finish(double acc, int64_t count, double) { return static_cast<T>(acc / static_cast<double>(count)); }
};
template <class T>
struct Std : Variance<T> {
  static T finish(double acc, int64_t count, double) {
    return static_cast<T>(std::sqrt(acc / static_cast<double>(count)));
  }
};
// A largest element of infinity, or none at all, is no center to subtract.
template <class T>
struct FiniteMax : Max<T> {
  static double finish(T acc, int64_t, double) { return std::isfinite(acc) ? static_cast<double>(acc) : 0.0; }
};
template <class T>
struct LogSumExp : Sum<T> {
  using Center = FiniteMax<T>;
  static double fold(double acc, T x, double center) { return acc + std::exp(static_cast<double>(x) - center); }
  static T finish(double acc, int64_t, double center) { return static_cast<T>(center + std::log(acc)); }
};

// ---- the loop ------------------------------------------------------------------------------------------------

// acc[c] = fold(acc[c], x[c]) over `rows` rows of x that lie `step` apart.
template <class Op, class T>
void fold_rows(typename Op::Acc* acc, const T* x, int64_t rows, int64_t step, int64_t columns, const double* centers,
               double center) {
  constexpr bool centered = !std::is_same_v<typename Op::Center, NoCenter>;
  for (int64_t row = 0; row < rows; ++row, x += step) {
    if (centered && centers) {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) acc[c] = Op::fold(acc[c], x[c], centers[c]);
    } else {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) acc[c] = Op::fold(acc[c], x[c], center);
    }
  }
}

// One group of outputs over elements [first, last) of what they reduce: the results are left in acc[0, columns).
template <class Op, class T>
void fold_group(const Geometry& g, const T* x, int64_t group, int64_t first, int64_t last, const double* centers,
                typename Op::Acc* acc) {
  const int64_t kept = group / g.chunks, column = group % g.chunks * Geometry::kChunk;
  const T* origin = x + g.kept.offsets_of(kept)[0] + column;
  const int64_t step = g.folded.axes.back().steps[0];
  if (g.columns > 1 || step != 1) {
    const int64_t columns = std::min(Geometry::kChunk, g.columns - column);
    std::fill(acc, acc + columns, Op::kStart);
    const double* own = centers ? centers + kept * g.columns + column : nullptr;
    g.folded.for_each_run(first, last, [&](int64_t, int64_t n, const std::array<int64_t, 1>& offsets) {
      fold_rows<Op>(acc, origin + offsets[0], n, step, columns, own, 0);
    });
    return;
  }
  const double center = centers ? centers[kept] : 0;
  const int64_t lanes = std::clamp<int64_t>(g.folded.axes.back().size, 1, Geometry::kLanes);  // one also of none
  std::fill(acc, acc + lanes, Op::kStart);
  g.folded.for_each_run(first, last, [&](int64_t, int64_t n, const std::array<int64_t, 1>& offsets) {
    const T* run = origin + offsets[0];
    fold_rows<Op>(acc, run, n / lanes, lanes, lanes, nullptr, center);
    fold_rows<Op>(acc, run + n / lanes * lanes, 1, 0, n % lanes, nullptr, center);
  });
  for (int64_t width = lanes; width > 1; width = (width + 1) / 2) {
    for (int64_t lane = 0; lane < width / 2; ++lane) acc[lane] = Op::merge(acc[lane], acc[(width + 1) / 2 + lane]);
  }
}

// Not inlined: parallel_for calls its body from two places, and there are many reductions.
template <class T, class Jobs>
[[gnu::noinline]] void run_widest(const Jobs& jobs, int64_t first, int64_t last) {
  if constexpr (std::is_floating_point_v<T>) cpu::widest([&] { jobs(first, last); });
  else jobs(first, last);
}

template <class Op>
int64_t scratch_bytes(const Geometry& g) {
  return g.blocks > 1 ? g.blocks * g.outputs * static_cast<int64_t>(sizeof(typename Op::Acc)) : 0;
}

// Reduces x into out; `partials` has scratch_bytes.
template <class Op, class T, class Out>
void reduce(const Geometry& g, const T* x, const double* centers, void* partials, Out* out) {
  using Acc = typename Op::Acc;
  Acc* const parts = static_cast<Acc*>(partials);
  const auto run_jobs = [&](int64_t first, int64_t last) {
    Acc acc[Geometry::kChunk];
    for (int64_t job = first; job < last; ++job) {
      const int64_t group = job / g.blocks, block = job % g.blocks;
      fold_group<Op>(g, x, group, g.count * block / g.blocks, g.count * (block + 1) / g.blocks, centers, acc);
      const int64_t column = group % g.chunks * Geometry::kChunk;
      const int64_t at = group / g.chunks * g.columns + column;
      const int64_t columns = std::min(Geometry::kChunk, g.columns - column);
      for (int64_t c = 0; c < columns; ++c) {
        if (g.blocks > 1) parts[block * g.outputs + at + c] = acc[c];
        else out[at + c] = Op::finish(acc[c], g.count, centers ? centers[at + c] : 0);
      }
    }
  };
  const int64_t work = std::max<int64_t>(1, g.count / g.blocks * std::min(g.columns, Geometry::kChunk));
  cpu::parallel_for(g.groups * g.blocks, std::max<int64_t>(1, cpu::kGrain / work),
                    [&](int64_t first, int64_t last) { run_widest<T>(run_jobs, first, last); });
  if (g.blocks == 1) return;
  for (int64_t k = 0; k < g.outputs; ++k) {
    Acc acc = parts[k];
    for (int64_t block = 1; block < g.blocks; ++block) acc = Op::merge(acc, parts[block * g.outputs + k]);
    out[k] = Op::finish(acc, g.count, centers ? centers[k] : 0);
  }
}

}  // namespace moonflow::reduce
