// Bytes that whoever decides when to collect garbage is told of, as long as they are held: what a plan or a prepared
// call has beside arrays, which count themselves.
#pragma once

#include <memory>
#include <utility>

#include "engine/tensor.h"

namespace moonflow {

class LiveBytes {
 public:
  LiveBytes() = default;
  // `memory` may be nullptr: then nobody is told.
  LiveBytes(std::shared_ptr<HostMemory> memory, int64_t bytes) : memory_(std::move(memory)), bytes_(bytes) {
    if (memory_) memory_->live_bytes.fetch_add(bytes_, std::memory_order_relaxed);
  }
  LiveBytes(LiveBytes&& other) noexcept : memory_(std::move(other.memory_)), bytes_(other.bytes_) {}
  LiveBytes& operator=(LiveBytes&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~LiveBytes() {
    if (memory_) memory_->live_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  }

 private:
  std::shared_ptr<HostMemory> memory_;
  int64_t bytes_ = 0;
};

}  // namespace moonflow
