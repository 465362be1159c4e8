// One lane of a value for each team of threads, which is a thread, a warp or a block, whatever fits the lanes. The work
// on a lane is a struct of plain data with
//
//   template <class Team>
//   MOONFLOW_DEVICE void operator()(const Team& team, int64_t lane, int64_t start, int64_t n, int64_t stride) const;
//
// which each thread of the team runs; element i of the lane lies at start + i * stride.
#pragma once

#include "kernels/cuda/block.h"
#include "kernels/lanes.h"

namespace moonflow::cuda {

template <class Block, int kTeam>
class Team {
 public:
  explicit MOONFLOW_DEVICE Team(const Block& block) : block(block) {}

  static constexpr int size() { return kTeam; }
  MOONFLOW_DEVICE int thread() const { return block.thread() % kTeam; }
  // `combine` over the values of all threads, the same in each.
  template <class T, class Combine>
  MOONFLOW_DEVICE T over(T value, Combine combine) const {
    if constexpr (kTeam == 1) return value;
    if constexpr (kTeam == kWarp) return over_warp(block, value, combine);
    if constexpr (kTeam > kWarp) return over_block(block, value, combine);
  }

  // The sum of f(i) for i in [0, n), in double as on the CPU.
  template <class F>
  MOONFLOW_DEVICE double sum(int64_t n, F f) const {
    double sum = 0;
    for (int64_t i = thread(); i < n; i += kTeam) sum += f(i);
    return over(sum, Sum());
  }

  const Block& block;
};

template <class F, int kTeam>
struct ForEachLane {
  static constexpr int kThreads = 256;
  F f;
  Lanes lanes;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t lane = block.index() * (kThreads / kTeam) + block.thread() / kTeam;
    if (lane < lanes.count) f(Team<Block, kTeam>(block), lane, lanes.start(lane), lanes.n, lanes.stride);
  }
};

template <int kTeam, class F>
void for_each_lane(Stream& stream, const Lanes& lanes, const F& f) {
  using Kernel = ForEachLane<F, kTeam>;
  constexpr int64_t kTeams = Kernel::kThreads / kTeam;
  if (lanes.count > 0) launch(stream, (lanes.count + kTeams - 1) / kTeams, Kernel{f, lanes});
}

template <class F>
void for_each_lane(Stream& stream, const Lanes& lanes, const F& f) {
  // A lane for each thread where two of three hold: neighbouring threads have neighbouring lanes and read whole lines,
  // a lane is no work for a warp, there are lanes enough.
  const int reasons = (lanes.stride > 1) + (lanes.n <= 16) + (lanes.count >= 4096);
  if (reasons >= 2) return for_each_lane<1>(stream, lanes, f);
  if (lanes.n <= 2048) return for_each_lane<kWarp>(stream, lanes, f);
  for_each_lane<ForEachLane<F, 1>::kThreads>(stream, lanes, f);
}

}  // namespace moonflow::cuda
