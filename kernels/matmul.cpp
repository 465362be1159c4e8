// Matrix products: matmul (also batched), and dense, its fusion with bias and relu. The sizes are in matmul_sizes.cpp.
#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/classifier.h"
#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/narrow.h"
#include "kernels/dense_back.h"
#include "kernels/dense_pair.h"
#include "kernels/matmul.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- meaning -------------------------------------------------------------------------------------------------

AttrDef mixed_attr() {
  return {"mixed", std::string(),
          "of automatic mixed precision: \"float32\", or what `rounds_to` is, the dtype of the result; the inputs may "
          "then be either, are rounded, and the products are summed in float32"};
}
AttrDef rounds_to_attr() {
  return {"rounds_to", DType::BFloat16,
          "of automatic mixed precision: bfloat16 or float16, what the inputs are rounded to"};
}

AttrDef precise_attr() {
  return {"precise", false,
          "keep the digits of float32, of factors that are no weights: neither mixed precision nor allow_tf32 rounds"};
}

// The dtype of the result; checks those of the factors.
DType product_dtype(const OpCall& call) {
  if (const std::string& mixed = call.attrs.string("mixed"); !mixed.empty()) {
    const DType narrow = call.attrs.dtype("rounds_to");
    require(is_narrow(narrow), ErrorCode::InvalidArgument, "rounds_to is ", narrow, ", wanted bfloat16 or float16");
    for (int i = 0; i < 2; ++i)
      require(call.dtype(i) == DType::Float32 || call.dtype(i) == narrow, ErrorCode::DtypeMismatch,
              "mixed precision needs float32 or ", narrow, ", got ", call.dtype(i));
    return mixed_dtype(mixed, narrow);
  }
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  require(call.dtype(0) == call.dtype(1), ErrorCode::DtypeMismatch, "the inputs differ in dtype: ", call.dtype(0),
          " and ", call.dtype(1));
  return call.dtype(0);
}

std::vector<TensorType> infer_matmul(const OpCall& call) {
  const DType dtype = product_dtype(call);
  const Product sizes = matmul_product(call.attrs, call.shape(0), call.shape(1));
  Shape shape(call.shape(0).begin(), call.shape(0).end() - 2);
  shape.push_back(sizes.rows);
  shape.push_back(sizes.columns);
  return {{dtype, shape}};
}

std::vector<TensorType> infer_dense(const OpCall& call) {
  const DType dtype = product_dtype(call);
  const Product sizes = dense_product(call.shape(0), call.shape(1));
  const TensorType bias{call.attrs.string("mixed").empty() ? dtype : DType::Float32, {sizes.columns}};
  require(!call.has(2) || call.type(2) == bias, ErrorCode::ShapeMismatch, "bias is ", call.has(2) ? call.type(2) : bias,
          ", wanted ", bias);
  const std::string& activation = call.attrs.string("activation");
  require(activation == "none" || activation == "relu", ErrorCode::InvalidArgument, "activation is \"", activation,
          "\", wanted \"none\" or \"relu\"");
  return {{dtype, {sizes.rows, sizes.columns}}};
}

// ---- gradients -------------------------------------------------------------------------------------------------

// With y = a' b': da' = dy b'^T and db' = a'^T dy, transposed again where a' or b' is a transpose.
std::vector<ValueId> grad_matmul(GradCall& call) {
  const ValueId a = call.inputs[0], b = call.inputs[1], dy = call.grads[0];
  const bool ta = call.attrs.flag("transpose_a"), tb = call.attrs.flag("transpose_b");
  const bool precise = call.attrs.flag("precise");
  const auto matmul = [&](ValueId left, ValueId right, bool transpose_left, bool transpose_right) {
    return call.op("matmul", {left, right},
                   {{"transpose_a", transpose_left}, {"transpose_b", transpose_right}, {"precise", precise}});
  };
  return {ta ? matmul(b, dy, tb, true) : matmul(dy, b, false, !tb),
          tb ? matmul(dy, a, true, ta) : matmul(a, dy, !ta, false)};
}

// ---- kernels ---------------------------------------------------------------------------------------------------

