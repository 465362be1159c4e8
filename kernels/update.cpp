// What changes variables: assignment and the optimizers' update rules, and the helpers that prepare gradients for them.
// Updates write their first inputs in place and have no output. Learning rate and step are values, not attributes, so
// a schedule needs no recompile.
#include <cmath>
#include <cstring>

#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/update_loop.h"
#include "kernels/dense_update.h"
#include "kernels/matmul_update.h"
#include "kernels/rows_update.h"
#include "kernels/scatter_assign.h"
#include "kernels/types.h"
#include "kernels/update_rules.h"

namespace moonflow {
namespace {

using cpu::parallel_for;
using cpu::widest;

// ---- inference -----------------------------------------------------------------------------------------------

// Inputs [0, tensors) are of one floating type; a left-out one is skipped.
void check_tensors(const OpCall& call, const OpDef& op, int tensors) {
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "the variable is ", call.type(0),
          ", needs float32 or float64");
  for (int i = 1; i < tensors; ++i) {
    require(!call.has(i) || call.type(i) == call.type(0), ErrorCode::ShapeMismatch, op.inputs[i].name, " is ",
            call.has(i) ? call.type(i) : TensorType{}, ", the variable is ", call.type(0));
  }
}

void check_scalar(const OpCall& call, const OpDef& op, int i, DType dtype) {
  require(call.type(i) == TensorType{dtype, {}}, ErrorCode::ShapeMismatch, op.inputs[i].name, " is ", call.type(i),
          ", it must be ", TensorType{dtype, {}});
}

const char* const kDtypes = "dtypes: float32, float64; learning_rate float32 ()";

// Runs loop(first, last), a plain loop over elements, in parallel and in the widest registers.
template <class Loop>
void each_element(int64_t count, const Loop& loop) {
  parallel_for(count, cpu::kWideGrain, [&](int64_t first, int64_t last) { widest([&] { loop(first, last); }); });
}

// ---- assign --------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_assign(const OpCall& call) {
  require(call.type(0) == call.type(1), ErrorCode::ShapeMismatch, "the variable is ", call.type(0), ", the value is ",
          call.type(1));
  return {};
}

OpDef assign() {
  OpDef op;
  op.name = op.lua = "assign";
  op.doc =
      "Gives a variable a value at the end of the run.\n"
      "  variable = value\n"
      "shapes: variable and value of one shape\n"
      "dtypes: all, one for both\n"
      "errors: two types; the first input is not a variable";
  op.inputs = {{"variable"}, {"value"}};
  op.outputs = {};
  op.infer = infer_assign;
  op.writes = {0};
  op.rewrites = {{"tensor_scatter_nd_update + assign",
                  {"tensor_scatter_nd_rows", "tensor_scatter_nd_assign"},
                  fuse_scatter_into_assign}};
  op.cpu = {[](KernelCall& call) -> Launch {
    return [bytes = call.inputs[0].bytes()](const LaunchCall& launch) {
      char* to = static_cast<char*>(launch.inputs[0]);
      const char* from = static_cast<const char*>(launch.inputs[1]);
      if (to == from) return;
      parallel_for(bytes, 8 * cpu::kGrain,
                   [=](int64_t first, int64_t last) { std::memcpy(to + first, from + first, last - first); });
    };
  }};
  op.examples = {{{{DType::Float32, {2, 3}}, {DType::Float32, {2, 3}}}}, {{{DType::Int64, {}}, {DType::Int64, {}}}}};
  return op;
}

OpDef assign_add() {
  OpDef op = assign();
  op.name = op.lua = "assign_add";
  op.rewrites.clear();
  op.doc =
      "Adds a value to a variable at the end of the run.\n"
      "  variable = variable + value\n"
      "shapes: variable and value of one shape\n"
      "dtypes: all, one for both; integers wrap around\n"
      "errors: two types; the first input is not a variable";
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [count = call.inputs[0].count()](const LaunchCall& launch) {
        T* w = static_cast<T*>(launch.inputs[0]);
        const T* value = static_cast<const T*>(launch.inputs[1]);
        each_element(count, [=](int64_t first, int64_t last) {
          using U = std::conditional_t<std::is_floating_point_v<T>, T, uint64_t>;  // wraps around
#pragma GCC ivdep
          for (int64_t i = first; i < last; ++i) w[i] = static_cast<T>(static_cast<U>(w[i]) + static_cast<U>(value[i]));
        });
      };
    });
  }};
  return op;
}

