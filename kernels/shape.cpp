// Ops that move data without changing it: other views of the same memory (reshape and its kin, which cost nothing),
// and other orders or repetitions of it (transpose, reverse, broadcast_to, tile). All dtypes.
#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/box.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using cpu::copy_kernel;

// ---- views: the output is the input's memory ------------------------------------------------------------------

// Every view has one gradient: dy in the shape of x.
std::vector<ValueId> view_grad(GradCall& g) {
  return {g.op("reshape", {g.grads[0]}, {{"shape", g.type(g.inputs[0]).shape.dims()}})};
}

std::vector<TensorType> infer_reshape(const OpCall& call) {
  const Ints& wanted = call.attrs.ints("shape");
  const int64_t count = call.type(0).count();
  Shape shape;
  int free_axis = -1;
  int64_t known = 1;
  for (size_t axis = 0; axis < wanted.size(); ++axis) {
    if (wanted[axis] == -1) {
      if (free_axis >= 0) fail(ErrorCode::InvalidArgument, "shape ", str(wanted), " has more than one -1");
      free_axis = static_cast<int>(axis);
      shape.push_back(1);
      continue;
    }
    if (wanted[axis] < 0) {
      fail(ErrorCode::InvalidArgument, "shape ", str(wanted), " has a size below 0; only -1 means 'what is left'");
    }
    known = checked_product(known, wanted[axis]);
    shape.push_back(wanted[axis]);
  }
  if (free_axis >= 0) {
    if (known == 0 || count % known != 0) {
      fail(ErrorCode::ShapeMismatch, "x is ", call.shape(0), ", that is ", count, " elements, which shape ",
           str(wanted), " cannot divide by ", known);
    }
    shape[free_axis] = count / known;
  } else {
    require(known == count, ErrorCode::ShapeMismatch, "x is ", call.shape(0), ", that is ", count,
            " elements, but shape ", shape, " has ", known);
  }
  return {{call.dtype(0), shape}};
}

std::vector<TensorType> infer_flatten(const OpCall& call) {
  const Shape& x = call.shape(0);
  if (x.rank() == 0) return {{call.dtype(0), Shape{1}}};
  const int first = wrap_axis(call.attrs.integer("start_dim"), x.rank());
  const int last = wrap_axis(call.attrs.integer("end_dim"), x.rank());
  require(first <= last, ErrorCode::InvalidArgument, "start_dim ", first, " comes after end_dim ", last);
  Shape shape(x.begin(), x.begin() + first);
  shape.push_back(x.count(first, last + 1));
  for (int axis = last + 1; axis < x.rank(); ++axis) shape.push_back(x[axis]);
  return {{call.dtype(0), shape}};
}

std::vector<TensorType> infer_squeeze(const OpCall& call) {
  const Shape& x = call.shape(0);
  std::vector<bool> dropped(x.rank());
  for (const int64_t given : call.attrs.ints("axis")) {
    const int axis = wrap_axis(given, x.rank());
    require(x[axis] == 1, ErrorCode::ShapeMismatch, "axis ", given, " of x ", x, " has size ", x[axis],
            "; only an axis of size 1 can be squeezed");
    dropped[axis] = true;
  }
  Shape shape;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool drop = call.attrs.ints("axis").empty() ? x[axis] == 1 : dropped[axis];
    if (!drop) shape.push_back(x[axis]);
  }
  return {{call.dtype(0), shape}};
}

std::vector<TensorType> infer_expand_dims(const OpCall& call) {
  Shape shape = call.shape(0);
  shape.insert(wrap_axis(call.attrs.integer("axis"), shape.rank() + 1), 1);
  return {{call.dtype(0), shape}};
}

