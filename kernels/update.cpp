// What changes variables: assignment and the optimizers' update rules, and the helpers that prepare gradients for them.
// Updates write their first inputs in place and have no output. Learning rate and step are values, not attributes, so
// a schedule needs no recompile.
#include <cmath>
#include <cstring>

#include "engine/graph.h"
#include "engine/plan.h"
#include "kernels/catalog.h"
#include "kernels/cpu.h"
#include "kernels/simd.h"

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

float learning_rate(const LaunchCall& call, int input) { return *static_cast<const float*>(call.inputs[input]); }

const char* const kDtypes = "dtypes: float32, float64; learning_rate float32 ()";

// Runs loop(first, last), a plain loop over elements, in parallel and in the widest registers.
template <class Loop>
void update(int64_t count, const Loop& loop) {
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
        update(count, [=](int64_t first, int64_t last) {
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
// Inside a rule, a number of the launch (learning rate, decay) is in the variable's own precision.
// The division by the loss's element count, which prepare_gradient does, is taken into a rule whose gradient gets
// nothing else: the gradient of a large layer is then read once and not written again.

AttrDef gradient_scale_attr() { return {"gradient_scale", 1.0, "factor of the gradient"}; }

template <class T>
T gradient_scale(const KernelCall& call) {
  return static_cast<T>(call.attrs.number("gradient_scale"));
}

// `gradient`: the input of the update that prepare_gradient makes.
template <int gradient>
bool fuse_gradient_scale(Rewriter& rewriter, NodeId id) {
  const Node& update = rewriter.node(id);
  const NodeId prepare = rewriter.made_by(update.inputs[gradient], "prepare_gradient");
  if (prepare == kNone || rewriter.sole_reader(update.inputs[gradient]) != id) return false;
  const Node& prepared = rewriter.node(prepare);
  const bool only_scales =
      prepared.inputs[2] == kNone && prepared.attrs.number("l1") == 0 && prepared.attrs.number("l2") == 0;
  if (!only_scales) return false;
  std::vector<ValueId> inputs = update.inputs;
  inputs[gradient] = prepared.inputs[0];
  Attrs attrs = update.attrs;
  attrs.set("gradient_scale", attrs.number("gradient_scale") * prepared.attrs.number("scale"));
  rewriter.fuse({prepare, id}, update.op->name, std::move(inputs), std::move(attrs), {});
  return true;
}

template <class T>
Launch launch_sgd(const KernelCall& call) {
  return [count = call.inputs[0].count(), scale = gradient_scale<T>(call)](const LaunchCall& launch) {
    T* w = static_cast<T*>(launch.inputs[0]);
    const T* g = static_cast<const T*>(launch.inputs[1]);
    const T rate = learning_rate(launch, 2);
    update(count, [=](int64_t first, int64_t last) {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) w[i] -= rate * (g[i] * scale);
    });
  };
}

OpDef sgd() {
  OpDef op;
  op.name = "sgd_update";
  op.doc = text("Stochastic gradient descent.\n  variable -= learning_rate * gradient\n",
                "shapes: variable and gradient of one shape\n", kDtypes);
  op.inputs = {{"variable"}, {"gradient"}, {"learning_rate"}};
  op.outputs = {};
  op.attrs = {gradient_scale_attr()};
  op.rewrites = {{"prepare_gradient + sgd_update", fuse_gradient_scale<1>}};
  op.infer = [op](const OpCall& call) {
    check_tensors(call, op, 2);
    check_scalar(call, op, 2, DType::Float32);
    return std::vector<TensorType>{};
  };
  op.writes = {0};
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_sgd<decltype(zero)>(call); });
  }};
  const TensorType tensor{DType::Float32, {3, 5}}, rate{DType::Float32, {}};
  op.examples = {{{tensor, tensor, rate}}, {{tensor, tensor, rate}, {{"gradient_scale", 0.01}}}};
  return op;
}

template <class T>
Launch launch_momentum(const KernelCall& call) {
  return [count = call.inputs[0].count(), beta = static_cast<T>(call.attrs.number("beta")),
          scale = gradient_scale<T>(call)](const LaunchCall& launch) {
    T* w = static_cast<T*>(launch.inputs[0]);
    T* m = static_cast<T*>(launch.inputs[1]);
    const T* g = static_cast<const T*>(launch.inputs[2]);
    const T rate = learning_rate(launch, 3);
    update(count, [=](int64_t first, int64_t last) {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) {
        m[i] = beta * m[i] - rate * (g[i] * scale);
        w[i] += m[i];
      }
    });
  };
}

