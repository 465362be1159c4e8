// dense_softmax_cross_entropy: the last dense layer of a classifier, its loss, the loss's gradient for the logits, and
// what that is for the layer's input, before its dropout and relu. Each is little work and needs nothing of other rows,
// so they are one: on a card, where a step costs a launch whatever it does, and on the CPU where there are few classes.
// The logits are stored where somebody wants to see them.
#include "kernels/classifier.h"

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/dense_back.h"
#include "kernels/matmul.h"
#include "kernels/random_draws.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using namespace classifier;

TensorType logits_type(const TensorType& x, const TensorType& weight) {
  return {x.dtype, {x.shape[0], weight.shape[0]}};
}

// By how the losses infer.
std::vector<TensorType> infer_classifier(const Infer& sparse, const Infer& dense, const OpCall& call) {
  require_floating(call, kX, "x");
  dense_product(call.shape(kX), call.shape(kWeight));
  require(call.dtype(kWeight) == call.dtype(kX), ErrorCode::DtypeMismatch, "x is ", call.type(kX), ", weight is ",
          call.type(kWeight));
  const TensorType logits = logits_type(call.type(kX), call.type(kWeight));
  if (call.has(kBias)) require_type(call, kBias, "bias", {logits.dtype, {logits.shape[1]}});
  if (call.has(kY)) require_type(call, kY, "y", call.type(kX));
  if (call.has(kMask)) require_type(call, kMask, "mask", {DType::Int8, call.shape(kX)});
  draws::checked_rate(call.attrs);
  const TensorType* const dy = call.has(kDy) ? call.inputs[kDy] : nullptr;
  const std::vector<const TensorType*> inputs{call.inputs[kLabels], &logits, dy};
  std::vector<TensorType> types = (is_floating(call.dtype(kLabels)) ? dense : sparse)(OpCall{inputs, call.attrs});
  types.push_back({logits.dtype, call.attrs.flag("back") ? call.shape(kX) : Shape{0}});
  types.push_back({logits.dtype, call.attrs.flag("shown") ? logits.shape : Shape{0}});
  return types;
}

// ---- CPU -----------------------------------------------------------------------------------------------------
// Few classes have a kernel of their own (classifier_rows.cpp). Of others plans of the CPU keep the parts, which have
// kernels that are faster; here are loops that say what is meant.

template <class T>
void multiply_rows(const Product& sizes, const T* x, const T* weight, const T* bias, T* logits) {
  for (int64_t row = 0; row < sizes.rows; ++row) {
    for (int64_t unit = 0; unit < sizes.columns; ++unit) {
      T sum = 0;
      for (int64_t k = 0; k < sizes.inner; ++k) sum += x[row * sizes.inner + k] * weight[unit * sizes.inner + k];
      logits[row * sizes.columns + unit] = bias ? sum + bias[unit] : sum;
    }
  }
}

Launch prepare_classifier(const Kernel& sparse, const Kernel& dense, KernelCall& call) {
  if (Launch rows = prepare_classifier_rows(call)) return rows;
  const TensorType logits = logits_type(call.inputs[kX], call.inputs[kWeight]);
  const Product sizes = dense_product(call.inputs[kX].shape, call.inputs[kWeight].shape);
  const Product sizes_back = product(logits.shape, call.inputs[kWeight].shape, false, false);
  const bool has_dy = call.has(kDy), back = call.attrs.flag("back"), shown = call.attrs.flag("shown");
  KernelCall loss{call.device,
                  call.attrs,
                  {call.inputs[kLabels], logits, has_dy ? call.inputs[kDy] : TensorType{}},
                  {true, true, has_dy},
                  {call.outputs[0], call.outputs[1]},
                  std::vector<Layout>(3),
                  std::vector<Layout>(2)};
  const Launch end = (is_floating(call.inputs[kLabels].dtype) ? dense : sparse).prepare(loss);
  const int64_t logits_bytes = aligned(logits.bytes());
  call.scratch_bytes = logits_bytes + loss.scratch_bytes;
  const double scale = 1 / (1 - call.attrs.number("rate"));
  return visit_floating(logits.dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const auto input = [&](int i) { return at.input<T>(i); };
      multiply_rows(sizes, input(kX), input(kWeight), input(kBias), static_cast<T*>(at.scratch));
      void* const inputs[] = {at.inputs[kLabels], at.scratch, at.inputs[kDy]};
      end({at.stream, inputs, at.outputs, static_cast<char*>(at.scratch) + logits_bytes, at.step});
      if (shown) std::copy_n(static_cast<const T*>(at.scratch), sizes.rows * sizes.columns, at.output<T>(3));
      if (!back) return;
      multiply_back(sizes_back, at.output<T>(1), input(kWeight), at.input<int8_t>(kMask), static_cast<T>(scale),
                    input(kY), at.output<T>(2));
    };
  });
}

