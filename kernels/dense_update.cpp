// dense_sgd_update: all that a step of plain gradient descent changes, in one step. The gradients of dense layers,
// weight and bias, go into their variables as they are summed; those of others are taken as they are; and the number of
// the step goes up. On a card each of these would be a launch that waits for the one before, and most are little work.
#include "kernels/dense_update.h"

#include <algorithm>

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/matmul.h"
#include "kernels/types.h"
#include "kernels/update_rules.h"

namespace moonflow {
namespace {

enum Input { kVariable, kBias, kGradient, kX, kRate, kInputs };

void check_group(const OpCall& group) {
  const TensorType& variable = group.type(kVariable);
  if (!is_floating(variable.dtype)) {
    require(variable == TensorType{DType::Int64, {}} && group.type(kGradient) == variable && !group.has(kBias) &&
                !group.has(kX),
            ErrorCode::ShapeMismatch, "a variable is ", variable, ", counted up by ", group.type(kGradient),
            "; wanted int64 () for both, alone");
  } else if (!group.has(kX)) {
    require(group.type(kGradient) == variable && !group.has(kBias), ErrorCode::ShapeMismatch, "a variable is ",
            variable, ", its gradient ", group.type(kGradient));
  } else {
    const Shape &dy = group.shape(kGradient), &x = group.shape(kX);
    require(dy.rank() == 2 && x.rank() == 2 && dy[0] == x[0] && variable.shape == Shape{dy[1], x[1]} &&
                group.dtype(kGradient) == variable.dtype && group.dtype(kX) == variable.dtype,
            ErrorCode::ShapeMismatch, "a weight is ", variable, ", the gradient of its layer ", group.type(kGradient),
            ", the layer's input ", group.type(kX), "; wanted (units, in), (rows, units) and (rows, in) of one dtype");
    if (group.has(kBias)) require_type(group, kBias, "bias", {variable.dtype, {dy[1]}});
  }
  require_type(group, kRate, "learning_rate", {DType::Float32, {}});
}

std::vector<TensorType> infer_update(const OpCall& call) {
  for (size_t i = 0; i < call.inputs.size(); i += kInputs) {
    const auto from = call.inputs.begin() + static_cast<int64_t>(i);
    const std::vector<const TensorType*> inputs(from, from + kInputs);
    check_group({inputs, call.attrs});
  }
  return {};
}

// ---- CPU -----------------------------------------------------------------------------------------------------
// Plans of the CPU keep the parts, which have kernels that are faster; here are loops that say what is meant.

template <class T>
void descend(const update::Descent& rule, void* const* group, const Shape& dy_shape, const Shape& x_shape) {
  void* const numbers[] = {group[kVariable], group[kGradient], group[kRate], nullptr};
  const auto step = rule.template step<T, double>(numbers);
  T *const weight = static_cast<T*>(group[kVariable]), *const bias = static_cast<T*>(group[kBias]);
  const T *const dy = static_cast<const T*>(group[kGradient]), *const x = static_cast<const T*>(group[kX]);
  if (x == nullptr) {
    for (int64_t i = 0; i < dy_shape.count(); ++i) step(weight[i], dy[i]);
    return;
  }
  const int64_t rows = dy_shape[0], units = dy_shape[1], in = x_shape[1];
  for (int64_t unit = 0; unit < units; ++unit) {
    for (int64_t k = 0; k < in; ++k) {
      T sum = 0;
      for (int64_t row = 0; row < rows; ++row) sum += dy[row * units + unit] * x[row * in + k];
      step(weight[unit * in + k], sum);
    }
    if (bias == nullptr) continue;
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += dy[row * units + unit];
    step(bias[unit], static_cast<T>(sum));
  }
}

Launch prepare_update(KernelCall& call) {
  return [types = call.inputs, rule = update::Descent(call.attrs)](const LaunchCall& at) {
    for (size_t i = 0; i < types.size(); i += kInputs) {
      void* const* const group = at.inputs + i;
      if (types[i].dtype == DType::Int64) {
        *static_cast<int64_t*>(group[kVariable]) += *static_cast<const int64_t*>(group[kGradient]);
        continue;
      }
      visit_floating(types[i].dtype, [&](auto zero) {
        descend<decltype(zero)>(rule, group, types[i + kGradient].shape, types[i + kX].shape);
      });
    }
  };
}

double update_flops(const KernelCall& call) {
  double flops = 0;
  for (size_t i = 0; i < call.inputs.size(); i += kInputs)
    if (call.present[i + kX])
      flops += 2 * static_cast<double>(call.inputs[i].count()) * static_cast<double>(call.inputs[i + kX].shape[0]);
  return flops;
}

// ---- fusion --------------------------------------------------------------------------------------------------

// The gradient of a dense layer's weight, as autodiff makes it, or kNone. Few rows, since one block of a card sums a
// bias over all of them. Writers come last, so the factors live until then: they must be small, or no larger than the
// gradient that need not be stored.
NodeId product_of(const Rewriter& graph, NodeId update, ValueId gradient) {
  const NodeId id = graph.made_by(gradient, "matmul");
  if (id == kNone || graph.sole_reader(gradient) != update) return kNone;
  const Node& product = graph.node(id);
  if (!is_plain_product(product.attrs, true, false)) return kNone;
  const ValueId dy = product.inputs[0], x = product.inputs[1];
  constexpr int64_t kMostRows = 1024, kLittle = int64_t{4} << 20;
  if (graph.type(dy).shape.rank() != 2 || graph.type(dy).shape[0] > kMostRows) return kNone;
  const int64_t factors = graph.type(dy).bytes() + graph.type(x).bytes();
  if (factors > std::max(kLittle, graph.type(gradient).bytes())) return kNone;
  return may_join_update(graph, {dy, x}) ? id : kNone;
}

// Of a single variable, by nothing but its gradient and the rate.
bool is_plain(const Rewriter& graph, NodeId id) {
  const Node& update = graph.node(id);
  if (update.op->name != "sgd_update" || update.inputs.size() != update.op->inputs.size()) return false;
  if (std::any_of(update.inputs.begin() + 3, update.inputs.end(), [](ValueId input) { return input != kNone; }))
    return false;
  return graph.type(update.inputs[0]).dtype == DType::Float32 && !graph.is_variable(update.inputs[1]);
}

// What counts the steps: an int64 that goes up by a constant.
bool counts(const Rewriter& graph, NodeId id) {
  const Node& node = graph.node(id);
  return graph.live(id) && node.kind == Node::Op && node.op->name == "assign_add" &&
         graph.type(node.inputs[0]) == TensorType{DType::Int64, {}} &&
         graph.node(graph.maker(node.inputs[1])).kind == Node::Constant && updates_alone(graph, id);
}

struct Group {
  NodeId update;
  NodeId product;  // the gradient of a dense layer, or kNone
  ValueId bias;
};

}  // namespace

bool joins_descent(const Rewriter& graph, NodeId id) {
  return graph.launches_cost() && is_plain(graph, id) && updates_alone(graph, id);
}

bool brings_layer(const Rewriter& graph, NodeId id) {
  return joins_descent(graph, id) && product_of(graph, id, graph.node(id).inputs[1]) != kNone;
}

bool fuse_descent(Rewriter& graph, NodeId id) {
  if (!joins_descent(graph, id)) return false;
  const Node& first = graph.node(id);
  const ValueId rate = first.inputs[2];
  std::vector<NodeId> updates;
  for (const NodeId reader : graph.readers(rate)) {
    if (std::find(updates.begin(), updates.end(), reader) != updates.end() || !joins_descent(graph, reader)) continue;
    if (graph.node(reader).inputs[2] == rate && graph.node(reader).attrs == first.attrs) updates.push_back(reader);
  }
  std::sort(updates.begin(), updates.end());

  std::vector<Group> groups;
  std::vector<NodeId> nodes = updates;
  for (const NodeId update : updates) {
    const NodeId product = product_of(graph, update, graph.node(update).inputs[1]);
    groups.push_back({update, product, kNone});
    if (product != kNone) nodes.push_back(product);
  }
  // A bias goes with the weight of its layer: their gradients are made of one value.
  for (size_t i = 0; i < groups.size();) {
    const ValueId gradient = graph.node(groups[i].update).inputs[1];
    const NodeId sum = graph.made_by(gradient, "bias_grad");
    const auto layer = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return sum != kNone && graph.sole_reader(gradient) == groups[i].update && group.product != kNone &&
             group.bias == kNone && graph.node(group.product).inputs[0] == graph.node(sum).inputs[0];
    });
    if (layer == groups.end()) {
      ++i;
      continue;
    }
    layer->bias = graph.node(groups[i].update).inputs[0];
    nodes.push_back(sum);
    groups.erase(groups.begin() + static_cast<int64_t>(i));
  }
  std::vector<ValueId> inputs;
  for (const Group& group : groups) {
    const Node& update = graph.node(group.update);
    const bool is_layer = group.product != kNone;
    const std::vector<ValueId>& factors = is_layer ? graph.node(group.product).inputs : update.inputs;
    inputs.insert(inputs.end(), {update.inputs[0], group.bias, factors[is_layer ? 0 : 1],
                                 is_layer ? factors[1] : kNone, rate});
  }
  for (NodeId other = 0; other < graph.node_count(); ++other) {
    if (!counts(graph, other)) continue;
    inputs.insert(inputs.end(), {graph.node(other).inputs[0], kNone, graph.node(other).inputs[1], kNone, rate});
    nodes.push_back(other);
  }
  if (nodes.size() == 1) return false;
  graph.fuse(nodes, "dense_sgd_update", std::move(inputs),
             {{"gradient_scale", first.attrs.number("gradient_scale")}}, {});
  return true;
}

