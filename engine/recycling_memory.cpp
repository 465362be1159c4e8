#include "engine/recycling_memory.h"

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

// The list of a block, in the second word before it, which HostMemory leaves free.
size_t& list_of(void* block) { return static_cast<size_t*>(block)[-2]; }

constexpr int kFirstOctave = 10;  // kSmall is 2 to that

}  // namespace

RecyclingMemory::Size RecyclingMemory::size_of(size_t bytes) {
  if (!kRecycles || bytes == 0 || bytes > kLargest) return {bytes, 0};
  if (bytes <= kSmall) {
    const size_t lines = (bytes + kAlignment - 1) / kAlignment;
    return {lines * kAlignment, lines};
  }
  int octave = kFirstOctave;
  while (size_t{2} << octave < bytes) ++octave;
  const size_t quarter = size_t{1} << (octave - 2), quarters = (bytes + quarter - 1) / quarter;  // 5 to 8
  return {quarters * quarter, kSmallSizes + 1 + 4 * static_cast<size_t>(octave - kFirstOctave) + (quarters - 5)};
}

size_t RecyclingMemory::bytes_of(size_t list) {
  if (is_small(list)) return list * kAlignment;
  const size_t large = list - kSmallSizes - 1;
  return (5 + large % 4) << (kFirstOctave + large / 4 - 2);
}

RecyclingMemory::~RecyclingMemory() {
  for (Spare* spare : spare_)
    while (spare != nullptr) HostMemory::release(std::exchange(spare, spare->next));
}

size_t RecyclingMemory::spare_bytes() const {
  const std::lock_guard<std::mutex> lock(large_mutex_);
  return small_bytes_ + large_bytes_;
}

// A spare block of the list, or nullptr. Like the next two, for who may touch it.
void* RecyclingMemory::take(size_t list) {
  if (spare_[list] == nullptr) return nullptr;
  (is_small(list) ? small_bytes_ : large_bytes_) -= bytes_of(list);
  return std::exchange(spare_[list], spare_[list]->next);
}

void RecyclingMemory::keep(void* block, size_t list) {
  spare_[list] = new (block) Spare{spare_[list]};
  (is_small(list) ? small_bytes_ : large_bytes_) += bytes_of(list);
}

// Gives large blocks of other lists to the system until there is room for so many bytes.
void RecyclingMemory::drop_large(size_t wanted, size_t except) {
  for (size_t list = kSmallSizes + 1; list < spare_.size(); ++list) {
    while (list != except && spare_[list] != nullptr && large_bytes_ + wanted > kMostLarge)
      HostMemory::release(take(list));
  }
}

void* RecyclingMemory::allocate(size_t bytes) noexcept {
  const auto [size, list] = size_of(bytes);
  void* block = nullptr;
  if (list != 0 && is_small(list)) {
    if (is_owner()) block = take(list);
  } else if (list != 0) {
    const std::lock_guard<std::mutex> lock(large_mutex_);
    block = take(list);
  }
  if (block != nullptr) return block;
  block = HostMemory::allocate(size);
  if (block == nullptr) {  // what is spare may be what is missing
    drop_spare();
    block = HostMemory::allocate(size);
  }
  if (block != nullptr) list_of(block) = list;
  return block;
}

void RecyclingMemory::drop_spare() noexcept {
  const std::lock_guard<std::mutex> lock(large_mutex_);
  drop_large(kMostLarge, 0);
}

void RecyclingMemory::release(void* block) noexcept {
  const size_t list = block != nullptr ? list_of(block) : 0;
  if (list != 0 && is_small(list)) {
    if (is_owner() && small_bytes_ + bytes_of(list) <= kMostSmall) return keep(block, list);
  } else if (list != 0) {
    const std::lock_guard<std::mutex> lock(large_mutex_);
    drop_large(bytes_of(list), list);
    if (large_bytes_ + bytes_of(list) <= kMostLarge) return keep(block, list);
  }
  HostMemory::release(block);
}

}  // namespace moonflow
