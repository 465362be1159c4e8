// The boxes that ops copy; see boxes.h.
#include "kernels/boxes.h"

#include <algorithm>
#include <cmath>

namespace moonflow {

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.rank());
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

bool Box::empty() const {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == 0; });
}

Box Box::joined() const {
  Box box{{}, to_start, from_start};
  for (const Axis& axis : axes) {
    if (axis.size == 1) continue;
    if (!box.axes.empty()) {
      Axis& outer = box.axes.back();
      if (outer.to == axis.to * axis.size && outer.from == axis.from * axis.size) {
        outer = {outer.size * axis.size, axis.to, axis.from};
        continue;
      }
    }
    box.axes.push_back(axis);
  }
  return box;
}

// ---- checked attributes ------------------------------------------------------------------------------------------

Shape checked_shape(const Attrs& attrs) {
  Shape shape;
  for (const int64_t size : attrs.ints("shape")) {
    require(size >= 0, ErrorCode::InvalidArgument, "shape has the size ", size, ", below 0");
    shape.push_back(size);
  }
  return shape;
}

void require_value_of(DType dtype, const Attrs& attrs, const char* name) {
  const double value = attrs.number(name);
  visit_stored(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      // 2^digits is the first value above the range, and exact as a double.
      const bool fits = value == std::floor(value) && value >= static_cast<double>(std::numeric_limits<T>::min()) &&
                        value < std::ldexp(1.0, std::numeric_limits<T>::digits);
      require(fits, ErrorCode::InvalidArgument, name, " ", value, " is not a value of ", dtype);
    }
  });
}

Ints permutation(const Ints& perm, const Shape& x) {
  Ints axes(x.rank());
  if (perm.empty()) {
    for (int axis = 0; axis < x.rank(); ++axis) axes[axis] = x.rank() - 1 - axis;
    return axes;
  }
  if (static_cast<int>(perm.size()) != x.rank()) {
    fail(ErrorCode::ShapeMismatch, "perm ", str(perm), " names ", perm.size(), " axes, x ", x, " has ", x.rank());
  }
  std::vector<bool> named(x.rank());
  for (int axis = 0; axis < x.rank(); ++axis) {
    axes[axis] = wrap_axis(perm[axis], x.rank());
    if (named[axes[axis]]) {
      fail(ErrorCode::InvalidArgument, "perm ", str(perm), " names axis ", axes[axis], " twice");
    }
    named[axes[axis]] = true;
  }
  return axes;
}

Tiling::Tiling(const Shape& given, const Ints& wanted) : x(given) {
  for (const int64_t rep : wanted) {
    if (rep < 0) fail(ErrorCode::InvalidArgument, "reps ", str(wanted), " has a number below 0");
    reps.push_back(rep);
  }
  while (reps.rank() < x.rank()) reps.insert(0, 1);
  while (x.rank() < reps.rank()) x.insert(0, 1);
}

Cut::Cut(const Shape& x, const Ints& begins, const Ints& sizes) {
  if (begins.size() != sizes.size()) {
    fail(ErrorCode::ShapeMismatch, "begin ", str(begins), " and size ", str(sizes), " differ in length");
  }
  if (static_cast<int>(begins.size()) > x.rank()) {
    fail(ErrorCode::ShapeMismatch, "begin ", str(begins), " has more numbers than x ", x, " has axes");
  }
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool given = axis < static_cast<int>(begins.size());
    const int64_t first = !given ? 0 : begins[axis] < 0 ? begins[axis] + x[axis] : begins[axis];
    require(first >= 0 && first <= x[axis], ErrorCode::OutOfRange, "axis ", axis, ": begin ", given ? begins[axis] : 0,
            " is outside [0, ", x[axis], "]");
    const int64_t rest = x[axis] - first;
    const int64_t count = !given || sizes[axis] == -1 ? rest : sizes[axis];
    require(count >= 0 && count <= rest, ErrorCode::OutOfRange, "axis ", axis, ": begin ", given ? begins[axis] : 0,
            " with size ", count, " leaves x ", x);
    begin.push_back(first);
    size.push_back(count);
  }
}

Stride::Stride(int axis, int64_t size, int64_t given_start, int64_t given_stop, int64_t given_step) {
  step = given_step == kLeftOut ? 1 : given_step;
  require(step != 0, ErrorCode::InvalidArgument, "axis ", axis, ": step is 0");
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto bound = [&](int64_t given, int64_t left_out) {
    if (given == kLeftOut) return left_out;
    return std::clamp(given < 0 ? given + size : given, lowest, highest);
  };
  start = bound(given_start, step > 0 ? lowest : highest);
  const int64_t stop = bound(given_stop, step > 0 ? highest : lowest);
  count = 0;
  if (step > 0 && stop > start) count = (stop - start - 1) / step + 1;
  if (step < 0 && stop < start) count = (start - stop - 1) / -step + 1;
}

std::vector<Stride> strides_along(const Shape& x, const Attrs& attrs) {
  const Ints &start = attrs.ints("start"), &stop = attrs.ints("stop"), &step = attrs.ints("step");
  require(start.size() == stop.size() && (step.empty() || step.size() == start.size()), ErrorCode::ShapeMismatch,
          "start has ", start.size(), " numbers, stop has ", stop.size(), ", step has ", step.size());
  require(static_cast<int>(start.size()) <= x.rank(), ErrorCode::ShapeMismatch, "start has ", start.size(),
          " numbers, x ", x, " has ", x.rank(), " axes");
  std::vector<Stride> strides;
  for (int axis = 0; axis < x.rank(); ++axis) {
    if (axis < static_cast<int>(start.size())) {
      strides.emplace_back(axis, x[axis], start[axis], stop[axis], step.empty() ? 1 : step[axis]);
    } else {
      strides.emplace_back(axis, x[axis], kLeftOut, kLeftOut, 1);
    }
  }
  return strides;
}

