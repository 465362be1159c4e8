#include "kernels/cuda/run.h"

#include "kernels/cuda/units.h"

namespace moonflow::cuda {
namespace {

constexpr int kAtOnce = 4;

// What one of so many threads does. It reads several units before it writes the first, since a read takes a microsecond
// over the bus.
MOONFLOW_DEVICE void copy_units(void* to, const void* from, int64_t bytes, int64_t thread, int64_t threads) {
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Sixteen));
  for (int64_t first = thread; first < units; first += kAtOnce * threads) {
    Sixteen read[kAtOnce];
    MOONFLOW_UNROLL
    for (int n = 0; n < kAtOnce; ++n)
      if (first + n * threads < units) read[n] = static_cast<const Sixteen*>(from)[first + n * threads];
    MOONFLOW_UNROLL
    for (int n = 0; n < kAtOnce; ++n)
      if (first + n * threads < units) static_cast<Sixteen*>(to)[first + n * threads] = read[n];
  }
  const int64_t rest = units * static_cast<int64_t>(sizeof(Sixteen)) + thread;
  if (rest < bytes) static_cast<char*>(to)[rest] = static_cast<const char*>(from)[rest];
}

struct CopySmall {
  static constexpr int kThreads = 256;
  void* to;
  const void* from;
  int64_t bytes;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    copy_units(to, from, bytes, block.index() * kThreads + block.thread(), block.count() * kThreads);
  }
};

// One block, whose threads can wait for each other before the flag is raised.
template <int kBlockThreads>
struct EndRun {
  static constexpr int kThreads = kBlockThreads;
  FaultNote* note;
  Fault* fault;
  void* to;
  const void* from;
  int64_t bytes;
  int* flag;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    copy_units(to, from, bytes, block.thread(), kThreads);
    if (fault && block.thread() == 0) {
      *fault = note->found ? note->fault : Fault{-1, 0, 0};
      note->found = 0;
    }
    if (!flag) return;
    block.sync();
    if (block.thread() == 0) block.publish(flag, 1);
  }
};

}  // namespace

void copy_small(Stream& stream, void* to, const void* from, int64_t bytes) {
  constexpr int64_t kBytesOfBlock = CopySmall::kThreads * static_cast<int64_t>(sizeof(Sixteen));
  if (bytes > 0) launch(stream, (bytes + kBytesOfBlock - 1) / kBytesOfBlock, CopySmall{to, from, bytes});
}

void end_run(Stream& stream, FaultNote* note, const RunEnd& end, int* flag) {
  // A loss and a few results are not worth more than a warp.
  if (end.bytes <= kWarp * kAtOnce * static_cast<int64_t>(sizeof(Sixteen)))
    launch(stream, 1, EndRun<kWarp>{note, end.fault, end.to, end.from, end.bytes, flag});
  else
    launch(stream, 1, EndRun<256>{note, end.fault, end.to, end.from, end.bytes, flag});
}

}  // namespace moonflow::cuda
