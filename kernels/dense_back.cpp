// dense_input_grad: the gradient of a dense layer's input, and on through the dropout and the relu that made this. On a
// card each of those would be a launch; here they are the end of the product.
#include "kernels/dense_back.h"

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/elementwise.h"
#include "kernels/random_draws.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

enum Input { kGradient, kWeight, kY, kMask };

std::vector<TensorType> infer_back(const OpCall& call) {
  require_floating(call, kGradient, "dy");
  const Product sizes = product(call.shape(kGradient), call.shape(kWeight), false, false);
  require(call.shape(kGradient).rank() == 2, ErrorCode::ShapeMismatch, "dy is ", call.shape(kGradient),
          ", wanted (rows, units)");
  require(call.dtype(kWeight) == call.dtype(kGradient), ErrorCode::DtypeMismatch, "dy is ", call.type(kGradient),
          ", weight is ", call.type(kWeight));
  const TensorType dx{call.dtype(kGradient), {sizes.rows, sizes.columns}};
  if (call.has(kY)) require_type(call, kY, "y", dx);
  if (call.has(kMask)) require_type(call, kMask, "mask", {DType::Int8, dx.shape});
  draws::checked_rate(call.attrs);
  return {dx};
}

Launch prepare_back(KernelCall& call) {
  const Product sizes = product(call.inputs[kGradient].shape, call.inputs[kWeight].shape, false, false);
  const double scale = 1 / (1 - call.attrs.number("rate"));
  return visit_floating(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      multiply_back(sizes, at.input<T>(kGradient), at.input<T>(kWeight), at.input<int8_t>(kMask), static_cast<T>(scale),
                    at.input<T>(kY), at.output<T>(0));
    };
  });
}

}  // namespace

template <class T>
void multiply_back(const Product& sizes, const T* dy, const T* weight, const int8_t* mask, T scale, const T* y, T* dx) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    for (int64_t k = 0; k < sizes.columns; ++k) {
      const int64_t place = row * sizes.columns + k;
      T sum = 0;
      for (int64_t unit = 0; unit < sizes.inner; ++unit)
        sum += dy[row * sizes.inner + unit] * weight[unit * sizes.columns + k];
      if (mask) sum = mask[place] ? sum * scale : T(0);
      dx[place] = y ? functor::ReluGrad()(sum, y[place]) : sum;
    }
  }
}
template void multiply_back(const Product&, const float*, const float*, const int8_t*, float, const float*, float*);
template void multiply_back(const Product&, const double*, const double*, const int8_t*, double, const double*,
                            double*);

WayBack way_back_of(const Rewriter& graph, ValueId gradient, ValueId x) {
  WayBack back;
  back.dx = gradient;
  const auto next = [&](const char* op) {
    const NodeId reader = graph.sole_reader(back.dx);
    if (reader == kNone || graph.node(reader).op->name != op) return kNone;
    return graph.node(reader).inputs[0] == back.dx ? reader : kNone;
  };
  const auto go = [&](NodeId node) {
    back.nodes.push_back(node);
    back.dx = graph.node(node).outputs[0];
  };
  const NodeId dropped = next("dropout_grad"), dropout = graph.made_by(x, "dropout");
  if (dropped != kNone && dropout != kNone && graph.node(dropped).inputs[1] == graph.node(dropout).outputs[1]) {
    go(dropped);
    back.mask = graph.node(dropped).inputs[1];
    back.rate = graph.node(dropped).attrs.number("rate");
    x = graph.node(dropout).inputs[0];
  }
  const NodeId gated = next("relu_grad");
  if (gated != kNone && graph.node(gated).inputs[1] == x) {
    go(gated);
    back.y = x;
  }
  return back;
}

bool fuse_way_back(Rewriter& graph, NodeId id) {
  if (!graph.launches_cost()) return false;
  const Node& product = graph.node(id);
  const ValueId dx = product.outputs[0];
  if (!is_plain_product(product.attrs, false, false)) return false;
  if (graph.type(dx).shape.rank() != 2 || is_narrow(graph.type(dx).dtype)) return false;
  // What the layer's input was is what the next gradient on the way knows: relu's its own result, dropout's its mask.
  const NodeId reader = graph.sole_reader(dx);
  if (reader == kNone || graph.node(reader).inputs.size() < 2) return false;
  const ValueId known = graph.node(reader).inputs[1];
  const bool is_mask = graph.node(reader).op->name == "dropout_grad";
  if (is_mask && graph.made_by(known, "dropout") == kNone) return false;
  const WayBack back = way_back_of(graph, dx, is_mask ? graph.node(graph.maker(known)).outputs[0] : known);
  if (back.nodes.empty()) return false;
  std::vector<NodeId> nodes{id};
  nodes.insert(nodes.end(), back.nodes.begin(), back.nodes.end());
  graph.fuse(nodes, "dense_input_grad", {product.inputs[0], product.inputs[1], back.y, back.mask},
             {{"rate", back.rate}}, {back.dx});
  return true;
}

void add_dense_back(Catalog& catalog) {
  OpDef op;
  op.name = "dense_input_grad";
  op.doc =
      "Gradient of a dense layer for its input, through the dropout and the relu before it. Made by fusion.\n"
      "  dx = dy weight, with mask: mask ? dx / (1 - rate) : 0, and then with y, the result of relu: y > 0 ? dx : 0\n"
      "shapes: dy (rows, units), weight (units, in), y and mask (rows, in) -> dx (rows, in)\n"
      "dtypes: float32 or float64, all alike; mask int8";
  op.inputs = {{"dy"}, {"weight"}, {"y", InputDef::Optional}, {"mask", InputDef::Optional}};
  op.outputs = {"dx"};
  op.attrs = {{"rate", 0.0, "that of the dropout"}};
  op.infer = infer_back;
  op.cpu = {prepare_back};
  op.flops = [](const KernelCall& call) {
    return flops_of(product(call.inputs[kGradient].shape, call.inputs[kWeight].shape, false, false));
  };
  for (const int64_t rows : {1, 3, 100}) {
    for (const int64_t units : {1, 2, 10, 64}) {
      const TensorType dy = f32({rows, units}), weight = f32({units, 33}), y = f32({rows, 33});
      op.examples.push_back({{dy, weight, y}});
      op.examples.push_back({{dy, weight, y, {DType::Int8, y.shape}}, {{"rate", 0.25}}, -1, 1, 2});
    }
  }
  catalog.add(std::move(op));
}

}  // namespace moonflow