// ---- optimizers ----------------------------------------------------------------------------------------------
// An update takes any number of variables, one after the other in its list, and goes over all of their elements as if
// they were one: the many small ones of a network cost one step between them. The division by the loss's element
// count, which prepare_gradient does, is taken into a rule whose gradient gets nothing else: the gradient of a large
// layer is then read once and not written again.

// The last input of a variable. What a run finds out about its gradients, such as that they overflowed, thus decides
// where it is known, without the host.
const InputDef kFactor{"factor", InputDef::Optional};
const char* const kFactorDoc = "; factor float32 (), multiplies the gradient; 0: nothing is changed; left out: 1";

AttrDef gradient_scale_attr() { return {"gradient_scale", 1.0, "factor of the gradient"}; }

// The elements [first, last) of one variable.
template <class Rule, class T>
void run_rule(const Rule& rule, void* const* inputs, int64_t first, int64_t last) {
  if (!update::changes<Rule>(inputs)) return;
  T* written[Rule::kWritten];
  for (int i = 0; i < Rule::kWritten; ++i) written[i] = static_cast<T*>(inputs[i]) + first;
  cpu::move_elements<Rule>(rule.template step<T, double>(inputs), written,
                           static_cast<const T*>(inputs[Rule::kGradient]) + first, last - first);
}

template <class Rule>
Launch prepare_update(const KernelCall& call) {
  std::vector<int64_t> ends;  // of each variable in the sequence of all elements
  for (size_t i = 0; i < call.inputs.size(); i += Rule::kInputs)
    ends.push_back((ends.empty() ? 0 : ends.back()) + call.inputs[i].count());
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [rule = Rule(call.attrs), ends](const LaunchCall& launch) {
      parallel_for(ends.back(), cpu::kWideGrain, [&](int64_t first, int64_t last) {
        for (size_t i = std::upper_bound(ends.begin(), ends.end(), first) - ends.begin(); first < last; ++i) {
          const int64_t begin = i == 0 ? 0 : ends[i - 1], end = std::min(ends[i], last);
          run_rule<Rule, T>(rule, launch.inputs + i * Rule::kInputs, first - begin, end - begin);
          first = end;
        }
      });
    };
  });
}

// Whether `unscale` is the factor of `update` divided by a loss scale. That factor then only says whether the update is
// to happen, and `unscale` says so too.
bool is_unscaled_factor(const Rewriter& rewriter, const Node& update, ValueId unscale) {
  const NodeId divide = rewriter.made_by(unscale, "divide");
  return divide != kNone && rewriter.node(divide).inputs[0] == update.inputs.back();
}

// `gradient`: the input of the update that prepare_gradient makes.
template <int gradient>
bool fuse_gradient_scale(Rewriter& rewriter, NodeId id) {
  const Node& update = rewriter.node(id);
  const NodeId prepare = rewriter.made_by(update.inputs[gradient], "prepare_gradient");
  if (prepare == kNone || rewriter.sole_reader(update.inputs[gradient]) != id) return false;
  const Node& prepared = rewriter.node(prepare);
  const bool only_scales = prepared.attrs.number("l1") == 0 && prepared.attrs.number("l2") == 0;
  if (!only_scales || update.inputs.size() != update.op->inputs.size()) return false;
  const ValueId unscale = prepared.inputs[2];
  if (unscale != kNone && !is_unscaled_factor(rewriter, update, unscale)) return false;
  std::vector<ValueId> inputs = update.inputs;
  inputs[gradient] = prepared.inputs[0];
  if (unscale != kNone) inputs.back() = unscale;
  Attrs attrs = update.attrs;
  attrs.set("gradient_scale", attrs.number("gradient_scale") * prepared.attrs.number("scale"));
  rewriter.fuse({prepare, id}, update.op->name, std::move(inputs), std::move(attrs), {});
  return true;
}