// ---- what each op copies -----------------------------------------------------------------------------------------

Box transpose_box(const KernelCall& call) {
  const Shape& out = call.outputs[0].shape;
  const Ints perm = permutation(call.attrs.ints("perm"), call.inputs[0].shape);
  const std::vector<int64_t> to = strides_of(out), from = strides_of(call.inputs[0].shape);
  Box box;
  for (int axis = 0; axis < out.rank(); ++axis) box.axes.push_back({out[axis], to[axis], from[perm[axis]]});
  return box;
}

Box reverse_box(const KernelCall& call) {
  const Shape& x = call.inputs[0].shape;
  const std::vector<int64_t> stride = strides_of(x);
  std::vector<bool> backwards(x.rank());
  for (const int64_t axis : call.attrs.ints("axis")) backwards[wrap_axis(axis, x.rank())] = true;
  Box box;
  for (int axis = 0; axis < x.rank(); ++axis) {
    box.axes.push_back({x[axis], stride[axis], backwards[axis] ? -stride[axis] : stride[axis]});
    if (backwards[axis]) box.from_start += (x[axis] - 1) * stride[axis];
  }
  return box;
}

Box broadcast_box(const KernelCall& call) {
  const Shape &x = call.inputs[0].shape, &out = call.outputs[0].shape;
  const std::vector<int64_t> to = strides_of(out), from = strides_of(x);
  Box box;
  for (int axis = 0; axis < out.rank(); ++axis) {
    const int x_axis = axis - (out.rank() - x.rank());
    box.axes.push_back({out[axis], to[axis], x_axis < 0 || x[x_axis] == 1 ? 0 : from[x_axis]});
  }
  return box;
}

Box tile_box(const KernelCall& call) {
  const Tiling tiling(call.inputs[0].shape, call.attrs.ints("reps"));
  const std::vector<int64_t> to = strides_of(call.outputs[0].shape), from = strides_of(tiling.x);
  Box box;
  for (int axis = 0; axis < tiling.x.rank(); ++axis) {
    box.axes.push_back({tiling.reps[axis], tiling.x[axis] * to[axis], 0});
    box.axes.push_back({tiling.x[axis], to[axis], from[axis]});
  }
  return box;
}

Box slice_box(const KernelCall& call) {
  const Shape& x = call.inputs[0].shape;
  const Cut cut(x, call.attrs.ints("begin"), call.attrs.ints("size"));
  const std::vector<int64_t> from = strides_of(x), to = strides_of(cut.size);
  Box box;
  for (int axis = 0; axis < x.rank(); ++axis) {
    box.axes.push_back({cut.size[axis], to[axis], from[axis]});
    box.from_start += cut.begin[axis] * from[axis];
  }
  return box;
}

namespace {

// Between the whole (x) and its strided part; the whole is the source.
Box strided_box(const Shape& whole, const Attrs& attrs) {
  const std::vector<Stride> strides = strides_along(whole, attrs);
  Shape part;
  for (const Stride& stride : strides) part.push_back(stride.count);
  const std::vector<int64_t> in_part = strides_of(part), in_whole = strides_of(whole);
  Box box;
  for (int axis = 0; axis < whole.rank(); ++axis) {
    const Stride& stride = strides[axis];
    const int64_t step = stride.count > 1 ? stride.step * in_whole[axis] : 1;  // a step that is taken fits the axis
    box.axes.push_back({stride.count, in_part[axis], step});
    box.from_start += stride.start * in_whole[axis];
  }
  return box;
}

// Each input writes, for every index of the axes before `axis`, one run in turn.
std::vector<Box> join_boxes(const KernelCall& call, int axis) {
  const int64_t outer = call.outputs[0].shape.count(0, axis);
  const int64_t pitch = call.outputs[0].count() / std::max<int64_t>(outer, 1);
  std::vector<Box> boxes;
  int64_t start = 0;
  for (const TensorType& input : call.inputs) {
    const int64_t run = input.shape.count(axis, input.shape.rank());
    boxes.push_back({{{outer, pitch, run}, {run, 1, 1}}, start, 0});
    start += run;
  }
  return boxes;
}

}  // namespace

Box strided_slice_box(const KernelCall& call) { return strided_box(call.inputs[0].shape, call.attrs); }

Box strided_slice_grad_box(const KernelCall& call) {
  Box box = strided_box(call.outputs[0].shape, call.attrs);
  for (Box::Axis& axis : box.axes) std::swap(axis.to, axis.from);
  std::swap(box.to_start, box.from_start);
  return box;
}

Box pad_box(const KernelCall& call) {
  const Ints& paddings = call.attrs.ints("paddings");
  const Shape& x = call.inputs[0].shape;
  const std::vector<int64_t> from = strides_of(x), to = strides_of(call.outputs[0].shape);
  Box box;
  for (int axis = 0; axis < x.rank(); ++axis) {
    box.axes.push_back({x[axis], to[axis], from[axis]});
    box.to_start += paddings[2 * axis] * to[axis];
  }
  return box;
}

std::vector<Box> concat_boxes(const KernelCall& call) {
  return join_boxes(call, wrap_axis(call.attrs.integer("axis"), call.inputs[0].shape.rank()));
}

std::vector<Box> stack_boxes(const KernelCall& call) {
  return join_boxes(call, wrap_axis(call.attrs.integer("axis"), call.inputs[0].shape.rank() + 1));
}

}  // namespace moonflow
