// A block of threads on a card, and the start of a kernel there. Only nvcc reads this.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/device.h"

#define MOONFLOW_DEVICE __device__
// Before a loop that must be unrolled, since it goes over an array that is to lie in registers.
#define MOONFLOW_UNROLL _Pragma("unroll")
// Before one whose reads are to be under way side by side, n at a time.
#define MOONFLOW_UNROLL_BY(n) MOONFLOW_PRAGMA(unroll n)
#define MOONFLOW_PRAGMA(words) _Pragma(#words)

namespace moonflow::cuda {

constexpr int kExchangeBytes = 32 * 16;

template <int kThreads>
class DeviceBlock {
 public:
  MOONFLOW_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
  MOONFLOW_DEVICE constexpr int threads() const { return kThreads; }
  MOONFLOW_DEVICE int64_t index() const { return blockIdx.x; }
  MOONFLOW_DEVICE int64_t count() const { return gridDim.x; }
  MOONFLOW_DEVICE void sync() const { __syncthreads(); }

  // The value of the thread whose place in the warp differs by the bits of `mask`. All threads of a warp take part.
  template <class T>
  MOONFLOW_DEVICE T shuffle_xor(T value, int mask) const {
    return by_words(value, [=](auto word) { return __shfl_xor_sync(0xffffffffu, word, mask); });
  }
  // The value of the thread `distance` places further on in the warp, the own one where there is none.
  template <class T>
  MOONFLOW_DEVICE T shuffle_down(T value, int distance) const {
    return by_words(value, [=](auto word) { return __shfl_down_sync(0xffffffffu, word, distance); });
  }

  // One bit for each thread of the warp, the first the lowest: whether its `value` holds. All threads take part.
  MOONFLOW_DEVICE unsigned ballot(bool value) const { return __ballot_sync(0xffffffffu, value); }

  // The dynamic shared memory of the launch.
  template <class T>
  MOONFLOW_DEVICE T* shared() const {
    extern __shared__ __align__(16) unsigned char memory[];
    return reinterpret_cast<T*>(memory);
  }
  // A place for one value of each warp, beside the shared memory of the launch.
  template <class T>
  MOONFLOW_DEVICE T* exchange() const {
    __shared__ __align__(16) unsigned char memory[kExchangeBytes];
    return reinterpret_cast<T*>(memory);
  }

  // Begins to copy into shared memory while the thread goes on: `bytes` of kBytes (4, 8 or 16, of which both addresses
  // are multiples), and zeros for the rest. All since the last end_copies() are one group.
  template <int kBytes>
  MOONFLOW_DEVICE void begin_copy(void* to, const void* from, int bytes) const {
#if __CUDA_ARCH__ >= 800
    const unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    if constexpr (kBytes == 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
    else
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(place), "l"(from), "n"(kBytes), "r"(bytes)
                   : "memory");
#else
    for (int i = 0; i < kBytes / 4; ++i)
      static_cast<unsigned*>(to)[i] = 4 * i < bytes ? static_cast<const unsigned*>(from)[i] : 0;
#endif
  }
  MOONFLOW_DEVICE void end_copies() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  // Until all but the last kGroups groups that this thread began are there, for this thread; for others after sync().
  template <int kGroups>
  MOONFLOW_DEVICE void wait_for_copies() const {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
  }

  // The old value; `at` becomes `value` where it was `expected`.
  MOONFLOW_DEVICE int compare_and_swap(int* at, int expected, int value) const {
    return atomicCAS(at, expected, value);
  }

  // Writes a word of staging. A host that finds it there finds everything that this block has written before its last
  // sync(), and that any kernel has before this one.
  MOONFLOW_DEVICE void publish(int* at, int value) const {
    __threadfence_system();
    *static_cast<volatile int*>(at) = value;
  }

 private:
  // A card exchanges numbers; a struct goes in pieces of four bytes.
  template <class T, class Exchange>
  MOONFLOW_DEVICE static T by_words(T value, Exchange exchange) {
    if constexpr (std::is_arithmetic_v<T>) {
      return exchange(value);
    } else {
      static_assert(sizeof(T) % sizeof(unsigned) == 0);
      unsigned words[sizeof(T) / sizeof(unsigned)];
      memcpy(words, &value, sizeof value);
      for (unsigned& word : words) word = exchange(word);
      memcpy(&value, words, sizeof value);
      return value;
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads) run_kernel(const __grid_constant__ K kernel) {
  kernel(DeviceBlock<K::kThreads>());
}

// Starts `blocks` blocks of K::kThreads threads with so many bytes of shared memory, in the order of the stream.
template <class K>
void launch(Stream& stream, int64_t blocks, const K& kernel, int64_t shared_bytes = 0) {
  // The compiler knows that shared() is aligned to 16 bytes, which the widest read takes. Where a kernel reads one
  // number and behind a branch those after it, it reads all 16 at once, and does not use what lies beyond the end.
  shared_bytes = (shared_bytes + 15) / 16 * 16;
  // What every kernel may have, beside exchange(). More is asked for.
  constexpr int64_t kUnasked = (48 << 10) - kExchangeBytes;
  if (shared_bytes > kUnasked) allow_shared(reinterpret_cast<const void*>(run_kernel<K>), shared_bytes);
  run_kernel<K><<<checked_blocks(blocks), K::kThreads, shared_bytes, native(stream)>>>(kernel);
  check_launch(stream);
}

}  // namespace moonflow::cuda