// The updates of a step that go by one rule with one learning rate become one. It is the last of them that looks for
// the others, when each has been fused with what it can be. Those before it see that soon: nodes read the rate in the
// order of their ids.
template <int learning_rate>
bool fuse_updates(Rewriter& graph, NodeId id) {
  const Node& last = graph.node(id);
  const TensorType& type = graph.type(last.inputs[0]);
  const auto is_alike = [&](NodeId reader) {
    const Node& node = graph.node(reader);
    return node.op == last.op && node.attrs == last.attrs && graph.type(node.inputs[0]).dtype == type.dtype;
  };
  const std::vector<NodeId>& readers = graph.readers(last.inputs[learning_rate]);
  for (size_t i = readers.size(); i-- > 0 && readers[i] > id;)
    if (is_alike(readers[i])) return false;
  std::vector<NodeId> all;
  for (const NodeId reader : readers) {
    const bool is_known = !all.empty() && all.back() == reader;  // a fused one reads it for each of its variables
    if (!is_known && is_alike(reader) && updates_alone(graph, reader)) all.push_back(reader);
  }
  if (all.size() < 2) return false;
  std::vector<ValueId> inputs;
  for (const NodeId update : all) {
    const std::vector<ValueId>& its = graph.node(update).inputs;
    inputs.insert(inputs.end(), its.begin(), its.end());
  }
  graph.fuse(all, last.op->name, std::move(inputs), last.attrs, {});
  return true;
}

// Checks the groups of a list one by one: each variable with `tensors` - 1 companions of its type, its learning rate,
// whatever comes after, and a factor last. All are of one dtype.
template <class Rest>
Infer infer_update(const OpDef& op, int tensors, const Rest& rest) {
  return [op, tensors, rest](const OpCall& call) {
    for (size_t i = 0; i < call.inputs.size(); i += op.inputs.size()) {
      const auto from = call.inputs.begin() + static_cast<int64_t>(i);
      const std::vector<const TensorType*> inputs(from, from + static_cast<int64_t>(op.inputs.size()));
      const OpCall group{inputs, call.attrs};
      check_tensors(group, op, tensors);
      require(group.dtype(0) == call.dtype(0), ErrorCode::DtypeMismatch, "one variable is ", call.type(0),
              ", another is ", group.type(0));
      check_scalar(group, op, tensors, DType::Float32);
      const int factor = group.count() - 1;
      if (group.has(factor)) check_scalar(group, op, factor, DType::Float32);
      rest(group);
    }
    return std::vector<TensorType>{};
  };
}

Infer infer_update(const OpDef& op, int tensors) {
  return infer_update(op, tensors, [](const OpCall&) {});
}

OpDef sgd() {
  OpDef op;
  op.name = "sgd_update";
  op.doc = text("Stochastic gradient descent.\n  variable -= learning_rate * gradient\n",
                "shapes: variable and gradient of one shape\n", kDtypes, kFactorDoc);
  op.inputs = {{"variable", InputDef::Many}, {"gradient"}, {"learning_rate"}, kFactor};
  op.outputs = {};
  op.attrs = {gradient_scale_attr()};
  op.rewrites = {
      {"prepare_gradient + sgd_update", {op.name}, fuse_gradient_scale<1>},
      {"gather_grad + sgd_update", {"picks_by_row", "rows_sgd_update"}, fuse_rows_into_update<1>},
      {"matmul + sgd_update",
       {"matmul_sgd_update"},
       [](Rewriter& graph, NodeId id) { return !brings_layer(graph, id) && fuse_product_into_update(graph, id); }},
      {"matmul in bfloat16 + sgd_update", {"matmul_bfloat16_sgd_update"}, fuse_bfloat16_product_into_update},
      {"sgd_update + sgd_update",
       {op.name},
       [](Rewriter& graph, NodeId id) { return !joins_descent(graph, id) && fuse_updates<2>(graph, id); }},
      {"updates of a step", {"dense_sgd_update"}, fuse_descent, true}};
  op.infer = infer_update(op, 2);
  op.writes = {0};
  op.cpu = {[](KernelCall& call) { return prepare_update<update::Descent>(call); }};
  const TensorType x = f32({3, 5}), y = f32({7}), rate = f32({});
  op.examples = {{{x, x, rate}}, {{x, x, rate, rate, y, y, rate, rate}, {{"gradient_scale", 0.01}}}};
  return op;
}

