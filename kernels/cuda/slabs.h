// Memory that is slow to get and give back, kept in slabs and handed out in pieces: pinned memory of the host takes a
// system call and some milliseconds. Any thread may call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>

namespace moonflow::cuda {

class Slabs {
 public:
  // `allocate` gives aligned memory or nullptr; `release` takes it back.
  Slabs(std::function<void*(int64_t bytes)> allocate, std::function<void(void*)> release);
  ~Slabs();
  Slabs(const Slabs&) = delete;

  // At a multiple of 256 bytes; nullptr where there is no memory.
  void* take(int64_t bytes);
  void give(void* memory) noexcept;
  bool has(const void* memory) const;  // is it within a slab?

 private:
  struct Piece {
    int64_t bytes;
    bool free;
    bool first;  // of its slab
  };
  using Pieces = std::map<const char*, Piece>;  // by address; those of a slab lie side by side and fill it
  bool is_whole_slab(Pieces::iterator piece);

  const std::function<void*(int64_t)> allocate_;
  const std::function<void(void*)> release_;
  mutable std::mutex mutex_;
  Pieces pieces_;
};

}  // namespace moonflow::cuda
