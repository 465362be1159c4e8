// Elements that are moved by their size and not looked at.
#pragma once

#include <cstdint>
#include <type_traits>

namespace moonflow::cuda {

struct alignas(16) Sixteen {
  uint64_t first, second;
};

// A type of so many bytes: 1, 2, 4, 8 or 16.
template <int kBytes>
using Unit = std::conditional_t<
    kBytes == 1, uint8_t,
    std::conditional_t<kBytes == 2, uint16_t,
                       std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 8, uint64_t, Sixteen>>>>;

// Calls f with a zero of the unit of an element: of 1, 2, 4 or 8 bytes.
template <class F>
decltype(auto) visit_element(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

// The same for what may also be several elements: 16 bytes too.
template <class F>
decltype(auto) visit_bytes(int64_t bytes, const F& f) {
  if (bytes == 16) return f(Sixteen{});
  return visit_element(bytes, f);
}

}  // namespace moonflow::cuda
