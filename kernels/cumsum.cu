// cumsum on CUDA: a lane for each thread where they are short or many lie side by side, else for each block. Sums are
// the same from run to run.
#include "kernels/cumsum.h"

#include "kernels/cuda/block.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct SumOfThread {
  using Acc = CumulativeSum<T>;
  InOrder order;
  Lanes lanes;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t lane) const {
    const int64_t start = lanes.start(lane);
    Acc sum = 0;
    for (int64_t i = 0; i < order.n; ++i) {
      const int64_t at = start + order.at(i);
      const Acc before = sum;
      sum += static_cast<Acc>(x[at]);
      out[at] = static_cast<T>(order.exclusive ? before : sum);
    }
  }
};

// The lane goes by in strips, of which each thread has a run of neighbours. The last threads have the first runs:
// those after a thread are then what comes before it, which is what a warp can add up.
template <class T>
struct SumOfBlock {
  using Acc = CumulativeSum<T>;
  static constexpr int kThreads = 256, kRun = 4, kStrip = kThreads * kRun, kWarps = kThreads / kWarp;
  InOrder order;
  Lanes lanes;
  const T* x;
  T* out;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t start = lanes.start(block.index());
    const int thread = block.thread(), lane = thread % kWarp, warp = thread / kWarp;
    Acc before_strip = 0;
    for (int64_t strip = 0; strip < order.n; strip += kStrip) {
      const int64_t first = strip + (kThreads - 1 - thread) * kRun;
      Acc values[kRun], of_run = 0;
      MOONFLOW_UNROLL
      for (int i = 0; i < kRun; ++i) {
        values[i] = first + i < order.n ? static_cast<Acc>(x[start + order.at(first + i)]) : Acc(0);
        of_run += values[i];
      }
      Acc from_here = of_run;  // with the runs of the threads of this warp that come before
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const Acc further = block.shuffle_down(from_here, distance);
        if (lane + distance < kWarp) from_here += further;
      }
      const Acc next = block.shuffle_down(from_here, 1);
      Acc sum = before_strip + (lane + 1 < kWarp ? next : Acc(0));
      Acc* const of_warps = block.template exchange<Acc>();
      if (lane == 0) of_warps[warp] = from_here;
      block.sync();
      for (int other = kWarps - 1; other >= 0; --other) {
        if (other > warp) sum += of_warps[other];
        before_strip += of_warps[other];
      }
      block.sync();  // before the next strip writes there
      MOONFLOW_UNROLL
      for (int i = 0; i < kRun; ++i) {
        const Acc before = sum;
        sum += values[i];
        if (first + i < order.n) out[start + order.at(first + i)] = static_cast<T>(order.exclusive ? before : sum);
      }
    }
  }
};

Launch prepare_cumsum(KernelCall& call) {
  const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
  const InOrder order = in_order(lanes, call.attrs);
  return visit_stored(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const T* const x = at.input<T>(0);
      T* const out = at.output<T>(0);
      if (lanes.n <= 64 || (lanes.stride >= kWarp && lanes.count >= 4096))
        for_each(at.stream, lanes.n > 0 ? lanes.count : 0, SumOfThread<T>{order, lanes, x, out});
      else if (lanes.count > 0)
        launch(at.stream, lanes.count, SumOfBlock<T>{order, lanes, x, out});
    };
  });
}

}  // namespace

void add_cumsum(Kernels& kernels) { kernels["cumsum"] = {{prepare_cumsum}, true}; }

}  // namespace moonflow::cuda
