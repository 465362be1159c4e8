#include "kernels/scatter_assign.h"

#include <algorithm>
#include <cstring>

#include "kernels/bad_index.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/scatter.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- the rows that indices name --------------------------------------------------------------------------------

Launch prepare_rows(KernelCall& call) {
  const TensorType indices = call.inputs[0];
  const PickedRows places = PickedRows::of_tuples(Shape(call.attrs.ints("shape")), indices.shape);
  return [=](const LaunchCall& at) { cpu::find_rows(places, indices, at.inputs[0], at.output<int64_t>(0)); };
}

void add_rows(Catalog& catalog) {
  OpDef op;
  op.name = "tensor_scatter_nd_rows";
  op.doc =
      "The numbers of the rows that coordinates name; made by fusion.\n"
      "  out[i...] = the place of (indices[i..., 0], ..., indices[i..., m - 1]) in row-major order\n"
      "shapes: indices (picks..., m) -> out (picks), where all picks are side by side; `shape` has m sizes\n"
      "dtypes: indices of an integer dtype -> int64\n"
      "errors: an index out of bounds names its position";
  op.inputs = {{"indices"}};
  op.attrs = {{"shape", Ints{}, "sizes of the axes that coordinates go along", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_indices(call, 0, "indices");
    const Shape &indices = call.shape(0), shape(call.attrs.ints("shape"));
    require(indices.rank() > 0 && indices.back() == shape.rank() && shape.rank() > 0, ErrorCode::ShapeMismatch,
            "indices ", indices, " do not have a coordinate for each axis of ", shape);
    return {{DType::Int64, {indices.count(0, indices.rank() - 1)}}};
  };
  op.cpu = {prepare_rows};
  op.examples = {{{i32({2, 3, 2})}, {{"shape", Ints{4, 5}}}}, {{{DType::Int64, {4, 1}}}, {{"shape", Ints{6}}}}};
  catalog.add(op);
}

// ---- the rows themselves ---------------------------------------------------------------------------------------

// Threads share out the columns, and each goes through all rows in order, so that the last of several stays.
Launch prepare_assign(KernelCall& call) {
  const int64_t picks = call.inputs[2].count(), row_bytes = call.inputs[1].bytes() / std::max<int64_t>(picks, 1);
  const int64_t bound = row_bytes == 0 ? 0 : call.inputs[0].bytes() / row_bytes;
  return [=](const LaunchCall& at) {
    char* const variable = static_cast<char*>(at.inputs[0]);
    const char* const updates = static_cast<const char*>(at.inputs[1]);
    const int64_t* const rows = at.input<int64_t>(2);
    if (row_bytes == 0) return;
    for (int64_t pick = 0; pick < picks; ++pick)
      if (rows[pick] < 0 || rows[pick] >= bound) fail_index({picks}, pick, rows[pick], bound);
    cpu::parallel_for(row_bytes, 8 * cpu::kGrain / std::max<int64_t>(picks, 1) + 64, [=](int64_t first, int64_t last) {
      for (int64_t pick = 0; pick < picks; ++pick)
        std::memcpy(variable + rows[pick] * row_bytes + first, updates + pick * row_bytes + first, last - first);
    });
  };
}

void add_assign(Catalog& catalog) {
  OpDef op;
  op.name = "tensor_scatter_nd_assign";
  op.doc =
      "Gives rows of a variable other values; made by fusion. It is what assign does with the variable's own\n"
      "tensor_scatter_nd_update, but for reading and writing the rows that stay as they are.\n"
      "  variable[rows[i]] = updates[i], in the order of i\n"
      "shapes: variable (r..., n...), updates (picks..., n...), rows (picks), counted over r... in row-major order\n"
      "dtypes: all, one for variable and updates; rows int64, of tensor_scatter_nd_rows\n"
      "errors: a row outside of the variable, nothing is written";
  op.inputs = {{"variable"}, {"updates"}, {"rows"}};
  op.outputs = {};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require(call.dtype(0) == call.dtype(1), ErrorCode::DtypeMismatch, "the variable is ", call.type(0),
            ", the updates are ", call.type(1));
    require_type(call, 2, "rows", {DType::Int64, {call.shape(2).count()}});
    const int64_t picks = call.shape(2).count(), values = call.shape(1).count(), all = call.shape(0).count();
    require(picks == 0 ? values == 0 : values % picks == 0 && (values == 0 || all % (values / picks) == 0),
            ErrorCode::ShapeMismatch, "updates are ", call.type(1), ", which are no ", picks, " rows of ",
            call.type(0));
    return {};
  };
  op.writes = {0};
  op.narrow.in_kernels = true;
  op.cpu = {prepare_assign};
  const TensorType rows{DType::Int64, {5}};
  op.examples = {{{f32({4, 3}), f32({5, 3}), rows}},
                 {{{DType::Int8, {2, 2, 40}}, {DType::Int8, {5, 40}}, rows}},
                 {{{DType::Int64, {4}}, {DType::Int64, {5}}, rows}}};
  catalog.add(op);
}

}  // namespace

// ---- fusion ----------------------------------------------------------------------------------------------------

bool fuse_scatter_into_assign(Rewriter& graph, NodeId id) {
  const ValueId variable = graph.node(id).inputs[0], value = graph.node(id).inputs[1];
  const NodeId scatter = graph.made_by(value, "tensor_scatter_nd_update");
  if (scatter == kNone || graph.sole_reader(value) != id || graph.node(scatter).inputs[0] != variable) return false;
  const ValueId indices = graph.node(scatter).inputs[1], updates = graph.node(scatter).inputs[2];
  const Shape shape = graph.type(variable).shape, tuples = graph.type(indices).shape;  // values are added
  const PickedRows places = PickedRows::of_tuples(shape, tuples);
  // Writers come last, so the updates live until then: they must be no larger than the value that need not be made.
  if (places.picks > places.rows) return false;
  if (!may_join_update(graph, {updates, indices})) return false;

  const ValueId rows = graph.add_value({DType::Int64, {places.picks}});
  const Ints sizes(shape.begin(), shape.begin() + places.length);
  graph.fuse({scatter}, "tensor_scatter_nd_rows", {indices}, {{"shape", sizes}}, {rows});
  graph.fuse({id}, "tensor_scatter_nd_assign", {variable, updates, rows}, {}, {});
  return true;
}

void add_scatter_assign(Catalog& catalog) {
  add_rows(catalog);
  add_assign(catalog);
}

}  // namespace moonflow
