// A loop over the lanes of a tensor on the CPU, in the widest registers: one after the other where the elements of a
// lane are neighbours, else some that begin beside one another at a time.
#pragma once

#include <algorithm>

#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/lanes.h"

namespace moonflow::cpu {

constexpr int64_t kBeside = 64;    // lanes at a time
constexpr int64_t kTogether = 16;  // rows at a time

// Calls row(lane), or beside(first lane, how many). `grain` lanes pay for another thread.
template <class Row, class Beside>
void for_each_lane(const Lanes& lanes, int64_t grain, const Row& row, const Beside& beside) {
  if (lanes.n == 0 || lanes.count == 0) return;
  if (lanes.stride == 1) {
    parallel_for(lanes.count, grain, [&](int64_t first, int64_t last) {
      widest([&] {
        for (int64_t lane = first; lane < last; ++lane) row(lane);
      });
    });
    return;
  }
  const int64_t groups = (lanes.stride + kBeside - 1) / kBeside;  // of those that begin in one run
  parallel_for(lanes.count / lanes.stride * groups, grain / kBeside + 1, [&](int64_t first, int64_t last) {
    widest([&] {
      for (int64_t i = first; i < last; ++i) {
        const int64_t start = i % groups * kBeside;
        beside(i / groups * lanes.stride + start, std::min(kBeside, lanes.stride - start));
      }
    });
  });
}

// Calls body(first row, how many) for all rows, of which up to kTogether go side by side.
template <class Body>
void for_rows_together(int64_t rows, int64_t grain, const Body& body) {
  parallel_for(rows, grain, [&](int64_t first, int64_t last) {
    widest([&] {
      for (int64_t row = first; row < last; row += kTogether) body(row, std::min(kTogether, last - row));
    });
  });
}

}  // namespace moonflow::cpu
