// Where the indices of an op point, on every device.
#pragma once

#include "engine/tensor.h"
#include "kernels/bad_index.h"

namespace moonflow {

// A value as `blocks` blocks of `rows` rows of `inner` elements. Each block has `picks` picks, and a pick names one of
// its rows: by `length` indices that lie side by side, each of which counts so many steps.
struct PickedRows {
  int64_t blocks = 1, rows = 1, inner = 1, picks = 1;
  bool shared = false;  // the indices are the same in all blocks
  int64_t within = 1;   // pick i counts from row i % within
  int length = 1;
  int64_t bounds[Shape::kMaxRank] = {}, steps[Shape::kMaxRank] = {};

  // The indices' last axis holds coordinates along the leading axes of the value.
  static PickedRows of_tuples(const Shape& value, const Shape& indices) {
    PickedRows p;
    p.length = static_cast<int>(indices.back());
    p.rows = value.count(0, p.length);
    p.inner = value.count(p.length, value.rank());
    p.picks = indices.count(0, indices.rank() - 1);
    for (int axis = 0; axis < p.length; ++axis) {
      p.bounds[axis] = value[axis];
      p.steps[axis] = value.count(axis + 1, p.length);
    }
    return p;
  }
  // Each index names a slice of the value along the axis.
  static PickedRows on_axis(const Shape& value, const Shape& indices, int axis) {
    PickedRows p;
    p.blocks = value.count(0, axis);
    p.rows = p.bounds[0] = value[axis];
    p.inner = value.count(axis + 1, value.rank());
    p.picks = indices.count();
    p.shared = true;
    p.steps[0] = 1;
    return p;
  }
  // Each index stands for the coordinate along the axis of its own place.
  static PickedRows along(const Shape& value, const Shape& indices, int axis) {
    PickedRows p;
    p.blocks = value.count(0, axis);
    p.within = p.steps[0] = value.count(axis + 1, value.rank());
    p.rows = value[axis] * p.within;
    p.bounds[0] = value[axis];
    p.picks = indices.count(axis, indices.rank());
    return p;
  }

  int64_t tuples() const { return shared ? picks : blocks * picks; }
};

// `flat` is the place of an index in the indices.
[[noreturn]] inline void fail_index(const PickedRows& places, const Shape& indices, int64_t flat, int64_t index) {
  fail_index(indices, flat, index, places.bounds[flat % places.length]);
}

}  // namespace moonflow