OpDef momentum() {
  OpDef op;
  op.name = "momentum_update";
  op.doc = text(
      "Gradient descent with momentum; the learning rate is inside the momentum.\n"
      "  momentum = beta * momentum - learning_rate * gradient;  variable += momentum\n"
      "  nesterov: variable += beta * momentum - learning_rate * gradient, of the momentum just made\n"
      "shapes: variable, momentum and gradient of one shape\n",
      kDtypes, kFactorDoc);
  op.inputs = {{"variable", InputDef::Many}, {"momentum"}, {"gradient"}, {"learning_rate"}, kFactor};
  op.outputs = {};
  op.attrs = {{"beta", 0.9, "share of the momentum that is kept"},
              {"nesterov", false, "add the momentum that the next step would have of the same gradient"},
              gradient_scale_attr()};
  op.rewrites = {{"prepare_gradient + momentum_update", {op.name}, fuse_gradient_scale<2>},
                 {"momentum_update + momentum_update", {op.name}, fuse_updates<3>}};
  op.infer = infer_update(op, 3);
  op.writes = {0, 1};
  op.cpu = {[](KernelCall& call) {
    return call.attrs.flag("nesterov") ? prepare_update<update::Momentum<true>>(call)
                                       : prepare_update<update::Momentum<false>>(call);
  }};
  const TensorType x = f32({3, 5}), y = f32({7}), rate = f32({});
  op.examples = {{{x, x, x, rate}},
                 {{x, x, x, rate, rate, y, y, y, rate, rate}},
                 {{x, x, x, rate}, {{"nesterov", true}}}};
  return op;
}

OpDef adam() {
  OpDef op;
  op.name = "adam_update";
  op.doc = text(
      "Adam, and AdamW where weight_decay is not 0.\n"
      "  m = beta1 * m + (1 - beta1) * gradient;  v = beta2 * v + (1 - beta2) * gradient ^ 2\n"
      "  rate = learning_rate, times sqrt(1 - beta2 ^ (step + 1)) / (1 - beta1 ^ (step + 1)) with correction\n"
      "  variable -= rate * m / (sqrt(v) + epsilon) + learning_rate * weight_decay * variable\n"
      "shapes: variable, m, v and gradient of one shape\n",
      kDtypes,
      "; step int64 (), from 0", kFactorDoc, "\n"
      "source: Kingma and Ba, arXiv:1412.6980, with epsilon outside the corrected root as in its section 2;\n"
      "        Loshchilov and Hutter, arXiv:1711.05101");
  op.inputs = {{"variable", InputDef::Many}, {"m"}, {"v"}, {"gradient"}, {"learning_rate"}, {"step"}, kFactor};
  op.outputs = {};
  op.attrs = {{"beta1", 0.9, "share of the mean gradient that is kept"},
              {"beta2", 0.999, "share of the mean square that is kept"},
              {"epsilon", 1e-8, "added to the root, against division by 0"},
              {"bias_correction", true, "make up for m and v starting at 0"},
              {"weight_decay", 0.0, "pull toward 0, apart from the gradient"},
              gradient_scale_attr()};
  op.rewrites = {{"prepare_gradient + adam_update", {op.name}, fuse_gradient_scale<3>},
                 {"adam_update + adam_update", {op.name}, fuse_updates<4>}};
  op.infer = infer_update(op, 4, [op](const OpCall& call) { check_scalar(call, op, 5, DType::Int64); });
  op.writes = {0, 1, 2};
  op.cpu = {[](KernelCall& call) { return prepare_update<update::Adam>(call); }};
  const TensorType x = f32({3, 5}), y = f32({7}), rate = f32({}), step = {DType::Int64, {}};
  op.examples = {{{x, x, x, x, rate, step, rate, y, y, y, y, rate, step, rate}, {{"gradient_scale", 0.5}}, 0.1, 1},
                 {{x, x, x, x, rate, step}, {{"bias_correction", false}, {"weight_decay", 0.01}}, 0.1, 1}};
  return op;
}

