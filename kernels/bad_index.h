// Errors about integers that say where to read or write, in one wording for every device.
#pragma once

#include "engine/op.h"

namespace moonflow {

// `what` is the input's name.
inline void require_indices(const OpCall& call, int i, const char* what) {
  require(!is_floating(call.dtype(i)), ErrorCode::DtypeMismatch, what, " must be integers (int32 or int64), got ",
          call.dtype(i));
}

[[noreturn]] inline void fail_label(int64_t row, int64_t label, int64_t classes) {
  fail(ErrorCode::OutOfRange, "row ", row, ": label ", label, " is outside [0, ", classes, ")");
}

// `flat` is the place in indices of this shape.
[[noreturn]] inline void fail_index(const Shape& shape, int64_t flat, int64_t index, int64_t bound) {
  Shape at = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    at[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  fail(ErrorCode::OutOfRange, "indices at ", at, " is ", index, ", outside [0, ", bound, ")");
}

}  // namespace moonflow