void add_views(Catalog& catalog) {
  OpDef op;
  op.inputs = {{"x"}};
  op.alias = {{0, 0}};
  op.grad = view_grad;

  op.name = op.lua = "reshape";
  op.doc =
      "The same elements, row-major, under another shape. Costs nothing.\n"
      "shapes: x (any) -> out `shape`; one -1 in it stands for what is left\n"
      "dtypes: any -> the same\n"
      "errors: the counts of elements differ; more than one -1";
  op.attrs = {{"shape", Ints{}, "sizes of the result, one of them may be -1", true}};
  op.infer = infer_reshape;
  op.examples = {{{f32({2, 6})}, {{"shape", Ints{3, -1}}}}, {{i32({4})}, {{"shape", Ints{2, 2}}}}};
  catalog.add(op);

  op.name = op.lua = "flatten";
  op.doc =
      "Joins the axes from start_dim to end_dim, both included, into one. Costs nothing.\n"
      "shapes: x (a, b, c, d) with start_dim = 1, end_dim = 2 -> out (a, b * c, d); a scalar becomes (1)\n"
      "dtypes: any -> the same\n"
      "defaults: start_dim = 0, end_dim = -1\n"
      "errors: an axis outside the rank; start_dim after end_dim";
  op.attrs = {{"start_dim", int64_t{0}, "first axis that is joined"},
              {"end_dim", int64_t{-1}, "last axis that is joined"}};
  op.infer = infer_flatten;
  op.examples = {{{f32({2, 3, 2})}, {{"start_dim", int64_t{1}}}}, {{i32({2, 2})}}};
  catalog.add(op);

  op.name = op.lua = "squeeze";
  op.doc =
      "Drops axes of size 1. Costs nothing.\n"
      "shapes: x (3, 1, 4) -> out (3, 4)\n"
      "dtypes: any -> the same\n"
      "defaults: axis = {}, every axis of size 1\n"
      "errors: an axis outside the rank, or of another size";
  op.attrs = {{"axis", Ints{}, "the axes to drop; negative counts from the last"}};
  op.infer = infer_squeeze;
  op.examples = {{{f32({3, 1, 2, 1})}, {{"axis", Ints{1}}}}, {{i32({1, 3})}}};
  catalog.add(op);

  op.name = op.lua = "expand_dims";
  op.doc =
      "Inserts an axis of size 1. Costs nothing.\n"
      "shapes: x (3, 4) with axis = 1 -> out (3, 1, 4); axis = -1 appends\n"
      "dtypes: any -> the same\n"
      "errors: axis outside the rank of the result";
  op.attrs = {{"axis", int64_t{0}, "where the new axis stands in the result", true}};
  op.infer = infer_expand_dims;
  op.examples = {{{f32({3, 2})}, {{"axis", int64_t{1}}}}, {{i32({3})}, {{"axis", int64_t{-1}}}}};
  catalog.add(op);

  op.name = op.lua = "identity";
  op.doc =
      "x under another name. Costs nothing.\n"
      "shapes: x (any) -> out alike\n"
      "dtypes: any -> the same";
  op.attrs = {};
  op.infer = [](const OpCall& call) { return std::vector<TensorType>{call.type(0)}; };
  op.grad = [](GradCall& g) { return g.grads; };
  op.examples = {{{f32({3, 2})}}, {{i32({3})}}};
  catalog.add(op);

  op.name = op.lua = "stop_gradient";
  op.doc =
      "x, as if it were a constant: no gradient goes back through it. Costs nothing.\n"
      "shapes: x (any) -> out alike\n"
      "dtypes: any -> the same";
  op.grad = nullptr;
  catalog.add(op);
}

// ---- other orders and repetitions -------------------------------------------------------------------------------