double classifier_flops(const KernelCall& call) {
  const double once = flops_of(dense_product(call.inputs[kX].shape, call.inputs[kWeight].shape));
  return call.attrs.flag("back") ? 2 * once : once;
}

// ---- fusion --------------------------------------------------------------------------------------------------

// x weight^T, with or without a bias and nothing else, or kNone.
NodeId layer_of(const Rewriter& graph, ValueId logits) {
  const NodeId dense = graph.made_by(logits, "dense"), product = graph.made_by(logits, "matmul");
  if (dense == kNone && product == kNone) return kNone;
  const NodeId id = dense == kNone ? product : dense;
  const Attrs& attrs = graph.node(id).attrs;
  if (graph.type(logits).shape.rank() != 2 || is_narrow(graph.type(logits).dtype)) return kNone;
  const bool fits = id == dense ? attrs.string("activation") == "none" && attrs.string("mixed").empty()
                                : is_plain_product(attrs, false, true);
  return fits ? id : kNone;
}

}  // namespace

NodeId classifier::product_back(const Rewriter& graph, ValueId dlogits, ValueId weight) {
  for (const NodeId reader : graph.readers(dlogits)) {
    const Node& node = graph.node(reader);
    if (node.op->name == "matmul" && node.inputs[0] == dlogits && node.inputs[1] == weight &&
        is_plain_product(node.attrs, false, false))
      return reader;
  }
  return kNone;
}

bool fuse_classifier(Rewriter& graph, NodeId id) {
  if (!graph.launches_cost()) return false;
  const Node& loss = graph.node(id);
  const ValueId logits = loss.inputs[1], dlogits = loss.outputs[1];
  const NodeId layer_id = graph.readers(logits).size() == 1 ? layer_of(graph, logits) : kNone;
  if (layer_id == kNone) return false;
  const Node& layer = graph.node(layer_id);
  const ValueId x = layer.inputs[0], weight = layer.inputs[1];
  // A warp has whole logits, so beyond a few, and beyond some work, the library is faster by more than a launch.
  constexpr int64_t kMostUnits = 64, kFewUnits = 16;
  constexpr double kMostFlops = 64e6;
  const Product sizes = dense_product(graph.type(x).shape, graph.type(weight).shape);
  if (sizes.columns > kMostUnits || (sizes.columns > kFewUnits && flops_of(sizes) > kMostFlops)) return false;

  std::vector<NodeId> nodes{id, layer_id};
  WayBack way;
  const NodeId product = product_back(graph, dlogits, weight);
  if (product != kNone) {
    way = way_back_of(graph, graph.node(product).outputs[0], x);
    nodes.push_back(product);
    nodes.insert(nodes.end(), way.nodes.begin(), way.nodes.end());
  }
  const bool back = product != kNone;
  const bool shown = graph.tapped(logits);
  const TensorType nothing{graph.type(logits).dtype, Shape{0}};
  if (!back) way.dx = graph.add_value(nothing);
  const ValueId bias = layer.inputs.size() > 2 ? layer.inputs[2] : kNone;
  graph.fuse(nodes, "dense_softmax_cross_entropy", {x, weight, loss.inputs[0], bias, way.y, way.mask, loss.inputs[2]},
             {{"seed", loss.attrs.number("seed")}, {"back", back}, {"shown", shown}, {"rate", way.rate}},
             {loss.outputs[0], dlogits, way.dx, shown ? logits : graph.add_value(nothing)});
  return true;
}

