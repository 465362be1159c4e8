// A block of threads of the simulated device, and the start of a kernel there. Each thread is a fiber. A barrier waits
// for all threads of the block that have not ended, an exchange for those of the warp, and between two such points the
// threads take their turns in a shuffled order. Shared memory begins poisoned.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <typeinfo>
#include <vector>

#include "engine/device.h"
#include "engine/error.h"

#define MOONFLOW_DEVICE
#define MOONFLOW_UNROLL
#define MOONFLOW_UNROLL_BY(n)

namespace moonflow::cuda {

namespace simulated {

constexpr int kMostThreads = 1024;                // of a block
constexpr int64_t kMostSharedBytes = 227 * 1024;  // of a block, as on cards of capability 9.0
constexpr int kMostExchangedBytes = 16;           // by a thread at a time

// The block that is running, as its threads see it.
class Threads {
 public:
  int thread = 0;     // whose turn it is
  int64_t index = 0;  // of the block
  int64_t count = 1;  // of blocks
  unsigned char* shared = nullptr;
  alignas(16) unsigned char exchange[32 * kMostExchangedBytes];
  // What each thread gives to the others of its warp. No thread can be more than one exchange ahead of another.
  alignas(16) unsigned char given[2][kMostThreads][kMostExchangedBytes];
  uint8_t exchanges[kMostThreads];  // by thread: how often it took part, as far as it matters
  int64_t meetings = 0;             // of the block so far

  virtual void meet_block() = 0;
  virtual void meet_warp() = 0;

 protected:
  ~Threads() = default;
};

struct Grid {
  std::string kernel;  // its name, for people
  int64_t blocks;
  int threads;  // of a block
  int64_t shared_bytes;
  std::function<void(Threads&)> body;  // what each thread does
};

std::string kernel_name(const std::type_info& kernel);

// Enqueues a grid.
void enqueue(Stream& stream, Grid grid);
// Enqueues what a library would do: `work` reads and writes the memory of the device.
void enqueue(Stream& stream, std::string name, std::function<void()> work);

}  // namespace simulated

template <int kThreads>
class SimulatedBlock {
 public:
  explicit SimulatedBlock(simulated::Threads& threads) : threads_(threads), thread_(threads.thread) {}

  int thread() const { return thread_; }
  constexpr int threads() const { return kThreads; }
  int64_t index() const { return threads_.index; }
  int64_t count() const { return threads_.count; }
  void sync() const { threads_.meet_block(); }

  template <class T>
  T shuffle_xor(T value, int mask) const {
    return exchanged(value, thread_ ^ mask);
  }
  template <class T>
  T shuffle_down(T value, int distance) const {
    const int from = thread_ + distance;
    return exchanged(value, from / 32 == thread_ / 32 ? from : thread_);
  }

  unsigned ballot(bool value) const {
    const auto& given = give(value);
    unsigned bits = 0;
    // Shifting the truth itself, in place of a 1 where it holds, GCC 12 gets wrong when it also looks for bad shifts.
    for (int lane = 0; lane < 32; ++lane)
      if (given[thread_ / 32 * 32 + lane][0] == 1) bits |= 1u << lane;  // one that has ended gives neither 1 nor 0
    return bits;
  }

  template <class T>
  T* shared() const {
    return reinterpret_cast<T*>(threads_.shared);
  }
  template <class T>
  T* exchange() const {
    return reinterpret_cast<T*>(threads_.exchange);
  }

  // What is copied comes at once or no earlier than the thread waits for it, by turns: on a card at some time between.
  template <int kBytes>
  void begin_copy(void* to, const void* from, int bytes) const {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
    for (const void* const place : {static_cast<const void*>(to), from})
      require(reinterpret_cast<uintptr_t>(place) % kBytes == 0, ErrorCode::Internal, "a copy of ", kBytes,
              " bytes begins at no multiple of that");
    const Copy copy{to, from, bytes, kBytes, groups_};
    if ((threads_.index + ++begun_) % 2 == 0) return copy.run();
    copies_.push_back(copy);
  }
  void end_copies() const { ++groups_; }
  template <int kGroups>
  void wait_for_copies() const {
    size_t done = 0;
    for (; done < copies_.size() && copies_[done].group < groups_ - kGroups; ++done) copies_[done].run();
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<int64_t>(done));
  }

  int compare_and_swap(int* at, int expected, int value) const {
    const int old = *at;
    if (old == expected) *at = value;
    return old;
  }

  // The host never sees a word before the kernel has ended, so what is missing before it is told here.
  void publish(int* at, int value) const {
    require(
        threads_.meetings > 0, ErrorCode::Internal,
        "a thread publishes a word before its block has met, and a host may find the word and not what others write");
    *at = value;
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    int bytes, room, group;

    void run() const {
      if (bytes > 0) std::memcpy(to, from, bytes);
      std::memset(static_cast<char*>(to) + bytes, 0, room - bytes);
    }
  };

  // What the threads of the block give, once those of the warp have.
  template <class T>
  auto& give(const T& value) const {
    static_assert(sizeof(T) <= simulated::kMostExchangedBytes);
    auto& given = threads_.given[threads_.exchanges[thread_]++ % 2];
    std::memcpy(given[thread_], &value, sizeof value);
    threads_.meet_warp();
    return given;
  }
  // What the thread `from` gives.
  template <class T>
  T exchanged(T value, int from) const {
    std::memcpy(&value, give(value)[from], sizeof value);
    return value;
  }

  simulated::Threads& threads_;
  const int thread_;
  // Of this thread: those that it has not waited for, and how many groups have ended.
  mutable std::vector<Copy> copies_;
  mutable int groups_ = 0, begun_ = 0;
};

// Starts `blocks` blocks of K::kThreads threads with so many bytes of shared memory, in the order of the stream.
template <class K>
void launch(Stream& stream, int64_t blocks, const K& kernel, int64_t shared_bytes = 0) {
  const auto body = [kernel](simulated::Threads& threads) { kernel(SimulatedBlock<K::kThreads>(threads)); };
  simulated::enqueue(stream, {simulated::kernel_name(typeid(K)), blocks, K::kThreads, shared_bytes, body});
}

}  // namespace moonflow::cuda