void add_transpose(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "transpose";
  op.doc =
      "The axes of x in another order.\n"
      "  out[i_perm[0], i_perm[1], ...] = x[i_0, i_1, ...], so the size of axis k of out is x.shape[perm[k]]\n"
      "shapes: x (a, b, c) with perm = {2, 0, 1} -> out (c, a, b)\n"
      "dtypes: any -> the same\n"
      "defaults: perm = {}, all axes reversed\n"
      "errors: perm is not an order of the axes";
  op.inputs = {{"x"}};
  op.attrs = {{"perm", Ints{}, "the axis of x that each axis of the result comes from"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    Shape shape;
    for (const int64_t axis : permutation(call.attrs.ints("perm"), call.shape(0))) shape.push_back(call.shape(0)[axis]);
    return {{call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Ints perm = permutation(g.attrs.ints("perm"), g.type(g.inputs[0]).shape);
    Ints inverse(perm.size());
    for (size_t axis = 0; axis < perm.size(); ++axis) inverse[perm[axis]] = static_cast<int64_t>(axis);
    return {g.op("transpose", {g.grads[0]}, {{"perm", inverse}})};
  };
  op.cpu = copy_kernel(transpose_box);
  op.narrow.in_kernels = true;
  op.examples = {
      {{f32({2, 3, 4})}, {{"perm", Ints{2, 0, 1}}}}, {{f32({3, 5})}}, {{i32({2, 3})}, {{"perm", Ints{1, 0}}}}};
  catalog.add(op);
}

void add_reverse(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "reverse";
  op.doc =
      "x with the given axes running backwards.\n"
      "  out[i] = x[n - 1 - i] along each of them\n"
      "shapes: x (any) -> out alike\n"
      "dtypes: any -> the same\n"
      "errors: an axis outside the rank";
  op.inputs = {{"x"}};
  op.attrs = {{"axis", Ints{}, "the axes to turn round; negative counts from the last", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    for (const int64_t axis : call.attrs.ints("axis")) wrap_axis(axis, call.shape(0).rank());
    return {call.type(0)};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> { return {g.op("reverse", {g.grads[0]}, g.attrs)}; };
  op.cpu = copy_kernel(reverse_box);
  op.narrow.in_kernels = true;
  op.examples = {{{f32({2, 3})}, {{"axis", Ints{1}}}}, {{i32({2, 3, 2})}, {{"axis", Ints{0, -1}}}}};
  catalog.add(op);
}

void add_broadcast_to(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "broadcast_to";
  op.doc =
      "x repeated along axes of size 1, and along new leading axes, until it has the given shape.\n"
      "shapes: x (3, 1) with shape = {2, 3, 4} -> out (2, 3, 4)\n"
      "dtypes: any -> the same\n"
      "errors: a size of x that is neither 1 nor the wanted one";
  op.inputs = {{"x"}};
  op.attrs = {{"shape", Ints{}, "sizes of the result", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const Shape &x = call.shape(0), shape = checked_shape(call.attrs);
    bool fits = x.rank() <= shape.rank();
    for (int axis = 0; fits && axis < x.rank(); ++axis) {
      fits = x[axis] == 1 || x[axis] == shape[axis + shape.rank() - x.rank()];
    }
    require(fits, ErrorCode::ShapeMismatch, "x is ", x, ", which cannot be repeated to ", shape);
    return {{call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {g.op("sum_to_shape", {g.grads[0]}, {{"shape", g.type(g.inputs[0]).shape.dims()}})};
  };
  op.narrow = follows_off_cpu();
  op.cpu = copy_kernel(broadcast_box);
  op.narrow.in_kernels = true;
  op.examples = {{{f32({3, 1})}, {{"shape", Ints{2, 3, 4}}}}, {{i32({3})}, {{"shape", Ints{2, 3}}}}};
  catalog.add(op);
}

void add_tile(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "tile";
  op.doc =
      "x laid side by side reps[k] times along axis k.\n"
      "  out[i, j] = x[i mod rows, j mod columns]\n"
      "shapes: x (2, 3) with reps = {2, 2} -> out (4, 6); the shorter of x and reps gets leading ones, as in NumPy\n"
      "dtypes: any -> the same\n"
      "errors: a number of repetitions below 0";
  op.inputs = {{"x"}};
  op.attrs = {{"reps", Ints{}, "how often along each axis", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const Tiling tiling(call.shape(0), call.attrs.ints("reps"));
    Shape shape;
    for (int axis = 0; axis < tiling.x.rank(); ++axis) {
      shape.push_back(checked_product(tiling.x[axis], tiling.reps[axis]));
    }
    return {{call.dtype(0), shape}};
  };
  // Axis by axis the repetitions become an axis of their own, which is summed away.
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Shape x = g.type(g.inputs[0]).shape;
    const Tiling tiling(x, g.attrs.ints("reps"));
    Shape shape = g.type(g.outputs[0]).shape;
    ValueId dx = g.grads[0];
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const int64_t reps = tiling.reps[axis];
      if (reps == 1) continue;
      shape[axis] = tiling.x[axis];
      const Ints apart{shape.count(0, axis), reps, shape.count(axis, shape.rank())};
      dx = g.op("reduce_sum", {g.op("reshape", {dx}, {{"shape", apart}})}, {{"axis", Ints{1}}});
    }
    return {g.op("reshape", {dx}, {{"shape", x.dims()}})};
  };
  op.cpu = copy_kernel(tile_box);
  op.narrow.in_kernels = true;
  op.examples = {{{f32({2, 3})}, {{"reps", Ints{2, 2}}}}, {{i32({3})}, {{"reps", Ints{2, 1}}}}};
  catalog.add(op);
}

}  // namespace

void add_shape(Catalog& catalog) {
  add_views(catalog);
  add_transpose(catalog);
  add_reverse(catalog);
  add_broadcast_to(catalog);
  add_tile(catalog);
}

}  // namespace moonflow
