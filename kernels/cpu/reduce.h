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
  static constexpr int64_t kShort = 63;   // elements of a run; longer ones fill the lanes

  int64_t column_step = 1;
  int64_t chunks = 1;  // of columns
  int64_t groups = 1;  // of outputs: kept elements times chunks
  int64_t blocks = 1;  // parts of `count` that are reduced apart, where there are too few groups
};

// ---- the loop ------------------------------------------------------------------------------------------------

using Neighbours = std::integral_constant<int64_t, 1>;

// acc[c] = fold(acc[c], x[c]) over `rows` rows of x that lie `step` apart, in registers.
template <class Op, int64_t kColumns, class T>
void fold_in_registers(typename Op::Acc* acc, const T* x, int64_t rows, int64_t step) {
  typename Op::Acc own[kColumns];
  std::copy_n(acc, kColumns, own);
  for (int64_t row = 0; row < rows; ++row, x += step)
    for (int64_t c = 0; c < kColumns; ++c) own[c] = Op::fold(own[c], x[c], 0);
  std::copy_n(own, kColumns, acc);
}

// acc[c] = fold(acc[c], x[c * apart]) over such rows.
template <class Op, class T, class Apart>
void fold_rows(typename Op::Acc* acc, const T* x, int64_t rows, int64_t step, int64_t columns, Apart apart,
               const double* centers, double center) {
  constexpr bool centered = !std::is_same_v<typename Op::Center, NoCenter>;
  if constexpr (!centered && std::is_same_v<Apart, Neighbours>) {
    constexpr int64_t kBlock = 16;  // channels of an image in blocks
    if (columns == kBlock) return fold_in_registers<Op, kBlock>(acc, x, rows, step);
    if (columns == Geometry::kLanes) return fold_in_registers<Op, Geometry::kLanes>(acc, x, rows, step);
  }
  for (int64_t row = 0; row < rows; ++row, x += step) {
    if (centered && centers) {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) acc[c] = Op::fold(acc[c], x[c * apart], centers[c]);
    } else {
#pragma GCC ivdep
      for (int64_t c = 0; c < columns; ++c) acc[c] = Op::fold(acc[c], x[c * apart], center);
    }
  }
}

// Calls run(length, offset) for the runs of neighbours along the innermost axis that make up elements [first, last):
// what for_each_run does, which costs as much as a short run where there is one axis.
template <class Run>
void each_run(const Broadcast<1>& x, int64_t first, int64_t last, const Run& run) {
  if (x.axes.size() == 1) return run(last - first, first * x.axes[0].steps[0]);
  x.for_each_run(first, last, [&](int64_t, int64_t n, const std::array<int64_t, 1>& offsets) { run(n, offsets[0]); });
}

// Leaves in acc[0] what so many lanes come to, each merged with one in the other half.
template <class Op, int64_t kLanes>
void merge_lanes(typename Op::Acc* acc) {
  if constexpr (kLanes > 1) {
    for (int64_t lane = 0; lane < kLanes / 2; ++lane) acc[lane] = Op::merge(acc[lane], acc[kLanes / 2 + lane]);
    merge_lanes<Op, kLanes / 2>(acc);
  }
}
template <class Op>
void merge_lanes(typename Op::Acc* acc, int64_t lanes) {
  if (lanes == Geometry::kLanes) return merge_lanes<Op, Geometry::kLanes>(acc);
  for (; lanes > 1; lanes = (lanes + 1) / 2) {
    for (int64_t lane = 0; lane < lanes / 2; ++lane) acc[lane] = Op::merge(acc[lane], acc[(lanes + 1) / 2 + lane]);
  }
}

// One group of outputs over elements [first, last) of what they reduce: the results are left in acc[0, columns).
template <class Op, class T>
void fold_group(const Geometry& g, const T* x, int64_t group, int64_t first, int64_t last, const double* centers,
                typename Op::Acc* acc) {
  const int64_t kept = group / g.chunks, column = group % g.chunks * Geometry::kChunk;
  const auto& axes = g.kept.axes;
  const int64_t begin = axes.size() == 1 ? kept * axes[0].steps[0] : g.kept.offsets_of(kept)[0];
  const T* origin = x + begin + column * g.column_step;
  const int64_t step = g.folded.axes.back().steps[0];
  if (g.columns > 1 || step != 1) {
    const int64_t columns = std::min(Geometry::kChunk, g.columns - column);
    std::fill(acc, acc + columns, Op::kStart);
    const double* own = centers ? centers + kept * g.columns + column : nullptr;
    each_run(g.folded, first, last, [&](int64_t n, int64_t offset) {
      const T* rows = origin + offset;
      if (g.column_step == 1)
        fold_rows<Op>(acc, rows, n, step, columns, Neighbours(), own, 0);
      else
        fold_rows<Op>(acc, rows, n, step, columns, g.column_step, own, 0);
    });
    return;
  }
  const double center = centers ? centers[kept] : 0;
  const int64_t lanes = std::clamp<int64_t>(g.folded.axes.back().size, 1, Geometry::kLanes);  // one also of none
  std::fill(acc, acc + lanes, Op::kStart);
  each_run(g.folded, first, last, [&](int64_t n, int64_t offset) {
    const T* run = origin + offset;
    fold_rows<Op>(acc, run, n / lanes, lanes, lanes, Neighbours(), nullptr, center);
    fold_rows<Op>(acc, run + n / lanes * lanes, 1, 0, n % lanes, Neighbours(), nullptr, center);
  });
  merge_lanes<Op>(acc, lanes);
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
                    [&](int64_t first, int64_t last) { run_widest(run_jobs, first, last); });
  if (g.blocks == 1) return;
  for (int64_t k = 0; k < g.outputs; ++k) {
    Acc acc = parts[k];
    for (int64_t block = 1; block < g.blocks; ++block) acc = Op::merge(acc, parts[block * g.outputs + k]);
    out[k] = Op::finish(acc, g.count, centers ? centers[k] : 0);
  }
}

}  // namespace moonflow::reduce