OpDef rmsprop() {
  OpDef op;
  op.name = "rmsprop_update";
  op.doc = text(
      "RMSProp, centered when mean_gradient is given.\n"
      "  mean_square = decay_rate * mean_square + (1 - decay_rate) * gradient ^ 2\n"
      "  mean_gradient = decay_rate * mean_gradient + (1 - decay_rate) * gradient\n"
      "  variable -= learning_rate * gradient / sqrt(max(mean_square - mean_gradient ^ 2, 0) + epsilon)\n"
      "shapes: variable, mean_square, mean_gradient and gradient of one shape\n",
      kDtypes, kFactorDoc);
  op.inputs = {{"variable", InputDef::Many},
               {"mean_square"},
               {"mean_gradient", InputDef::Optional},
               {"gradient"},
               {"learning_rate"},
               kFactor};
  op.outputs = {};
  op.attrs = {{"decay_rate", 0.99, "share of the means that is kept"},
              {"epsilon", 1e-8, "added under the root"},
              {"centered", false, "subtract the square of the mean gradient; wants mean_gradient"},
              gradient_scale_attr()};
  op.rewrites = {{"prepare_gradient + rmsprop_update", {op.name}, fuse_gradient_scale<3>},
                 {"rmsprop_update + rmsprop_update", {op.name}, fuse_updates<4>}};
  op.infer = infer_update(op, 4, [](const OpCall& call) {
    require(call.has(2) == call.attrs.flag("centered"), ErrorCode::InvalidArgument,
            "mean_gradient goes with centered, and only with it");
  });
  op.writes = {0, 1, 2};
  op.cpu = {[](KernelCall& call) {
    return call.attrs.flag("centered") ? prepare_update<update::Rmsprop<true>>(call)
                                       : prepare_update<update::Rmsprop<false>>(call);
  }};
  const TensorType x = f32({3, 5}), y = f32({7}), rate = f32({});
  // Values in [0.1, 0.3), so that a mean square stays above the square of a mean.
  op.examples = {{{x, x, x, x, rate}, {{"centered", true}}, 0.1, 0.3},
                 {{x, x, x, x, rate, rate, y, y, y, y, rate, rate}, {{"centered", true}}, 0.1, 0.3}};
  return op;
}

OpDef adagrad() {
  OpDef op;
  op.name = "adagrad_update";
  op.doc = text(
      "Adagrad: each element goes by all the gradients it has had.\n"
      "  square_sum += gradient ^ 2;  variable -= learning_rate * gradient / (sqrt(square_sum) + epsilon)\n"
      "shapes: variable, square_sum and gradient of one shape\n",
      kDtypes, kFactorDoc, "\nsource: Duchi, Hazan, Singer, JMLR 12, 2011");
  op.inputs = {{"variable", InputDef::Many}, {"square_sum"}, {"gradient"}, {"learning_rate"}, kFactor};
  op.outputs = {};
  op.attrs = {{"epsilon", 1e-10, "added to the root, against division by 0"}, gradient_scale_attr()};
  op.rewrites = {{"prepare_gradient + adagrad_update", {op.name}, fuse_gradient_scale<2>},
                 {"gather_grad + adagrad_update", {"picks_by_row", "rows_adagrad_update"}, fuse_rows_into_update<2>},
                 {"adagrad_update + adagrad_update", {op.name}, fuse_updates<3>}};
  op.infer = infer_update(op, 3);
  op.writes = {0, 1};
  op.cpu = {[](KernelCall& call) { return prepare_update<update::Adagrad>(call); }};
  const TensorType x = f32({3, 5}), y = f32({7}), rate = f32({});
  op.examples = {{{x, x, x, rate, rate, y, y, y, rate, rate}, {{"gradient_scale", 0.5}}, 0.1, 1}};
  return op;
}

// ---- what happens to a gradient before its update ------------------------------------------------------------

