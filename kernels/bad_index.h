// Errors about integers that say where to read or write, in one wording for every device.
#pragma once

#include "engine/op.h"

namespace moonflow {

// `what` is the input's name.
inline void require_indices(const OpCall& call, int i, const char* what) {
  require(!is_floating(call.dtype(i)), ErrorCode::DtypeMismatch, what, " must be integers (int32 or int64), got ",
          call.dtype(i));
}

// Integers that name a class of each row of `values`. To give one for the other is the common mistake.
inline void require_labels(const OpCall& call, int labels, const char* name, int values, const char* values_name) {
  if (!is_floating(call.dtype(labels))) return;
  const TensorType &given = call.type(labels), &other = call.type(values);
  const bool swapped =
      is_floating(other.dtype) ? given.shape.rank() > other.shape.rank() : given.shape.rank() >= other.shape.rank();
  require(!swapped, ErrorCode::DtypeMismatch, name, " is ", given, " and ", values_name, " is ", other,
          ", which looks swapped: ", name, ", integers, come first, then ", values_name, ", floats");
  require_indices(call, labels, name);
}

[[noreturn]] inline void fail_label(int64_t row, int64_t label, int64_t classes) {
  fail(ErrorCode::OutOfRange, "row ", row, ": label ", label, " is outside [0, ", classes, ")");
}

// The indices of the place `flat` of a value of this shape.
inline Shape place_in(const Shape& shape, int64_t flat) {
  Shape at = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    at[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return at;
}

// `flat` is the place in indices of this shape, `what` the input's name.
[[noreturn]] inline void fail_index(const Shape& shape, int64_t flat, int64_t index, int64_t bound,
                                    const char* what = "indices") {
  fail(ErrorCode::OutOfRange, what, " at ", place_in(shape, flat), " is ", index, ", outside [0, ", bound, ")");
}

}  // namespace moonflow
