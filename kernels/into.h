// What becomes of a row that picks name, on every device.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/reduction.h"

namespace moonflow {

// The sum of the picks, the largest of them by element, or the last one.
enum class Into { Sum, Max, Replaced };

// An element that no pick has named, and that has no value before.
template <Into into, class T>
MOONFLOW_BOTH T unpicked() {
  return into == Into::Max ? reduce::Max<T>::kStart : T(0);
}
// An element that one more pick names.
template <Into into, class T>
MOONFLOW_BOTH T taken_in(T before, T pick) {
  if (into == Into::Sum) return functor::Add()(before, pick);
  return into == Into::Max ? reduce::Max<T>::fold(before, pick, 0) : pick;
}

}  // namespace moonflow
