// How gather sees its values, on every device.
#pragma once

#include "engine/tensor.h"

namespace moonflow {

// params seen as (outer, rows, inner), of which `picked` rows are taken in every outer block.
struct Picking {
  int64_t outer, rows, inner, picked;

  Picking(const Shape& params, const Shape& indices, int64_t axis_attr) {
    const int axis = wrap_axis(axis_attr, params.rank());
    outer = params.count(0, axis);
    rows = params[axis];
    inner = params.count(axis + 1, params.rank());
    picked = indices.count();
  }
};

}  // namespace moonflow