void matmul_layouts(LayoutCall& call) {
  cpu::choose_layouts(call, matmul_product(call.attrs, call.input_types[0].shape, call.input_types[1].shape));
}

void dense_layouts(LayoutCall& call) {
  cpu::choose_layouts(call, dense_product(call.input_types[0].shape, call.input_types[1].shape));
}

Launch prepare_matmul(KernelCall& call) {
  return cpu::prepare_product(matmul_product(call.attrs, call.inputs[0].shape, call.inputs[1].shape), {}, call);
}

Launch prepare_dense(KernelCall& call) {
  const bool bias = call.present.size() > 2 && call.present[2];
  return cpu::prepare_product(dense_product(call.inputs[0].shape, call.inputs[1].shape),
                              {bias, call.attrs.string("activation") == "relu"}, call);
}

double matmul_flops(const KernelCall& call) {
  return flops_of(matmul_product(call.attrs, call.inputs[0].shape, call.inputs[1].shape));
}

double dense_flops(const KernelCall& call) {
  return flops_of(dense_product(call.inputs[0].shape, call.inputs[1].shape));
}

// ---- fusion ----------------------------------------------------------------------------------------------------

// x W^T, bias_add and perhaps relu, when nobody else reads what is between them.
bool fuse_dense(Rewriter& graph, NodeId id) {
  const Node& matmul = graph.node(id);
  const bool fits = graph.type(matmul.outputs[0]).shape.rank() == 2 && !matmul.attrs.flag("transpose_a") &&
                    matmul.attrs.flag("transpose_b") && !matmul.attrs.flag("precise");
  const NodeId bias_id = fits ? graph.sole_reader(matmul.outputs[0]) : kNone;
  if (bias_id == kNone || graph.node(bias_id).op->name != "bias_add") return false;
  const Node& bias_add = graph.node(bias_id);
  if (bias_add.inputs[0] != matmul.outputs[0]) return false;
  const std::string& mixed = matmul.attrs.string("mixed");
  const DType rounds_to = matmul.attrs.dtype("rounds_to");
  const DType bias_dtype = mixed.empty() ? graph.type(matmul.outputs[0]).dtype : DType::Float32;
  if (graph.type(bias_add.inputs[1]).dtype != bias_dtype) return false;
  const std::vector<ValueId> inputs{matmul.inputs[0], matmul.inputs[1], bias_add.inputs[1]};

  const NodeId relu_id = graph.sole_reader(bias_add.outputs[0]);
  if (relu_id != kNone && graph.node(relu_id).op->name == "relu") {
    graph.fuse({id, bias_id, relu_id}, "dense", inputs,
               {{"activation", std::string("relu")}, {"mixed", mixed}, {"rounds_to", rounds_to}},
               graph.node(relu_id).outputs);
  } else {
    graph.fuse({id, bias_id}, "dense", inputs, {{"mixed", mixed}, {"rounds_to", rounds_to}}, bias_add.outputs);
  }
  return true;
}

// ---- the ops ---------------------------------------------------------------------------------------------------

Attrs transposes(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

}  // namespace

