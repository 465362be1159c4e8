// A block of threads of the simulated device: each thread is a fiber, and they take turns in a shuffled order at every
// point where threads of a card could: a barrier, an exchange between the threads of a warp. Shared memory begins
// poisoned.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>

#include "engine/device.h"

#define MOONFLOW_DEVICE

namespace moonflow::cuda {

namespace simulated {

// The threads of the block that is running. A card has at most 227 KiB of shared memory for a block.
class Threads {
 public:
  int thread = 0;     // whose turn it is
  int64_t index = 0;  // of the block
  int64_t count = 1;  // of blocks
  unsigned char* shared = nullptr;
  alignas(16) unsigned char exchange[32 * 16];
  alignas(16) unsigned char values[1024][16];  // what each thread gives to the others of its warp

  // Lets the others come to the same point.
  virtual void meet() = 0;

 protected:
  ~Threads() = default;
};

// Enqueues `blocks` blocks of `threads` threads; each thread calls body(its block) once.
void enqueue(Stream& stream, int64_t blocks, int threads, int64_t shared_bytes, std::function<void(Threads&)> body);

}  // namespace simulated

template <int kThreads>
class SimulatedBlock {
 public:
  explicit SimulatedBlock(simulated::Threads& threads) : threads_(threads), thread_(threads.thread) {}

  int thread() const { return thread_; }
  constexpr int threads() const { return kThreads; }
  int64_t index() const { return threads_.index; }
  int64_t count() const { return threads_.count; }
  void sync() const { threads_.meet(); }

  template <class T>
  T shuffle_xor(T value, int mask) const {
    return given(value, thread_ ^ mask);
  }
  template <class T>
  T shuffle_down(T value, int distance) const {
    const int from = thread_ + distance;
    return given(value, from / 32 == thread_ / 32 ? from : thread_);
  }

  template <class T>
  T* shared() const {
    return reinterpret_cast<T*>(threads_.shared);
  }
  template <class T>
  T* exchange() const {
    return reinterpret_cast<T*>(threads_.exchange);
  }

  int compare_and_swap(int* at, int expected, int value) const {
    const int old = *at;
    if (old == expected) *at = value;
    return old;
  }

 private:
  // What the thread `from` gives.
  template <class T>
  T given(T value, int from) const {
    static_assert(sizeof(T) <= 16);
    std::memcpy(threads_.values[thread_], &value, sizeof value);
    threads_.meet();
    std::memcpy(&value, threads_.values[from], sizeof value);
    threads_.meet();
    return value;
  }

  simulated::Threads& threads_;
  const int thread_;
};

template <class K>
void launch(Stream& stream, int64_t blocks, const K& kernel, int64_t shared_bytes = 0) {
  simulated::enqueue(stream, blocks, K::kThreads, shared_bytes,
                     [kernel](simulated::Threads& threads) { kernel(SimulatedBlock<K::kThreads>(threads)); });
}

}  // namespace moonflow::cuda
