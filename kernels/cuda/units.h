// Elements that are moved by their size and not looked at.
#pragma once

#include <cstdint>

namespace moonflow::cuda {

struct alignas(16) Sixteen {
  uint64_t first, second;
};

// Calls f with a zero of a type that has so many bytes: 1, 2, 4, 8 or 16.
template <class F>
decltype(auto) visit_bytes(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Sixteen{});
  }
}

}  // namespace moonflow::cuda
