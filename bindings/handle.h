// Handles of the C ABI. A handle names a slot and the slot's generation, so that NULL, a closed handle and a handle of
// another kind are recognised without touching memory that may be gone. The table of slots is the one object of the
// library that belongs to the process: a handle means nothing without it. It has no destructor and never shrinks.
//
// An object is destroyed when its handle is closed and nobody has it pinned. Pinning is a few atomic operations: no
// lock, no allocation, fit for a real-time thread and for a signal handler.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

namespace moonflow::host {

enum class Kind : uint32_t { Session = 1, Job, Prepared, Bytes, Status };

struct Slot {
  // High half: the generation, odd while the handle is open. Low half: pins, and one for an open handle.
  std::atomic<uint64_t> state{0};
  Kind kind{};
  void* object = nullptr;
  void (*destroy)(void*) = nullptr;
  uint32_t index = 0;
  uint32_t next_free = 0;
};

// 0 when there is no memory for one more slot.
uint64_t open_slot(Kind kind, void* object, void (*destroy)(void*)) noexcept;
// The slot with one pin more, or nullptr when the handle is not open or not of this kind.
Slot* pin(uint64_t handle, Kind kind) noexcept;
void unpin(Slot* slot) noexcept;
// Closes the handle, and with `wait` returns only once nobody has it pinned. False when it was not open.
bool close_slot(uint64_t handle, Kind kind, bool wait) noexcept;

template <class T>
constexpr Kind kKindOf = T::kKind;

// The object behind a handle, kept alive while this lives; empty when there is none.
template <class T, class Handle>
class Pinned {
 public:
  explicit Pinned(const Handle* handle) noexcept : slot_(pin(reinterpret_cast<uintptr_t>(handle), kKindOf<T>)) {}
  ~Pinned() {
    if (slot_) unpin(slot_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  explicit operator bool() const { return slot_ != nullptr; }
  T* operator->() const { return static_cast<T*>(slot_->object); }
  T& operator*() const { return *static_cast<T*>(slot_->object); }

 private:
  Slot* slot_;
};

// A handle that owns the object.
template <class Handle, class T>
Handle* make_handle(std::unique_ptr<T> object) {
  const uint64_t handle = open_slot(kKindOf<T>, object.get(), [](void* owned) { delete static_cast<T*>(owned); });
  if (handle == 0) throw std::bad_alloc();
  object.release();
  return reinterpret_cast<Handle*>(static_cast<uintptr_t>(handle));
}

template <class T, class Handle>
bool close_handle(const Handle* handle, bool wait = false) noexcept {
  return close_slot(reinterpret_cast<uintptr_t>(handle), kKindOf<T>, wait);
}

}  // namespace moonflow::host
