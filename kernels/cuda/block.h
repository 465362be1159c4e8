// How our CUDA kernels are written and started. A kernel is a struct of plain data with a call operator over a block of
// threads, which each of its threads runs:
//
//   struct Scale {
//     static constexpr int kThreads = 256;
//     float* x;
//     float factor;
//     template <class Block>
//     MOONFLOW_DEVICE void operator()(const Block& block) const {
//       x[block.index() * kThreads + block.thread()] *= factor;
//     }
//   };
//   launch(stream, blocks, Scale{x, 2});
//
// nvcc compiles it for the card. Any other compiler compiles the same source for the simulated device
// (kernels/simulated/), where the threads of a block are fibers, so that kernels are checked on machines without a
// card.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/device.h"

#ifdef __CUDACC__
#include "kernels/cuda/device_block.h"
#else
#include "kernels/simulated/block.h"
#endif

namespace moonflow::cuda {

constexpr int kWarp = 32;
// Multiprocessors of the cards that work is cut for, H100 and H200; for another it is cut less evenly.
constexpr int kProcessors = 132;
// That the arguments of a kernel may have: 4 KiB on every card, less what else a launch puts there.
constexpr int kArgumentBytes = 4000;

// ---- one value per element -----------------------------------------------------------------------------------

// Calls f(i) for i in [0, count), each in a thread of its own as long as there are enough.
template <class F>
struct ForEach {
  static constexpr int kThreads = 256;
  F f;
  int64_t count;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    for (int64_t i = block.index() * kThreads + block.thread(); i < count; i += block.count() * kThreads) {
      if constexpr (std::is_invocable_v<const F&, const Block&, int64_t>)
        f(block, i);
      else
        f(i);
    }
  }
};

// `f` is a struct of plain data with MOONFLOW_DEVICE void operator()(int64_t i) const, or with the block before i.
template <class F>
void for_each(Stream& stream, int64_t count, const F& f) {
  constexpr int64_t kMostBlocks =
      kProcessors * 16;  // more find no room on any card: each thread then takes several elements
  const int64_t blocks = (count + ForEach<F>::kThreads - 1) / ForEach<F>::kThreads;
  if (count > 0) launch(stream, blocks < kMostBlocks ? blocks : kMostBlocks, ForEach<F>{f, count});
}

// ---- one value per block -------------------------------------------------------------------------------------

struct Sum {
  template <class T>
  MOONFLOW_DEVICE T operator()(T a, T b) const {
    return a + b;
  }
};
// A NaN on either side wins.
struct Largest {
  template <class T>
  MOONFLOW_DEVICE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800  // which have an instruction for it
  MOONFLOW_DEVICE float operator()(float a, float b) const {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
#endif
};

// `combine` over the values of all threads of a warp, the same in each thread, in an order that does not change.
template <class Block, class T, class Combine>
MOONFLOW_DEVICE T over_warp(const Block& block, T value, Combine combine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value = combine(value, block.shuffle_xor(value, distance));
  return value;
}

// The same over all threads of a block, whose number is a multiple of 32 and at most 1024. All threads must take part.
template <class Block, class T, class Combine>
MOONFLOW_DEVICE T over_block(const Block& block, T value, Combine combine) {
  value = over_warp(block, value, combine);
  T* const of_warps = block.template exchange<T>();
  if (block.thread() % kWarp == 0) of_warps[block.thread() / kWarp] = value;
  block.sync();
  T result = of_warps[0];
  for (int warp = 1; warp < block.threads() / kWarp; ++warp) result = combine(result, of_warps[warp]);
  block.sync();  // before the next one writes there
  return result;
}

}  // namespace moonflow::cuda
