// The CPU device, and what its kernels share: a parallel loop, and the way between layouts and oneDNN descriptors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <dnnl.hpp>

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

// ---- oneDNN --------------------------------------------------------------------------------------------------

// A device for real time has none: they allocate when they run. There this throws dnnl::error, as primitives do of what
// oneDNN has no kernel for.
const dnnl::engine& dnnl_engine(Device& device);
bool has_primitives(Device& device);
dnnl::stream& dnnl_stream(Stream& stream);

// The attributes every primitive of ours is made with: oneDNN's own scratchpad belongs to the thread that made the
// primitive, and a plan is made on one thread and run on another. Ask for the bytes with scratchpad_desc().
dnnl::primitive_attr user_scratchpad();

// A primitive with its arguments named once, so that a launch only sets addresses and allocates nothing.
// A plan has one run at a time, so the arguments may live in the launch. A primitive divides its work among the threads
// that there are when it is made; this is made with it, and has it run with as many.
class Bound {
 public:
  Bound(const dnnl::primitive& primitive, Device& device)
      : primitive_(primitive), engine_(dnnl_engine(device)), threads_(threads()) {}

  // The index for set(); `argument` is DNNL_ARG_SRC and the like.
  int add(int argument, const dnnl::memory::desc& desc);
  void set(int index, void* data) { memories_[index].set_data_handle(data); }
  void execute(Stream& stream) const;
  // The same, and whether an operation in it, or in the team's other threads since they were last asked, was invalid:
  // each thread has IEEE 754's flag of that. A maximum or minimum that drops a NaN raises it.
  bool execute_noting_invalid(Stream& stream) const;

 private:
  template <class Run>
  void with_threads(const Run& run) const;

  dnnl::primitive primitive_;
  dnnl::engine engine_;
  int threads_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

}  // namespace moonflow::cpu