OpDef momentum() {
  OpDef op;
  op.name = "momentum_update";
  op.doc = text("Gradient descent with momentum; the learning rate is inside the momentum.\n"
                "  momentum = beta * momentum - learning_rate * gradient;  variable += momentum\n"
                "shapes: variable, momentum and gradient of one shape\n", kDtypes);
  op.inputs = {{"variable"}, {"momentum"}, {"gradient"}, {"learning_rate"}};
  op.outputs = {};
  op.attrs = {{"beta", 0.9, "share of the momentum that is kept"}, gradient_scale_attr()};
  op.rewrites = {{"prepare_gradient + momentum_update", fuse_gradient_scale<2>}};
  op.infer = [op](const OpCall& call) {
    check_tensors(call, op, 3);
    check_scalar(call, op, 3, DType::Float32);
    return std::vector<TensorType>{};
  };
  op.writes = {0, 1};
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_momentum<decltype(zero)>(call); });
  }};
  const TensorType tensor{DType::Float32, {3, 5}}, rate{DType::Float32, {}};
  op.examples = {{{tensor, tensor, tensor, rate}}};
  return op;
}

struct Adam {
  explicit Adam(const Attrs& attrs)
      : beta1(attrs.number("beta1")),
        beta2(attrs.number("beta2")),
        epsilon(attrs.number("epsilon")),
        weight_decay(attrs.number("weight_decay")),
        bias_correction(attrs.flag("bias_correction")) {}

  // What the direction is scaled by at step t, counted from 0.
  double rate(double learning_rate, int64_t t) const {
    if (!bias_correction) return learning_rate;
    const double steps = static_cast<double>(t) + 1;
    return learning_rate * std::sqrt(1 - std::pow(beta2, steps)) / (1 - std::pow(beta1, steps));
  }

  double beta1, beta2, epsilon, weight_decay;
  bool bias_correction;
};

template <class T>
Launch launch_adam(const KernelCall& call) {
  return [count = call.inputs[0].count(), adam = Adam(call.attrs)](const LaunchCall& launch) {
    T* w = static_cast<T*>(launch.inputs[0]);
    T* m = static_cast<T*>(launch.inputs[1]);
    T* v = static_cast<T*>(launch.inputs[2]);
    const T* g = static_cast<const T*>(launch.inputs[3]);
    const double plain_rate = learning_rate(launch, 4);
    const T rate = static_cast<T>(adam.rate(plain_rate, *static_cast<const int64_t*>(launch.inputs[5])));
    const T decay = static_cast<T>(plain_rate * adam.weight_decay);
    const T beta1 = static_cast<T>(adam.beta1), beta2 = static_cast<T>(adam.beta2);
    const T rest1 = static_cast<T>(1 - adam.beta1), rest2 = static_cast<T>(1 - adam.beta2);
    const T epsilon = static_cast<T>(adam.epsilon);
    update(count, [=](int64_t first, int64_t last) {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) {
        m[i] = beta1 * m[i] + rest1 * g[i];
        v[i] = beta2 * v[i] + rest2 * g[i] * g[i];
        w[i] -= rate * m[i] / (std::sqrt(v[i]) + epsilon) + decay * w[i];
      }
    });
  };
}

