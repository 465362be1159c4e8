// The boxes that ops copy between strided arrays: which elements of the source become which of the result. Transpose,
// slice, concat, pad, tile and broadcasting are copies of boxes; what differs is described here, for every device.
#pragma once

#include <limits>
#include <vector>

#include "engine/op.h"

namespace moonflow {

struct Box {
  // Steps count elements; `from` may be 0 (the same element again) or negative (backwards), and no two elements of the
  // box have the same place in the target.
  struct Axis {
    int64_t size, to, from;
  };
  static constexpr int kMaxAxes = 2 * Shape::kMaxRank;

  std::vector<Axis> axes;  // outermost first; at most kMaxAxes
  int64_t to_start = 0, from_start = 0;

  bool empty() const;
  // The same box with as few axes as possible: none of size one, and neighbours that lie as one axis in both arrays
  // joined. Not of an empty box, the sizes of whose other axes need not fit together.
  Box joined() const;
};

// The row-major steps of a shape, in elements.
std::vector<int64_t> strides_of(const Shape& shape);

// ---- checked attributes ------------------------------------------------------------------------------------------

// The attribute "shape" of an op that has no value of that shape to look at.
Shape checked_shape(const Attrs& attrs);

// The number that an attribute says, as an element of the dtype: an integer has to have it.
void require_value_of(DType dtype, const Attrs& attrs, const char* name);

// Which axis of x becomes each axis of the result.
Ints permutation(const Ints& perm, const Shape& x);

// Shape of x and the repetitions, both padded with leading ones to one rank.
struct Tiling {
  Shape x, reps;

  Tiling(const Shape& given, const Ints& wanted);
};

// First index and size along every axis.
struct Cut {
  Ints begin;
  Shape size;

  Cut(const Shape& x, const Ints& begins, const Ints& sizes);
};

constexpr int64_t kLeftOut = std::numeric_limits<int64_t>::min();

// Python's rules for start:stop:step, where kLeftOut is a number not given.
struct Stride {
  int64_t start, step, count;

  Stride(int axis, int64_t size, int64_t given_start, int64_t given_stop, int64_t given_step);
};

// One Stride for each axis; those not named are whole.
std::vector<Stride> strides_along(const Shape& x, const Attrs& attrs);

// ---- what each op copies -----------------------------------------------------------------------------------------

Box transpose_box(const KernelCall& call);
Box reverse_box(const KernelCall& call);
Box broadcast_box(const KernelCall& call);
Box tile_box(const KernelCall& call);
Box slice_box(const KernelCall& call);
Box strided_slice_box(const KernelCall& call);
Box strided_slice_grad_box(const KernelCall& call);
Box pad_box(const KernelCall& call);
// One for each input, along an axis of the inputs (concat) or a new one (stack).
std::vector<Box> concat_boxes(const KernelCall& call);
std::vector<Box> stack_boxes(const KernelCall& call);

}  // namespace moonflow
