// matmul_sgd_update: a step of gradient descent whose gradient is a matrix product, as that of a dense layer's weight
// is. The gradient goes into the weight as it is summed, so it is never stored, and the weight is read and written
// once.
#include "kernels/matmul_update.h"

#include <algorithm>

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_sparse.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

Product product_of(const Attrs& attrs, const Shape& a, const Shape& b) {
  const bool transpose = attrs.flag("transpose_a");
  return {1, a[transpose ? 1 : 0], b[1], a[transpose ? 0 : 1], transpose, false};
}

std::vector<TensorType> infer_update(const OpCall& call) {
  const DType dtype = call.dtype(0);
  require(is_floating(dtype) && call.dtype(1) == dtype && call.dtype(2) == dtype, ErrorCode::DtypeMismatch,
          "the variable is ", call.type(0), ", a is ", call.type(1), ", b is ", call.type(2),
          "; wanted float32 or float64 for all");
  require(call.shape(1).rank() == 2 && call.shape(2).rank() == 2, ErrorCode::ShapeMismatch, "a is ", call.shape(1),
          " and b is ", call.shape(2), ", wanted two matrices");
  const Product sizes = product_of(call.attrs, call.shape(1), call.shape(2));
  require(sizes.inner == call.shape(2)[0] && call.shape(0) == Shape{sizes.rows, sizes.columns},
          ErrorCode::ShapeMismatch, "the product of a ", call.shape(1), " and b ", call.shape(2),
          " does not fit the variable ", call.shape(0));
  require(call.type(3) == TensorType{DType::Float32, {}}, ErrorCode::ShapeMismatch, "learning_rate is ", call.type(3),
          ", it must be float32 ()");
  return {};
}

Launch prepare_update(KernelCall& call) {
  const Product sizes = product_of(call.attrs, call.inputs[1].shape, call.inputs[2].shape);
  const double scale = call.attrs.number("gradient_scale");
  if (call.inputs[0].dtype == DType::Float64) {
    const cpu::PackedSizes packed = cpu::packed_sizes(sizes);
    call.scratch_bytes = cpu::packed_scratch_bytes<double>(packed);
    return [=](const LaunchCall& launch) {
      cpu::descend_packed(packed, cpu::left_factor(sizes, launch.input<double>(1)),
                          cpu::right_factor(sizes, launch.input<double>(2)), *launch.input<float>(3) * scale,
                          cpu::packed_result(sizes, static_cast<double*>(launch.inputs[0])), launch.scratch);
    };
  }
  const cpu::SparseProduct sparse{sizes};
  call.scratch_bytes = std::max(cpu::spread_scratch_bytes(sizes), sparse.scratch_bytes());
  return [=, scale = static_cast<float>(scale)](const LaunchCall& launch) {
    const float *a = launch.input<float>(1), *b = launch.input<float>(2);
    const float factor = *launch.input<float>(3) * scale;
    float* const variable = static_cast<float*>(launch.inputs[0]);
    if (cpu::descend_sparse(sparse, a, b, factor, variable, launch.scratch)) return;
    cpu::descend_spread(sizes, a, b, factor, variable, static_cast<float*>(launch.scratch));
  };
}

double update_flops(const KernelCall& call) {
  const Product sizes = product_of(call.attrs, call.inputs[1].shape, call.inputs[2].shape);
  return 2.0 * static_cast<double>(sizes.rows * sizes.columns) * static_cast<double>(sizes.inner);
}

bool fuse_product(Rewriter& graph, NodeId id, bool narrow) {
  const Node& update = graph.node(id);
  const ValueId gradient = update.inputs[1];
  const NodeId product_id = graph.made_by(gradient, "matmul");
  if (product_id == kNone || graph.sole_reader(gradient) != id) return false;
  const Node& product = graph.node(product_id);
  const ValueId a = product.inputs[0], b = product.inputs[1];
  if (update.inputs.size() != update.op->inputs.size()) return false;  // of several variables
  // Whether it happens at all is for its gradient to say, which then has to be there before.
  if (update.inputs.back() != kNone) return false;
  if (graph.type(gradient).shape.rank() != 2 || product.attrs.flag("precise")) return false;
  if (narrow != (product.attrs.string("mixed") == "float32")) return false;
  // What may have overflowed is looked at before, so a gradient in float16 is stored.
  if (narrow && product.attrs.dtype("rounds_to") != DType::BFloat16) return false;
  Attrs attrs{{"transpose_a", product.attrs.flag("transpose_a")},
              {"gradient_scale", update.attrs.number("gradient_scale")}};
  if (narrow) {
    attrs.set("transpose_b", product.attrs.flag("transpose_b"));
  } else {
    const DType dtype = graph.type(update.inputs[0]).dtype;
    if (!product.attrs.string("mixed").empty() || product.attrs.flag("transpose_b")) return false;
    if (graph.type(a).dtype != dtype || graph.type(b).dtype != dtype) return false;
  }
  // Writers come last, so a and b live until then. Where they are larger than the gradient that would cost memory, and
  // there the update is little work beside the product.
  if (graph.type(a).bytes() + graph.type(b).bytes() > graph.type(gradient).bytes()) return false;
  if (!may_join_update(graph, {a, b})) return false;
  graph.fuse({product_id, id}, narrow ? "matmul_bfloat16_sgd_update" : "matmul_sgd_update",
             {update.inputs[0], a, b, update.inputs[2]}, std::move(attrs), {});
  return true;
}

}  // namespace

bool fuse_product_into_update(Rewriter& graph, NodeId update) { return fuse_product(graph, update, false); }
bool fuse_bfloat16_product_into_update(Rewriter& graph, NodeId update) { return fuse_product(graph, update, true); }

void add_matmul_update(Catalog& catalog) {
  OpDef op;
  op.name = "matmul_sgd_update";
  op.doc =
      "Gradient descent along a matrix product, the gradient of a dense layer's weight. Made by fusion.\n"
      "  variable -= learning_rate * gradient_scale * a b\n"
      "shapes: variable (rows, columns), a (rows, inner), b (inner, columns); with transpose_a a is (inner, rows)\n"
      "dtypes: float32 or float64, one for all; learning_rate float32 ()";
  op.inputs = {{"variable"}, {"a"}, {"b"}, {"learning_rate"}};
  op.outputs = {};
  op.attrs = {{"transpose_a", false, "take the transpose of a"}, {"gradient_scale", 1.0, "factor of the gradient"}};
  op.infer = infer_update;
  op.writes = {0};
  op.cpu = {prepare_update};
  op.flops = update_flops;
  const TensorType rate = {DType::Float32, {}};
  op.examples = {
      {{f32({3, 4}), f32({3, 5}), f32({5, 4}), rate}},
      {{f32({20, 70}), f32({9, 20}), f32({9, 70}), rate}, {{"transpose_a", true}, {"gradient_scale", 0.1}}},
  };
  catalog.add(std::move(op));
}

}  // namespace moonflow
