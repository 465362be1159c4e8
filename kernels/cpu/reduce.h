// The loop of all reductions on the CPU. Sums run in double; how they are grouped depends on the shapes alone, so the
// result has the same bits for any number of threads.
#pragma once

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/reduction.h"

namespace moonflow::reduce {

// Three cases share one inner loop, `rows` of columns added up. Where the innermost axis is kept, the columns are
// outputs. Where it is reduced, a run of it is folded into lanes, which are merged at the end; but short runs that lie
// one behind the other, as the places of an image's channels do, are columns themselves, each an output.
struct Geometry : Groups {
  Geometry(const Shape& shape, const std::vector<bool>& reduced);

  static constexpr int64_t kChunk = 128;  // columns of one job
  static constexpr int64_t kLanes = 32;   // of doubles, they fill half of the registers of AVX2
  static constexpr int64_t kHeld = 512;   // outputs of some jobs
  static constexpr int64_t kShort = 511;  // elements of a run that is a column

  int64_t column_step = 1;
  int64_t chunks = 1;  // of columns
  int64_t groups = 1;  // of outputs: kept elements times chunks
  int64_t blocks = 1;  // parts of `count` that are reduced apart, where there are too few groups

  // The outputs of a group: which is the first, and how many, at most kChunk.
  int64_t first_of(int64_t group) const { return group / chunks * columns + group % chunks * kChunk; }
  int64_t columns_of(int64_t group) const { return std::min(kChunk, columns - group % chunks * kChunk); }
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

// One group of outputs over elements [first, last) of what they reduce: the results are left at the front of acc, which
// has room for kChunk.
template <class Op, class T>
void fold_group(const Geometry& g, const T* x, int64_t group, int64_t first, int64_t last, const double* centers,
                typename Op::Acc* acc) {
  const int64_t kept = group / g.chunks, column = group % g.chunks * Geometry::kChunk;
  const auto& axes = g.kept.axes;
  const int64_t begin = axes.size() == 1 ? kept * axes[0].steps[0] : g.kept.offsets_of(kept)[0];
  const T* origin = x + begin + column * g.column_step;
  const int64_t columns = g.columns_of(group);
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
    // Some together, then the rest, by one loop, which halves what there is to compile.
    for (int64_t left = n, width = together; left > 0; rows += left / width * width * step, left %= width, width = left)
      fold_rows<Op>(acc, rows, left / width, width * step, width * columns, Neighbours(), center);
  });
  for (int64_t left = together; left > 1; left -= left / 2) {
    typename Op::Acc* const other = acc + (left - left / 2) * columns;
    for (int64_t c = 0; c < left / 2 * columns; ++c) acc[c] = Op::merge(acc[c], other[c]);
  }
}

// Jobs [first, last), each a group of outputs or a block of one, into acc, one behind the other. By itself, because
// several reductions share it, and because parallel_for calls its body from two places.
template <class Op, class T>
[[gnu::noinline]] void fold_jobs(const Geometry& g, const T* x, int64_t first, int64_t last, const double* centers,
                                 typename Op::Acc* acc) {
  cpu::widest([=, &g] {
    typename Op::Acc* to = acc;
    for (int64_t job = first; job < last; ++job) {
      const int64_t group = job / g.blocks, block = job % g.blocks;
      fold_group<Op>(g, x, group, g.count * block / g.blocks, g.count * (block + 1) / g.blocks, centers, to);
      to += g.columns_of(group);
    }
  });
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
  const auto finish = [=, &g](const Acc* acc, int64_t at, int64_t n) {
    for (int64_t k = 0; k < n; ++k) out[at + k] = Op::finish(acc[k], g.count, centered<Op> ? centers[at + k] : 0);
  };
  const int64_t outputs = std::max<int64_t>(1, std::min(g.columns, Geometry::kChunk));  // of a job, at most
  const int64_t work = std::max<int64_t>(1, g.count / g.blocks * outputs);
  // Results of groups lie one behind the other, so a buffer holds those of some; the blocks of a group do not.
  const int64_t jobs = g.blocks > 1 ? 1 : Geometry::kHeld / outputs;
  const auto run_jobs = [&](int64_t first, int64_t last) {
    Acc acc[Geometry::kHeld + Geometry::kChunk];
    for (int64_t end; first < last; first = end) {
      end = std::min(first + jobs, last);
      fold_jobs<typename Op::Fold>(g, x, first, end, centers, acc);
      const int64_t at = g.first_of(first / g.blocks), n = g.first_of((end - 1) / g.blocks + 1) - at;
      if (g.blocks > 1)
        std::copy_n(acc, n, parts + first % g.blocks * g.outputs + at);
      else
        finish(acc, at, n);
    }
  };
  cpu::parallel_for(g.groups * g.blocks, std::max<int64_t>(1, cpu::kGrain / work), run_jobs);
  if (g.blocks == 1) return;
  for (int64_t k = 0; k < g.outputs; ++k) {
    for (int64_t block = 1; block < g.blocks; ++block) parts[k] = Op::merge(parts[k], parts[block * g.outputs + k]);
  }
  finish(parts, 0, g.outputs);
}

}  // namespace moonflow::reduce
