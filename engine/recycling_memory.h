// Host memory for a session, which makes arrays and drops them all the time: a garbage collector drops hundreds in a
// row. What is given back is spare, and given out again.
//
// Small blocks, of the thread that the session belongs to, go without a question to malloc, which keeps fewer at hand.
// Larger ones, of any thread, go without one to the system, which malloc gives them back to, also those that it cuts
// from its heap once so many are free. It would clear each page anew and map it when it is first touched, which takes
// ten times as long as a simple op that fills it. Those beyond kLargest are served as by any host memory.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "engine/tensor.h"

namespace moonflow {

class RecyclingMemory final : public HostMemory {
 public:
  RecyclingMemory() = default;
  ~RecyclingMemory() override;

  void* allocate(size_t bytes) noexcept override;
  void release(void* block) noexcept override;
  // Gives the system the large blocks that are spare, for others in the process. Of any thread.
  void drop_spare() noexcept;

  static constexpr size_t kSmall = 1024;  // bytes of the largest that is small
  static constexpr size_t kLargest = size_t{64} << 20;
  // Bytes of all that are spare; of larger ones those dropped last stay. A collection comes after 64 MiB as they were
  // asked for, and all of them are to stay.
  static constexpr size_t kMostSmall = size_t{1} << 20, kMostLarge = size_t{80} << 20;

  // The small ones are the owner's to ask about.
  size_t spare_bytes() const;
  // Whose small blocks are recycled: at first those of the thread that made this. Called by the owner, which lets go
  // when it names another thread or none; then by whoever comes after it.
  void set_owner(std::thread::id owner) noexcept { owner_.store(owner, std::memory_order_relaxed); }

 private:
  // Spare blocks of one size are a list, linked through their first words. Small sizes are so many lines of kAlignment
  // bytes. Of large ones there are four between a power of two and the next: a block is as long as its size, but what
  // lies beyond the bytes asked for has no pages until somebody touches it.
  struct Spare {
    Spare* next;
  };
  static constexpr size_t kSmallSizes = kSmall / kAlignment, kLargeSizes = 4 * 16;
  struct Size {
    size_t bytes;
    size_t list;  // from 1 on, small ones first; 0 for a block that never becomes spare
  };
  static Size size_of(size_t bytes);
  static size_t bytes_of(size_t list);
  static bool is_small(size_t list) { return list <= kSmallSizes; }

  void* take(size_t list);
  void keep(void* block, size_t list);
  void drop_large(size_t wanted, size_t except);

  bool is_owner() const noexcept { return std::this_thread::get_id() == owner_.load(std::memory_order_relaxed); }

  std::atomic<std::thread::id> owner_{std::this_thread::get_id()};  // read by every thread that gives a block back
  std::array<Spare*, 1 + kSmallSizes + kLargeSizes> spare_{};  // of small sizes the owner's alone, so without a lock
  size_t small_bytes_ = 0;
  mutable std::mutex large_mutex_;
  size_t large_bytes_ = 0;
};

}  // namespace moonflow
