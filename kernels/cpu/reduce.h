// The loop of all reductions on the CPU. Sums run in double; how they are grouped depends on the shapes alone, so the
// result has the same bits for any number of threads.
#pragma once

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/reduction.h"

namespace moonflow::reduce {

// Three cases share one inner loop, `rows` of columns added up. Where the innermost axis is kept, the columns are
// outputs. Where it is reduced, a run of it is folded into lanes, which are merged at the end; but short runs that lie one
// behind the other, as the places of an image's channels do, are columns themselves, each an output.
struct Geometry : Groups {
  Geometry(const Shape& shape, const std::vector<bool>& reduced);

  static constexpr int64_t kChunk = 128;  // columns of one job
  static constexpr int64_t kLanes = 32;   // of doubles, they fill half of the registers of AVX2
  static constexpr int64_t kShort = 511;  // elements of a run that is a column

  int64_t column_step = 1;
  int64_t chunks = 1;  // of columns
  int64_t groups = 1;  // of outputs: kept elements times chunks
  int64_t blocks = 1;  // parts of `count` that are reduced apart, where there are too few groups
};

// ---- the loop ------------------------------------------------------------------------------------------------

using Neighbours = std::integral_constant<int64_t, 1>;
template <class Op>
constexpr bool centered = !std::is_same_v<typename Op::Center, NoCenter>;

// acc[c] = fold(acc[c], x[c], center(c)) over `rows` rows of x that lie `step` apart, in registers.
template <class Op, int64_t kColumns, class T, class Center>
void fold_in_registers(typename Op::Acc* acc, const T* x, int64_t rows, int64_t step, const Center& center) {
  typename Op::Acc own[kColumns];
  std::copy_n(acc, kColumns, own);
  for (int64_t row = 0; row < rows; ++row, x += step) {
    for (int64_t c = 0; c < kColumns; ++c) own[c] = Op::fold(own[c], x[c], center(c));
  }
  std::copy_n(own, kColumns, acc);
}

// acc[c] = fold(acc[c], x[c * apart], center(c)) over such rows.
template <class Op, class T, class Apart, class Center>
void fold_rows(typename Op::Acc* acc, const T* x, int64_t rows, int64_t step, int64_t columns, Apart apart,
               const Center& center) {
  if constexpr (!centered<Op> && std::is_same_v<Apart, Neighbours>) {
    if (columns == Geometry::kLanes) return fold_in_registers<Op, Geometry::kLanes>(acc, x, rows, step, center);
  }
  // Some at a time, so that an accumulator is loaded and stored once for them.
  for (; rows >= 4; rows -= 4, x += 4 * step) {
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) {
      const T* const column = x + c * apart;
      const double about = center(c);
      const auto first = Op::fold(Op::fold(acc[c], column[0], about), column[step], about);
      acc[c] = Op::fold(Op::fold(first, column[2 * step], about), column[3 * step], about);
    }
  }
  for (; rows > 0; --rows, x += step) {
#pragma GCC ivdep
    for (int64_t c = 0; c < columns; ++c) acc[c] = Op::fold(acc[c], x[c * apart], center(c));
  }
}

// The same of columns whose rows are neighbours: each column in lanes, the last four of which are merged for all
// columns at once.
template <class Op, class T, class Center>
void fold_runs(typename Op::Acc* acc, const T* x, int64_t rows, int64_t columns, int64_t apart, const Center& center) {
  constexpr int64_t kLanes = 16;
  const int64_t in_lanes = rows / kLanes * kLanes;
  if (in_lanes > 0) {
    typename Op::Acc last[4 * Geometry::kChunk];
    for (int64_t c = 0; c < columns; ++c) {
      const T* const run = x + c * apart;
      const double about = center(c);
      // GCC leaves to scalars what it unrolls before it looks for vectors, and makes a call of a loop that only fills.
      typename Op::Acc own[kLanes];
#pragma GCC unroll 1
      for (int64_t lane = 0; lane < kLanes; ++lane) own[lane] = Op::fold(Op::kStart, run[lane], about);
      for (int64_t row = kLanes; row < in_lanes; row += kLanes) {
#pragma GCC unroll 1
        for (int64_t lane = 0; lane < kLanes; ++lane) own[lane] = Op::fold(own[lane], run[row + lane], about);
      }
#pragma GCC unroll 1
      for (int64_t lane = 0; lane < 8; ++lane) own[lane] = Op::merge(own[lane], own[8 + lane]);
#pragma GCC unroll 1
      for (int64_t lane = 0; lane < 4; ++lane) last[4 * c + lane] = Op::merge(own[lane], own[4 + lane]);
    }
    for (int64_t c = 0; c < columns; ++c) {
      const typename Op::Acc* const own = last + 4 * c;
      acc[c] = Op::merge(acc[c], Op::merge(Op::merge(own[0], own[2]), Op::merge(own[1], own[3])));
    }
  }
  fold_rows<Op>(acc, x + in_lanes, rows - in_lanes, 1, columns, apart, center);
}

