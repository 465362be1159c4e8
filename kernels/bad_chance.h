// Errors about chances that nothing can be drawn with, in one wording for every device.
#pragma once

#include <limits>

#include "kernels/bad_index.h"
#include "kernels/philox.h"

namespace moonflow {

// `flat` is the place in chances of this shape.
[[noreturn]] inline void fail_chance(const Shape& shape, int64_t flat) {
  fail(ErrorCode::InvalidArgument, "the chance at ", place_in(shape, flat), " is NaN, wanted 0 to 1");
}

// Of a race among a row's logits: does the one that has won belong to a class that can be drawn? A NaN wins any race,
// and -inf one among its like.
template <class T>
MOONFLOW_HOST_DEVICE bool is_drawable(T logit) {
  return logit >= std::numeric_limits<T>::lowest();
}

[[noreturn]] inline void fail_drawn(int64_t row, int64_t chosen, int64_t classes) {
  if (chosen < 0 || chosen >= classes) fail_label(row, chosen, classes);
  fail(ErrorCode::InvalidArgument, "row ", row, " has no class to draw: its logits are all -inf or there is a NaN (at ",
       chosen, " of ", classes, ")");
}

}  // namespace moonflow