OpDef adam() {
  OpDef op;
  op.name = "adam_update";
  op.doc = text("Adam, and AdamW where weight_decay is not 0.\n"
                "  m = beta1 * m + (1 - beta1) * gradient;  v = beta2 * v + (1 - beta2) * gradient ^ 2\n"
                "  rate = learning_rate, times sqrt(1 - beta2 ^ (step + 1)) / (1 - beta1 ^ (step + 1)) with correction\n"
                "  variable -= rate * m / (sqrt(v) + epsilon) + learning_rate * weight_decay * variable\n"
                "shapes: variable, m, v and gradient of one shape\n", kDtypes, "; step int64 (), from 0\n"
                "source: Kingma and Ba, arXiv:1412.6980, with epsilon outside the corrected root as in its section 2;\n"
                "        Loshchilov and Hutter, arXiv:1711.05101");
  op.inputs = {{"variable"}, {"m"}, {"v"}, {"gradient"}, {"learning_rate"}, {"step"}};
  op.outputs = {};
  op.attrs = {{"beta1", 0.9, "share of the mean gradient that is kept"},
              {"beta2", 0.999, "share of the mean square that is kept"},
              {"epsilon", 1e-8, "added to the root, against division by 0"},
              {"bias_correction", true, "make up for m and v starting at 0"},
              {"weight_decay", 0.0, "pull toward 0, apart from the gradient"}};
  op.infer = [op](const OpCall& call) {
    check_tensors(call, op, 4);
    check_scalar(call, op, 4, DType::Float32);
    check_scalar(call, op, 5, DType::Int64);
    return std::vector<TensorType>{};
  };
  op.writes = {0, 1, 2};
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_adam<decltype(zero)>(call); });
  }};
  const TensorType tensor{DType::Float32, {3, 5}}, rate{DType::Float32, {}}, step{DType::Int64, {}};
  op.examples = {{{tensor, tensor, tensor, tensor, rate, step}, {}, 0.1, 1},
                 {{tensor, tensor, tensor, tensor, rate, step},
                  {{"bias_correction", false}, {"weight_decay", 0.01}}, 0.1, 1}};
  return op;
}

template <class T>
Launch launch_rmsprop(const KernelCall& call) {
  return [count = call.inputs[0].count(), decay_rate = call.attrs.number("decay_rate"),
          epsilon = static_cast<T>(call.attrs.number("epsilon"))](const LaunchCall& launch) {
    T* w = static_cast<T*>(launch.inputs[0]);
    T* s = static_cast<T*>(launch.inputs[1]);
    T* mean = static_cast<T*>(launch.inputs[2]);
    const T* g = static_cast<const T*>(launch.inputs[3]);
    const T rate = learning_rate(launch, 4);
    const T keep = static_cast<T>(decay_rate), rest = static_cast<T>(1 - decay_rate);
    update(count, [=](int64_t first, int64_t last) {
      if (mean) {
#pragma GCC ivdep
        for (int64_t i = first; i < last; ++i) {
          s[i] = keep * s[i] + rest * g[i] * g[i];
          mean[i] = keep * mean[i] + rest * g[i];
          w[i] -= rate * g[i] / std::sqrt(s[i] - mean[i] * mean[i] + epsilon);
        }
      } else {
#pragma GCC ivdep
        for (int64_t i = first; i < last; ++i) {
          s[i] = keep * s[i] + rest * g[i] * g[i];
          w[i] -= rate * g[i] / std::sqrt(s[i] + epsilon);
        }
      }
    });
  };
}

OpDef rmsprop() {
  OpDef op;
  op.name = "rmsprop_update";
  op.doc = text("RMSProp, centered when mean_gradient is given.\n"
                "  mean_square = decay_rate * mean_square + (1 - decay_rate) * gradient ^ 2\n"
                "  mean_gradient = decay_rate * mean_gradient + (1 - decay_rate) * gradient\n"
                "  variable -= learning_rate * gradient / sqrt(mean_square - mean_gradient ^ 2 + epsilon)\n"
                "shapes: variable, mean_square, mean_gradient and gradient of one shape\n", kDtypes);
  op.inputs = {{"variable"}, {"mean_square"}, {"mean_gradient", InputDef::Optional}, {"gradient"}, {"learning_rate"}};
  op.outputs = {};
  op.attrs = {{"decay_rate", 0.99, "share of the means that is kept"},
              {"epsilon", 1e-8, "added under the root"},
              {"centered", false, "subtract the square of the mean gradient; wants mean_gradient"}};
  op.infer = [op](const OpCall& call) {
    check_tensors(call, op, 4);
    check_scalar(call, op, 4, DType::Float32);
    require(call.has(2) == call.attrs.flag("centered"), ErrorCode::InvalidArgument,
            "mean_gradient goes with centered, and only with it");
    return std::vector<TensorType>{};
  };
  op.writes = {0, 1, 2};
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_rmsprop<decltype(zero)>(call); });
  }};
  // Values in [0.1, 0.3), so that a mean square stays above the square of a mean.
  const TensorType tensor{DType::Float32, {3, 5}}, rate{DType::Float32, {}};
  op.examples = {{{tensor, tensor, tensor, tensor, rate}, {{"centered", true}}, 0.1, 0.3}};
  return op;
}