// Calls run(length, offset) for the runs of neighbours along the innermost axis that make up elements [first, last):
// what for_each_run does, which costs as much as a short run where there is one axis.
template <class Run>
void each_run(const Broadcast<1>& x, int64_t first, int64_t last, const Run& run) {
  if (x.axes.size() == 1) return run(last - first, first * x.axes[0].steps[0]);
  x.for_each_run(first, last, [&](int64_t, int64_t n, const std::array<int64_t, 1>& offsets) { run(n, offsets[0]); });
}

// One group of outputs over elements [first, last) of what they reduce: the results are left in acc[0, columns).
template <class Op, class T>
void fold_group(const Geometry& g, const T* x, int64_t group, int64_t first, int64_t last, const double* centers,
                typename Op::Acc* acc) {
  const int64_t kept = group / g.chunks, column = group % g.chunks * Geometry::kChunk;
  const auto& axes = g.kept.axes;
  const int64_t begin = axes.size() == 1 ? kept * axes[0].steps[0] : g.kept.offsets_of(kept)[0];
  const T* origin = x + begin + column * g.column_step;
  const int64_t columns = std::min(Geometry::kChunk, g.columns - column);
  // Rows of few columns that lie one behind the other, as a run does, are taken some together, which makes lanes of
  // each column.
  const auto& [row_count, steps] = g.folded.axes.back();
  const int64_t step = steps[0], lanes = Geometry::kLanes % columns == 0 ? Geometry::kLanes : Geometry::kChunk;
  const bool is_dense = step == columns && g.column_step == 1;
  const int64_t together = is_dense ? std::max<int64_t>(1, std::min(lanes / columns, row_count)) : 1;
  double about[Geometry::kChunk];
  for (int64_t c = 0; centered<Op> && c < together * columns; ++c)
    about[c] = centers[kept * g.columns + column + c % columns];
  const auto center = [&about](int64_t c) { return centered<Op> ? about[c] : 0; };
  std::fill(acc, acc + together * columns, Op::kStart);
  each_run(g.folded, first, last, [&](int64_t n, int64_t offset) {
    const T* rows = origin + offset;
    if (g.column_step != 1) return fold_runs<Op>(acc, rows, n, columns, g.column_step, center);
    const int64_t rest = n % together;
    fold_rows<Op>(acc, rows, n / together, together * step, together * columns, Neighbours(), center);
    if (rest > 0) fold_rows<Op>(acc, rows + (n - rest) * step, 1, 0, rest * columns, Neighbours(), center);
  });
  for (int64_t left = together; left > 1; left -= left / 2) {
    typename Op::Acc* const other = acc + (left - left / 2) * columns;
    for (int64_t c = 0; c < left / 2 * columns; ++c) acc[c] = Op::merge(acc[c], other[c]);
  }
}

// Not inlined: parallel_for calls its body from two places, and there are many reductions.
template <class Jobs>
[[gnu::noinline]] void run_widest(const Jobs& jobs, int64_t first, int64_t last) {
  cpu::widest([&] { jobs(first, last); });
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
  const int64_t count = g.count;
  const auto run_jobs = [=, &g](int64_t first, int64_t last) {
    Acc acc[Geometry::kChunk];
    for (int64_t job = first; job < last; ++job) {
      const int64_t group = job / g.blocks, block = job % g.blocks;
      fold_group<Op>(g, x, group, g.count * block / g.blocks, g.count * (block + 1) / g.blocks, centers, acc);
      const int64_t column = group % g.chunks * Geometry::kChunk;
      const int64_t at = group / g.chunks * g.columns + column;
      const int64_t columns = std::min(Geometry::kChunk, g.columns - column);
      if (g.blocks > 1) {
        std::copy_n(acc, columns, parts + block * g.outputs + at);
      } else {
        for (int64_t c = 0; c < columns; ++c)
          out[at + c] = Op::finish(acc[c], count, centered<Op> ? centers[at + c] : 0);
      }
    }
  };
  const int64_t work = std::max<int64_t>(1, g.count / g.blocks * std::min(g.columns, Geometry::kChunk));
  cpu::parallel_for(g.groups * g.blocks, std::max<int64_t>(1, cpu::kGrain / work),
                    [&](int64_t first, int64_t last) { run_widest(run_jobs, first, last); });
  if (g.blocks == 1) return;
  for (int64_t k = 0; k < g.outputs; ++k) {
    Acc acc = parts[k];
    for (int64_t block = 1; block < g.blocks; ++block) acc = Op::merge(acc, parts[block * g.outputs + k]);
    out[k] = Op::finish(acc, g.count, centers ? centers[k] : 0);
  }
}

}  // namespace moonflow::reduce
