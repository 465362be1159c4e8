// What cumsum means on every device: where an element comes in the order of its lane, and what sums are kept in.
#pragma once

#include "engine/op.h"
#include "kernels/lanes.h"
#include "kernels/reduction.h"

namespace moonflow {

// Floats are summed in double and rounded once for each result; integers wrap around.
template <class T>
using CumulativeSum = std::conditional_t<kFloating<T>, double, uint64_t>;

// A lane in the order in which it is summed.
struct InOrder {
  int64_t n, stride;
  bool reverse;
  bool exclusive;  // a sum is without its own element

  // The offset of element i.
  MOONFLOW_BOTH int64_t at(int64_t i) const { return (reverse ? n - 1 - i : i) * stride; }
};

inline InOrder in_order(const Lanes& lanes, const Attrs& attrs) {
  return {lanes.n, lanes.stride, attrs.flag("reverse"), attrs.flag("exclusive")};
}

}  // namespace moonflow
