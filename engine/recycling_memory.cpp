#include "engine/recycling_memory.h"

#include <algorithm>
#include <new>
#include <utility>

namespace moonflow {

namespace {

// AddressSanitizer has to see each use of what was given back, so there nothing is spare.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kRecycles = false;
#else
constexpr bool kRecycles = true;
#endif

// The lines of a block that may become spare, 0 for any other: in the second word before it, which HostMemory leaves
// free.
size_t& lines_of(void* block) { return static_cast<size_t*>(block)[-2]; }

}  // namespace

RecyclingMemory::~RecyclingMemory() {
  for (Spare* spare : spare_)
    while (spare != nullptr) HostMemory::release(std::exchange(spare, spare->next));
}

void* RecyclingMemory::allocate(size_t bytes) noexcept {
  const size_t lines = kRecycles && bytes <= kLargest ? (bytes + kAlignment - 1) / kAlignment : 0;
  if (lines > 0 && is_owner() && spare_[lines] != nullptr) {
    spare_bytes_ -= lines * kAlignment;
    return std::exchange(spare_[lines], spare_[lines]->next);
  }
  void* const block = HostMemory::allocate(std::max(bytes, lines * kAlignment));
  if (block != nullptr) lines_of(block) = lines;
  return block;
}

void RecyclingMemory::release(void* block) noexcept {
  const size_t lines = block != nullptr ? lines_of(block) : 0;
  if (lines == 0 || !is_owner() || spare_bytes_ + lines * kAlignment > kMostSpare) return HostMemory::release(block);
  spare_[lines] = new (block) Spare{spare_[lines]};
  spare_bytes_ += lines * kAlignment;
}

}  // namespace moonflow