template <class T>
Launch launch_prepare(const KernelCall& call) {
  return [count = call.inputs[0].count(), prepare = update::Prepare<T>(call.attrs)](const LaunchCall& launch) {
    const T* g = static_cast<const T*>(launch.inputs[0]);
    const T* w = static_cast<const T*>(launch.inputs[1]);
    T* out = static_cast<T*>(launch.outputs[0]);
    each_element(count, [=, scaled = prepare.times(launch.input<float>(2))](int64_t first, int64_t last) {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) out[i] = scaled(g[i], w[i]);
    });
  };
}

OpDef prepare_gradient() {
  OpDef op;
  op.name = "prepare_gradient";
  op.doc =
      "A variable's gradient as its optimizer wants it: divided by the loss's element count, and regularised.\n"
      "  out = gradient * scale * factor + l1 * sign(variable) + l2 * variable\n"
      "shapes: gradient and variable of one shape, factor () or left out (then 1) -> out of that shape\n"
      "dtypes: float32, float64, one for all but factor, which is float32; l2 is not doubled";
  op.inputs = {{"gradient"}, {"variable"}, kFactor};
  op.attrs = {{"scale", 1.0, "1 / element count of the loss, and the inverse of a loss scale"},
              {"l1", 0.0, "weight of the absolute values"},
              {"l2", 0.0, "weight of the squares' halves"}};
  op.infer = [](const OpCall& call) {
    require(is_floating(call.dtype(0)) && call.type(0) == call.type(1), ErrorCode::ShapeMismatch, "gradient is ",
            call.type(0), ", the variable is ", call.type(1));
    require(!call.has(2) || call.type(2) == TensorType{DType::Float32, {}}, ErrorCode::ShapeMismatch,
            "factor must be float32 ()");
    return std::vector<TensorType>{call.type(0)};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_prepare<decltype(zero)>(call); });
  }};
  op.inplace = {{0, 0}};
  const TensorType tensor{DType::Float32, {3, 5}}, scalar{DType::Float32, {}};
  op.examples = {{{tensor, tensor}, {{"scale", 0.01}, {"l1", 0.1}, {"l2", 0.2}}},
                 {{tensor, tensor, scalar}, {{"scale", 0.5}, {"l2", 0.2}}}};
  return op;
}

OpDef clip_factor() {
  OpDef op;
  op.name = "clip_factor";
  op.doc =
      "The factor that shortens gradients of the given global norm to at most clip_norm.\n"
      "  out = min(1, clip_norm / norm); NaN of a NaN\n"
      "shapes: norm () -> ()\n"
      "dtypes: float32, float64\n"
      "errors: a clip_norm that is not positive";
  op.inputs = {{"norm"}};
  op.attrs = {{"clip_norm", 1.0, "largest norm that is left alone", true}};
  op.infer = [](const OpCall& call) {
    require(is_floating(call.dtype(0)) && call.shape(0).rank() == 0, ErrorCode::ShapeMismatch, "norm is ", call.type(0),
            ", it must be a floating scalar");
    require(call.attrs.number("clip_norm") > 0, ErrorCode::InvalidArgument, "clip_norm must be positive, got ",
            call.attrs.number("clip_norm"));
    return std::vector<TensorType>{call.type(0)};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [limit = static_cast<T>(call.attrs.number("clip_norm"))](const LaunchCall& launch) {
        const T norm = *static_cast<const T*>(launch.inputs[0]);
        *static_cast<T*>(launch.outputs[0]) = norm <= limit ? T(1) : limit / norm;
      };
    });
  }};
  op.inplace = {{0, 0}};
  op.examples = {{{{DType::Float32, {}}}, {{"clip_norm", 0.5}}, 0, 2}};
  return op;
}

}  // namespace

void add_update(Catalog& catalog) {
  catalog.add(assign());
  catalog.add(assign_add());
  catalog.add(sgd());
  catalog.add(momentum());
  catalog.add(adam());
  catalog.add(rmsprop());
  catalog.add(adagrad());
  catalog.add(prepare_gradient());
  catalog.add(clip_factor());
}

}  // namespace moonflow
