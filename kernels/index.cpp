// Ops that are told by integers where to read or write: gather and one_hot. An index outside its axis is an error that
// names its position, found before anything is written.
#include <algorithm>

#include "kernels/bad_index.h"
#include "kernels/boxes.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/scatter.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- gather ---------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_gather(const OpCall& call) {
  require_indices(call, 1, "indices");
  const Shape &params = call.shape(0), &indices = call.shape(1);
  const int axis = wrap_axis(call.attrs.integer("axis"), params.rank());
  Shape shape(params.begin(), params.begin() + axis);
  for (const int64_t size : indices) shape.push_back(size);
  for (int i = axis + 1; i < params.rank(); ++i) shape.push_back(params[i]);
  return {{call.dtype(0), shape}};
}

// The value's sizes are those of params.
PickedRows places_of(const KernelCall& call, const Shape& value) {
  return PickedRows::on_axis(value, call.inputs[1].shape, wrap_axis(call.attrs.integer("axis"), value.rank()));
}

void add_gather(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "gather";
  op.doc =
      "Rows of params picked by index.\n"
      "  out[a..., i..., b...] = params[a..., indices[i...], b...], where a are the axes before `axis`\n"
      "shapes: params (10, 4), indices (2, 3), axis = 0 -> out (2, 3, 4)\n"
      "dtypes: params any -> the same; indices of an integer dtype\n"
      "defaults: axis = 0\n"
      "errors: an index outside [0, params.shape[axis]) names its position, nothing is written";
  op.inputs = {{"params"}, {"indices"}};
  op.attrs = {{"axis", int64_t{0}, "the axis that is picked from; negative counts from the last"}};
  op.infer = infer_gather;
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const Attrs attrs{{"axis", g.attrs.integer("axis")}, {"shape", g.type(g.inputs[0]).shape.dims()}};
    return {g.op("gather_grad", {g.grads[0], g.inputs[1]}, attrs), kNone};
  };
  op.cpu = {[](KernelCall& call) { return cpu::take_rows(call, places_of(call, call.inputs[0].shape), 1); }};
  op.narrow.in_kernels = true;
  op.examples = {{{f32({4, 3}), i32({2, 3})}},
                 {{f32({2, 4, 2}), i32({5})}, {{"axis", int64_t{1}}}},
                 {{i32({4}), {DType::Int64, {}}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "gather_grad";
  grad.doc =
      "Gradient of gather: every row of dy added to the row of params it was picked from.\n"
      "  dparams[a..., r, b...] = sum of dy[a..., i..., b...] over all i with indices[i...] == r, in the order of i\n"
      "shapes: dy as the gathered value, indices as there -> dparams `shape`\n"
      "errors: an index outside [0, shape[axis]) names its position";
  grad.inputs = {{"dy"}, {"indices"}};
  grad.outputs = {"dparams"};
  grad.attrs = {{"axis", int64_t{0}, "the axis that was picked from"}, {"shape", Ints{}, "shape of params", true}};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const Shape shape = checked_shape(call.attrs);
    const TensorType params{call.dtype(0), shape};
    const std::vector<const TensorType*> inputs{&params, call.inputs[1]};
    const TensorType gathered = infer_gather(OpCall{inputs, call.attrs})[0];
    require(gathered == call.type(0), ErrorCode::ShapeMismatch, "dy is ", call.type(0), ", gathered from ", shape,
            " it is ", gathered);
    return {params};
  };
  grad.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {g.op("gather", {g.grads[0], g.inputs[1]}, {{"axis", g.attrs.integer("axis")}}), kNone};
  };
  grad.cpu = {[](KernelCall& call) {
    return cpu::scatter_rows(call, places_of(call, call.outputs[0].shape), Into::Sum, -1, 1, 0);
  }};
  grad.examples = {{{f32({2, 3, 3}), i32({2, 3})}, {{"shape", Ints{4, 3}}}},
                   {{f32({2, 5, 2}), i32({5})}, {{"axis", int64_t{1}}, {"shape", Ints{2, 4, 2}}}}};
  catalog.add(grad);
}

// ---- one_hot --------------------------------------------------------------------------------------------------

void add_one_hot(Catalog& catalog) {
  OpDef op;
  op.name = op.lua = "one_hot";
  op.doc =
      "Class numbers as vectors with one value on.\n"
      "  out[i..., k] = on_value where k == indices[i...], else off_value\n"
      "shapes: indices (n) -> out (n, depth); axis says where the new axis stands in the result\n"
      "dtypes: indices of an integer dtype -> `dtype`\n"
      "defaults: on_value = 1, off_value = 0, axis = -1\n"
      "errors: depth below 0; an index outside [0, depth) names its position, nothing is written";
  op.inputs = {{"indices"}};
  op.attrs = {{"depth", int64_t{0}, "number of classes", true},
              {"on_value", 1.0, "the value at the class"},
              {"off_value", 0.0, "the value elsewhere"},
              {"axis", int64_t{-1}, "where the axis of classes stands in the result"},
              {"dtype", DType::Float32, "of the result"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 0, "indices");
    const int64_t depth = call.attrs.integer("depth");
    require(depth >= 0, ErrorCode::InvalidArgument, "depth must be at least 0, got ", depth);
    Shape shape = call.shape(0);
    shape.insert(wrap_axis(call.attrs.integer("axis"), shape.rank() + 1), depth);
    const DType dtype = call.attrs.dtype("dtype");
    for (const char* name : {"on_value", "off_value"}) require_value_of(dtype, call.attrs, name);
    return {{dtype, shape}};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    const Shape& out_shape = call.outputs[0].shape;
    const int axis = wrap_axis(call.attrs.integer("axis"), out_shape.rank());
    const int64_t depth = out_shape[axis], inner = out_shape.count(axis + 1, out_shape.rank());
    const TensorType indices = call.inputs[0];
    const PickedRows places = PickedRows::on_axis({depth}, indices.shape, 0);
    call.scratch_bytes = checked_product(places.picks, sizeof(int64_t));
    const double on = call.attrs.number("on_value"), off = call.attrs.number("off_value");
    return visit(call.outputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& launch) {
        int64_t* const index = static_cast<int64_t*>(launch.scratch);
        cpu::find_rows(places, indices, launch.inputs[0], index);
        T* out = launch.output<T>(0);
        cpu::parallel_for(places.picks * depth, cpu::kGrain, [&](int64_t first, int64_t last) {
          std::fill(out + first, out + last, static_cast<T>(off));
        });
        for (int64_t i = 0; i < places.picks; ++i) {
          out[(i / inner * depth + index[i]) * inner + i % inner] = static_cast<T>(on);
        }
      };
    });
  }};
  op.examples = {
      {{i32({2, 3})}, {{"depth", int64_t{4}}}},
      {{{DType::Int64, {5}}},
       {{"depth", int64_t{4}}, {"on_value", 2.0}, {"off_value", -1.0}, {"axis", int64_t{0}}, {"dtype", DType::Int32}}}};
  catalog.add(op);
}

}  // namespace

void add_index(Catalog& catalog) {
  add_gather(catalog);
  add_one_hot(catalog);
}

}  // namespace moonflow