void add_dense_update(Catalog& catalog) {
  OpDef op;
  op.name = "dense_sgd_update";
  op.doc =
      "Gradient descent of all variables of a step, where those of a dense layer take their gradients as these are\n"
      "summed. Made by fusion.\n"
      "  with x: variable -= learning_rate * gradient_scale * gradient^T x, and\n"
      "    bias -= learning_rate * gradient_scale * the sum of gradient over its rows\n"
      "  without: variable -= learning_rate * gradient_scale * gradient; of int64: variable += gradient\n"
      "shapes: with x: variable (units, in), bias (units), gradient (rows, units), x (rows, in); else variable and\n"
      "  gradient of one shape; learning_rate ()\n"
      "dtypes: float32 or float64, those of a variable alike, or int64 (); learning_rate float32";
  op.inputs = {{"variable", InputDef::Many},
               {"bias", InputDef::Optional},
               {"gradient"},
               {"x", InputDef::Optional},
               {"learning_rate"}};
  op.outputs = {};
  op.attrs = {{"gradient_scale", 1.0, "factor of every gradient"}};
  op.infer = infer_update;
  op.writes = {kVariable, kBias};
  op.cpu = {prepare_update};
  op.flops = update_flops;
  const TensorType rate = f32({});
  for (const int64_t rows : {1, 3, 100})
    for (const int64_t units : {1, 2, 10, 64})
      op.examples.push_back({{f32({units, 7}), f32({units}), f32({rows, units}), f32({rows, 7}), rate}});
  op.examples.push_back({{f32({3, 40}), f32({3}), f32({9, 3}), f32({9, 40}), rate,  //
                          f32({40, 5}), f32({40}), f32({9, 40}), f32({9, 5}), rate},
                         {{"gradient_scale", 0.1}}});
  catalog.add(std::move(op));
}

}  // namespace moonflow