// ---- what happens to a gradient before its update ------------------------------------------------------------

template <class T>
Launch launch_prepare(const KernelCall& call) {
  return [count = call.inputs[0].count(), scale = call.attrs.number("scale"),
          l1 = static_cast<T>(call.attrs.number("l1")), l2 = static_cast<T>(call.attrs.number("l2"))](
             const LaunchCall& launch) {
    const T* g = static_cast<const T*>(launch.inputs[0]);
    const T* w = static_cast<const T*>(launch.inputs[1]);
    T* out = static_cast<T*>(launch.outputs[0]);
    const T clip = launch.inputs[2] ? *static_cast<const T*>(launch.inputs[2]) : T(1);
    const T factor = static_cast<T>(scale);
    update(count, [=](int64_t first, int64_t last) {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) {
        const T sign = static_cast<T>((w[i] > 0) - (w[i] < 0));
        out[i] = clip * (g[i] * factor + l1 * sign + l2 * w[i]);
      }
    });
  };
}

OpDef prepare_gradient() {
  OpDef op;
  op.name = "prepare_gradient";
  op.doc =
      "A variable's gradient as its optimizer wants it: divided by the loss's element count, and regularised.\n"
      "  out = clip_scale * (gradient * scale + l1 * sign(variable) + l2 * variable)\n"
      "shapes: gradient and variable of one shape, clip_scale () or left out (then 1) -> out of that shape\n"
      "dtypes: float32, float64, one for all; l2 is not doubled";
  op.inputs = {{"gradient"}, {"variable"}, {"clip_scale", InputDef::Optional}};
  op.attrs = {{"scale", 1.0, "1 / element count of the loss, and the inverse of a loss scale"},
              {"l1", 0.0, "weight of the absolute values"},
              {"l2", 0.0, "weight of the squares' halves"}};
  op.infer = [](const OpCall& call) {
    require(is_floating(call.dtype(0)) && call.type(0) == call.type(1), ErrorCode::ShapeMismatch, "gradient is ",
            call.type(0), ", the variable is ", call.type(1));
    require(!call.has(2) || call.type(2) == TensorType{call.dtype(0), {}}, ErrorCode::ShapeMismatch,
            "clip_scale must be a scalar of the gradient's dtype");
    return std::vector<TensorType>{call.type(0)};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) { return launch_prepare<decltype(zero)>(call); });
  }};
  op.inplace = {{0, 0}};
  const TensorType tensor{DType::Float32, {3, 5}}, scalar{DType::Float32, {}};
  op.examples = {{{tensor, tensor}, {{"scale", 0.01}, {"l1", 0.1}, {"l2", 0.2}}}, {{tensor, tensor, scalar}}};
  return op;
}

OpDef clip_factor() {
  OpDef op;
  op.name = "clip_factor";
  op.doc =
      "The factor that shortens gradients of the given global norm to at most clip_norm.\n"
      "  out = min(1, clip_norm / norm)\n"
      "shapes: norm () -> ()\n"
      "dtypes: float32, float64\n"
      "errors: a clip_norm that is not positive";
  op.inputs = {{"norm"}};
  op.attrs = {{"clip_norm", 1.0, "largest norm that is left alone", true}};
  op.infer = [](const OpCall& call) {
    require(is_floating(call.dtype(0)) && call.shape(0).rank() == 0, ErrorCode::ShapeMismatch, "norm is ",
            call.type(0), ", it must be a floating scalar");
    require(call.attrs.number("clip_norm") > 0, ErrorCode::InvalidArgument, "clip_norm must be positive, got ",
            call.attrs.number("clip_norm"));
    return std::vector<TensorType>{call.type(0)};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [limit = static_cast<T>(call.attrs.number("clip_norm"))](const LaunchCall& launch) {
        const T norm = *static_cast<const T*>(launch.inputs[0]);
        *static_cast<T*>(launch.outputs[0]) = norm > limit ? limit / norm : T(1);
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
  catalog.add(prepare_gradient());
  catalog.add(clip_factor());
}

}  // namespace moonflow