void add_classifier(Catalog& catalog) {
  OpDef op;
  op.name = "dense_softmax_cross_entropy";
  op.doc =
      "The softmax cross entropy of a dense layer, and its gradients for the layer's result and input. Made by "
      "fusion.\n"
      "  logits = x weight^T + bias; of no elements unless shown\n"
      "  out and dlogits as of sparse_softmax_cross_entropy_and_grad, or of softmax_cross_entropy_and_grad where\n"
      "  labels are distributions\n"
      "  dx = dlogits weight, through dropout where mask is given: mask ? dx / (1 - rate) : 0, and through relu where\n"
      "  its result y is: y > 0 ? dx : 0; of no elements unless back\n"
      "shapes: x (rows, in), weight (units, in), labels (rows), (rows, 1) or (rows, units), bias (units), y and mask\n"
      "  as x, dy as out -> out (rows) or (rows, 1), dlogits (rows, units), dx as x,\n"
      "  logits as dlogits\n"
      "dtypes: float32 or float64, all alike; mask int8; labels of an integer dtype, or as x\n"
      "errors: a label outside [0, units) names its row";
  op.inputs = {{"x"},
               {"weight"},
               {"labels"},
               {"bias", InputDef::Optional},
               {"y", InputDef::Optional},
               {"mask", InputDef::Optional},
               {"dy", InputDef::Optional}};
  op.outputs = {"out", "dlogits", "dx", "logits"};
  op.attrs = {{"seed", 1.0, "the gradient of every loss, where dy is left out"},
              {"back", true, "give dx"},
              {"shown", false, "give the logits"},
              {"rate", 0.0, "that of the dropout"}};
  const OpDef &sparse = catalog.at("sparse_softmax_cross_entropy_and_grad"),
              &dense = catalog.at("softmax_cross_entropy_and_grad");
  op.infer = [sparse = sparse.infer, dense = dense.infer](const OpCall& call) {
    return infer_classifier(sparse, dense, call);
  };
  op.cpu = {[sparse = sparse.cpu, dense = dense.cpu](KernelCall& call) {
    return prepare_classifier(sparse, dense, call);
  }};
  op.flops = classifier_flops;
  op.examples = {{{f32({4, 7}), f32({5, 7}), i32({4, 1})}, {{"seed", 0.5}, {"back", false}}, -1, 1, 5},
                 {{f32({4, 7}), f32({5, 7}), i32({4})}, {{"shown", true}}, -1, 1, 5},
                 {{f32({6, 7}), f32({3, 7}), f32({6, 3})}, {{"shown", true}, {"back", false}}, -1, 1, 5},
                 {{f32({27, 83}), f32({32, 83}), i32({27, 1})}, {{"seed", 0.5}}, -1, 1, 32}};
  for (const int64_t rows : {1, 3, 100}) {
    for (const int64_t units : {1, 2, 10, 64}) {
      const TensorType x = f32({rows, 33}), weight = f32({units, 33}), bias = f32({units});
      const TensorType mask{DType::Int8, x.shape};
      if (units > 1) op.examples.push_back({{x, weight, i32({rows}), bias, x}, {}, -1, 1, units});
      op.examples.push_back({{x, weight, f32({rows, units}), bias, x, mask, f32({rows})}, {{"rate", 0.25}}, -1, 1, 2});
    }
  }
  catalog.add(std::move(op));
}

}  // namespace moonflow