void add_matmul(Catalog& catalog) {
  OpDef matmul;
  matmul.name = "matmul";
  matmul.lua = "matmul";
  matmul.doc =
      "Matrix product, or the products of two stacks of matrices pair by pair.\n"
      "  out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]\n"
      "shapes: a (..., rows, inner), b (..., inner, columns) -> (..., rows, columns); leading axes equal; with\n"
      "  transpose_a a is (..., inner, rows), with transpose_b b is (..., columns, inner). In Lua leading axes\n"
      "  broadcast.\n"
      "dtypes: float32, float64, bfloat16 or float16, both inputs alike; sums of the last two are float32\n"
      "errors: inner or leading sizes differ; a rank below 2";
  matmul.inputs = {{"a"}, {"b"}};
  matmul.attrs = {{"transpose_a", false, "take the transpose of a's last two axes"},
                  {"transpose_b", false, "take the transpose of b's last two axes"},
                  precise_attr(),
                  mixed_attr(),
                  rounds_to_attr()};
  matmul.narrow.role = NarrowUse::Computes;
  matmul.narrow.in_kernels = true;
  matmul.narrow.takes_either = {0, 1};
  matmul.narrow.pays = [](const OpCall& call, DType narrow) {
    return cpu::narrow_pays(matmul_product(call.attrs, call.shape(0), call.shape(1)), narrow, call.dtype(1));
  };
  matmul.infer = infer_matmul;
  matmul.grad = grad_matmul;
  matmul.cpu = {prepare_matmul, matmul_layouts};
  matmul.flops = matmul_flops;
  matmul.rewrites = {{"matmul + bias_add (+ relu)", {"dense"}, fuse_dense},
                     {"matmul + gradients of dropout and relu", {"dense_input_grad"}, fuse_way_back, true}};
  matmul.examples = {
      {{f32({3, 4}), f32({4, 5})}},
      {{f32({4, 3}), f32({4, 5})}, transposes(true, false)},
      {{f32({3, 4}), f32({5, 4})}, transposes(false, true)},
      {{f32({4, 3}), f32({5, 4})}, transposes(true, true)},
      {{f32({17, 9}), f32({9, 20})}},
      {{f32({2, 3, 4}), f32({2, 4, 5})}},
      {{f32({2, 2, 4, 3}), f32({2, 2, 5, 4})}, transposes(true, true)},
      {{f32({17, 9}), f32({9, 70})}, {{"mixed", std::string("bfloat16")}}},
      {{f32({17, 9}), f32({70, 9})}, {{"transpose_b", true}, {"mixed", std::string("bfloat16")}}},
      {{f32({9, 17}), bf16({9, 70})}, {{"transpose_a", true}, {"mixed", std::string("float32")}}},
      {{f32({3, 47}), bf16({37, 47})}, {{"transpose_b", true}, {"mixed", std::string("float32")}}},
      {{bf16({13, 48}), f32({37, 48})}, {{"transpose_b", true}, {"mixed", std::string("bfloat16")}}},
      {{f32({17, 9}), f32({9, 70})}, {{"mixed", std::string("float16")}, {"rounds_to", DType::Float16}}},
      {{f16({13, 48}), f32({37, 48})},
       {{"transpose_b", true}, {"mixed", std::string("float32")}, {"rounds_to", DType::Float16}}},
  };
  catalog.add(std::move(matmul));

  OpDef dense;
  dense.name = "dense";
  dense.doc =
      "A fully connected layer: out = activation(x weight^T + bias). Made by fusion, after gradients.\n"
      "shapes: x (rows, in), weight (units, in), bias (units) -> (rows, units)";
  dense.inputs = {{"x"}, {"weight"}, {"bias", InputDef::Optional}};
  dense.attrs = {{"activation", std::string("none"), "\"none\" or \"relu\""}, mixed_attr(), rounds_to_attr()};
  dense.narrow.in_kernels = true;
  dense.infer = infer_dense;
  dense.cpu = {prepare_dense, dense_layouts};
  dense.flops = dense_flops;
  dense.rewrites = {
      {"dense + sparse cross entropy, there and back", {"dense_softmax_cross_entropy"}, fuse_classifier_rows},
      {"dense + dense of few rows", {"dense_pair"}, fuse_dense_pair},
  };
  dense.examples = {
      {{f32({3, 7}), f32({5, 7}), f32({5})}},
      {{f32({20, 7}), f32({5, 7}), f32({5})}, {{"activation", std::string("relu")}}},
      {{f32({20, 7}), f32({5, 7})}},
      {{f32({20, 37}), bf16({70, 37}), f32({70})},
       {{"activation", std::string("relu")}, {"mixed", std::string("float32")}}},
      {{f32({2, 37}), bf16({9, 37}), f32({9})},
       {{"activation", std::string("relu")}, {"mixed", std::string("bfloat16")}}},
      {{f32({20, 37}), f16({70, 37}), f32({70})},
       {{"activation", std::string("relu")}, {"mixed", std::string("float16")}, {"rounds_to", DType::Float16}}},
  };
  catalog.add(std::move(dense));
}

}  // namespace moonflow
