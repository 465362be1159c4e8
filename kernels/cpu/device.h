// The CPU device, and what its kernels share: a parallel loop, and how many threads it takes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/default_floats.h"
#include "engine/device.h"
#include "engine/op.h"
#include "kernels/kept_threads.h"

namespace moonflow::cpu {

// Threads that a loop may use now: those of the device whose launch is running.
int threads();

// Calls body(first, last) over [0, count) with static, contiguous parts, one per thread; on the calling thread alone
// when there is less than `grain` per thread. The parts depend on the thread count, so what a body computes for one
// index must not depend on where its part begins. A body must not throw: OpenMP has no way out for an exception.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t parts = std::min<int64_t>(threads(), grain > 0 ? count / grain : count);
  if (parts <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    const DefaultFloats floats;  // a thread may be as the host has made it
    body(count * part / parts, count * (part + 1) / parts);
  }
}

// The calling thread's loops and primitives use this many threads while it lives. Cheap: it sets a number.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);

 private:
  const KeptThreads before_;
};

// About as many elements of simple work as pay for waking a second thread.
constexpr int64_t kGrain = 1 << 14;
// The same for a few instructions per element in the widest registers: from cache that is some 30 elements in a
// nanosecond, and OpenMP takes one or two microseconds to begin and end a loop.
constexpr int64_t kWideGrain = 4 * kGrain;

// Of a core's first-level cache of data; 32 KiB where the system does not say.
int64_t first_cache_bytes();

// As many threads as have `of_thread` of the work each, at least one.
inline int threads_for(double work, double of_thread) {
  return static_cast<int>(std::clamp<double>(work / of_thread, 1, threads()));
}

}  // namespace moonflow::cpu
