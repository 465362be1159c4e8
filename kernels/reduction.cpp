// Axes and groups of reductions; see reduction.h.
#include "kernels/reduction.h"

namespace moonflow::reduce {

std::vector<bool> reduced_axes(const Attrs& attrs, const Shape& shape) {
  const Ints& axes = attrs.ints("axis");
  std::vector<bool> reduced(shape.rank(), axes.empty());
  for (const int64_t axis : axes) {
    const int wrapped = wrap_axis(axis, shape.rank());
    require(!reduced[wrapped], ErrorCode::InvalidArgument, "axis ", axis, " is named twice");
    reduced[wrapped] = true;
  }
  return reduced;
}

std::vector<bool> broadcast_axes(const Shape& shape, const Ints& target) {
  const int missing = shape.rank() - static_cast<int>(target.size());
  bool fits = missing >= 0;
  std::vector<bool> reduced(shape.rank(), true);
  for (int axis = std::max(missing, 0); fits && axis < shape.rank(); ++axis) {
    fits = target[axis - missing] == shape[axis] || target[axis - missing] == 1;
    reduced[axis] = target[axis - missing] != shape[axis];
  }
  require(fits, ErrorCode::ShapeMismatch, "x is ", shape, ", which nothing of shape ", Shape(target), " broadcasts to");
  return reduced;
}

Groups::Groups(const Shape& shape, const std::vector<bool>& reduced) {
  struct Run {
    int64_t size, step;
    bool reduced;
  };
  std::vector<Run> runs;  // innermost first; neighbours of one kind are one
  int64_t step = 1;
  for (int axis = shape.rank(); axis-- > 0; step *= shape[axis]) {
    if (shape[axis] == 1) continue;
    if (!runs.empty() && runs.back().reduced == reduced[axis])
      runs.back().size *= shape[axis];
    else
      runs.push_back({shape[axis], step, reduced[axis]});
  }
  if (!runs.empty() && !runs[0].reduced) {
    columns = runs[0].size;
    runs.erase(runs.begin());
  }
  std::vector<Broadcast<1>::Axis> kept_axes, folded_axes;
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    (run->reduced ? folded_axes : kept_axes).push_back({run->size, {run->step}});
    (run->reduced ? count : outputs) *= run->size;
  }
  kept = Broadcast<1>(std::move(kept_axes));
  folded = Broadcast<1>(std::move(folded_axes));
  outputs *= columns;
}

}  // namespace moonflow::reduce
