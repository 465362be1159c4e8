#include "bindings/handle.h"

#include <pthread.h>
#include <sched.h>

#include <mutex>
#include <new>

namespace moonflow::host {

namespace {

static_assert(sizeof(uintptr_t) == 8, "a handle holds a slot and a generation");

constexpr uint32_t kChunk = 256;        // slots
constexpr uint32_t kMaxChunks = 16384;  // four million open handles
constexpr uint64_t kGeneration = uint64_t{1} << 32;

// Readers find a slot without a lock: chunks appear once and stay.
struct Table {
  std::atomic<Slot*> chunks[kMaxChunks];
  std::mutex mutex;  // guards what follows
  uint32_t slots;
  uint32_t free;  // 1 + the index of the first free slot; 0: none
};
Table table;
static_assert(std::is_trivially_destructible_v<Table>);

// A thread that holds the mutex while another one forks would leave it locked in the child for good.
[[maybe_unused]] const int guards_forks =
    pthread_atfork([] { table.mutex.lock(); }, [] { table.mutex.unlock(); }, [] { table.mutex.unlock(); });

uint32_t generation_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }

Slot* slot_at(uint32_t index) {
  if (index >= kChunk * kMaxChunks) return nullptr;
  Slot* const chunk = table.chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk ? chunk + index % kChunk : nullptr;
}

Slot* slot_of(uint64_t handle) {
  const uint32_t number = static_cast<uint32_t>(handle);
  return number == 0 ? nullptr : slot_at(number - 1);
}

}  // namespace

uint64_t open_slot(Kind kind, void* object, void (*destroy)(void*)) noexcept {
  const std::lock_guard<std::mutex> lock(table.mutex);
  Slot* slot = nullptr;
  if (table.free != 0) {
    slot = slot_at(table.free - 1);
    table.free = slot->next_free;
  } else {
    if (table.slots == kChunk * kMaxChunks) return 0;
    std::atomic<Slot*>& chunk = table.chunks[table.slots / kChunk];
    if (!chunk.load(std::memory_order_relaxed)) {
      Slot* const fresh = new (std::nothrow) Slot[kChunk];
      if (!fresh) return 0;
      chunk.store(fresh, std::memory_order_release);
    }
    slot = slot_at(table.slots);
    slot->index = table.slots++;
  }
  slot->kind = kind;
  slot->object = object;
  slot->destroy = destroy;
  const uint32_t generation = generation_of(slot->state.load(std::memory_order_relaxed)) + 1;
  slot->state.store(generation * kGeneration + 1, std::memory_order_release);
  return generation * kGeneration + slot->index + 1;
}

Slot* pin(uint64_t handle, Kind kind) noexcept {
  Slot* const slot = slot_of(handle);
  if (!slot) return nullptr;
  uint64_t state = slot->state.load(std::memory_order_acquire);
  do {
    if (generation_of(state) != generation_of(handle) || generation_of(handle) % 2 == 0) return nullptr;
  } while (!slot->state.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel));
  if (slot->kind == kind) return slot;
  unpin(slot);
  return nullptr;
}

void unpin(Slot* slot) noexcept {
  const uint64_t before = slot->state.fetch_sub(1, std::memory_order_acq_rel);
  if (static_cast<uint32_t>(before) != 1) return;
  slot->destroy(slot->object);
  const std::lock_guard<std::mutex> lock(table.mutex);
  slot->next_free = table.free;
  table.free = slot->index + 1;
}

bool close_slot(uint64_t handle, Kind kind, bool wait) noexcept {
  Slot* const slot = pin(handle, kind);
  if (!slot) return false;
  uint64_t state = slot->state.load(std::memory_order_acquire);
  do {
    if (generation_of(state) != generation_of(handle)) {  // another thread was first
      unpin(slot);
      return false;
    }
  } while (!slot->state.compare_exchange_weak(state, state + kGeneration, std::memory_order_acq_rel));
  // From here on nobody new; left are this pin, the open handle's own, and those of others.
  while (wait && static_cast<uint32_t>(slot->state.load(std::memory_order_acquire)) > 2) sched_yield();
  unpin(slot);
  unpin(slot);
  return true;
}

}  // namespace moonflow::host
