// Host memory for the thread of a session, which makes small arrays and drops them all the time. What it gives back
// there is spare, and given out again without a question to malloc: a garbage collector drops hundreds of arrays in a
// row, more than malloc keeps at hand. Other threads, and large blocks, are served as by any host memory.
#pragma once

#include <array>
#include <thread>

#include "engine/tensor.h"

namespace moonflow {

class RecyclingMemory final : public HostMemory {
 public:
  RecyclingMemory() = default;
  ~RecyclingMemory() override;

  void* allocate(size_t bytes) noexcept override;
  void release(void* block) noexcept override;

  static constexpr size_t kLargest = 1024;               // bytes of a block that may become spare
  static constexpr size_t kMostSpare = size_t{1} << 20;  // bytes of all of them

  size_t spare_bytes() const { return spare_bytes_; }  // the owner's to ask

 private:
  // Blocks of so many lines of kAlignment bytes each form a list, linked through their first words.
  static constexpr size_t kSizes = kLargest / kAlignment;
  struct Spare {
    Spare* next;
  };

  // Only its thread touches the lists, so they need no lock.
  bool is_owner() const noexcept { return std::this_thread::get_id() == owner_; }

  const std::thread::id owner_ = std::this_thread::get_id();
  std::array<Spare*, kSizes + 1> spare_{};  // by lines
  size_t spare_bytes_ = 0;
};

}  // namespace moonflow
