// Whether two pieces of memory have a byte in common.
#pragma once

#include <functional>

#include "engine/device.h"

namespace moonflow {

// Of any two: std::less orders pointers into different arrays too.
inline bool overlap(const Range& a, const Range& b) {
  const std::less<> before;
  const auto end = [](const Range& range) { return static_cast<const char*>(range.data) + range.bytes; };
  return before(static_cast<const char*>(a.data), end(b)) && before(static_cast<const char*>(b.data), end(a));
}

inline Range range_of(const Tensor& tensor) { return {tensor.data<char>(), tensor.bytes()}; }

}  // namespace moonflow
