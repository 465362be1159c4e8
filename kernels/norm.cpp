// Batch normalisation, in training and by given statistics, with its gradients.
// Every variance is taken in two passes, as the mean of squared distances from the mean,
// with sums in double, so it cannot come out negative. Each sum belongs to one thread, so results do not depend on how
// many there are.
#include <algorithm>
#include <cmath>

#include "engine/graph.h"
#include "kernels/catalog.h"
#include "kernels/cpu.h"
#include "kernels/side_sums.h"
#include "kernels/simd.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using cpu::Sums;

// x seen as (outer, channels, inner), of which each channel has outer * inner values.
struct Channels {
  int64_t outer, channels, inner;

  Channels(const Shape& x, int64_t axis_attr) {
    const int axis = wrap_axis(axis_attr, x.rank());
    outer = x.count(0, axis);
    channels = x[axis];
    inner = x.count(axis + 1, x.rank());
  }
  int64_t per_channel() const { return outer * inner; }
  // body(first channel, last channel). Where channels lie side by side they are shared out by the widest register's
  // worth, so that which of them a vectorised loop leaves to its scalar end, which may round differently, does not
  // depend on the thread count.
  template <class Body>
  void share_out(const Body& body) const {
    const int64_t block = inner == 1 ? 16 : 1;
    const int64_t grain = cpu::kGrain / 4 / std::max<int64_t>(block * per_channel(), 1) + 1;
    cpu::parallel_for((channels + block - 1) / block, grain,
                      [&](int64_t first, int64_t last) { body(first * block, std::min(last * block, channels)); });
  }

  // sums[c] for the channels [first, last): the sum of term(c, i) over the elements i of channel c.
  // With channels innermost they are summed side by side, row after row; else channel by channel.
  template <class Term>
  void sum(int64_t first, int64_t last, Sums* sums, const Term& term) const {
    cpu::widest([&] {
      if (inner == 1) {
        std::fill(sums + first, sums + last, Sums{});
        for (int64_t row = 0; row < outer; ++row) {
#pragma omp simd
          for (int64_t c = first; c < last; ++c) {
            const Sums add = term(c, row * channels + c);
            sums[c].first += add.first;
            sums[c].second += add.second;
          }
        }
        return;
      }
      for (int64_t c = first; c < last; ++c) {
        cpu::SideSums side;
        for (int64_t row = 0; row < outer; ++row) {
          const int64_t start = (row * channels + c) * inner;
          side.add(start, start + inner, [&](int64_t i) { return term(c, i); });
        }
        sums[c] = side.total();
      }
    });
  }

  // out[i] = value(c, i) for every element of the channels [first, last).
  template <class T, class Value>
  void map(int64_t first, int64_t last, T* out, const Value& value) const {
    cpu::widest([&] {
      for (int64_t row = 0; row < outer; ++row) {
        if (inner == 1) {
#pragma omp simd
          for (int64_t c = first; c < last; ++c) out[row * channels + c] = value(c, row * channels + c);
          continue;
        }
        for (int64_t c = first; c < last; ++c) {
          const int64_t start = (row * channels + c) * inner;
#pragma omp simd
          for (int64_t i = start; i < start + inner; ++i) out[i] = value(c, i);
        }
      }
    });
  }
};

double checked_epsilon(const Attrs& attrs) {
  const double epsilon = attrs.number("epsilon");
  require(epsilon >= 0, ErrorCode::InvalidArgument, "epsilon must be at least 0, got ", epsilon);
  return epsilon;
}

// The type of what has one value for each channel, after checks of x.
TensorType per_channel_type(const OpCall& call, int x) {
  require_floating(call, x, "x");
  const int axis = wrap_axis(call.attrs.integer("axis"), call.shape(x).rank());
  return {call.dtype(x), {call.shape(x)[axis]}};
}

Launch prepare_batch_norm_train(KernelCall& call) {
  const Channels view(call.inputs[0].shape, call.attrs.integer("axis"));
  const double epsilon = checked_epsilon(call.attrs);
  call.scratch_bytes = view.channels * static_cast<int64_t>(sizeof(Sums) + sizeof(double));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *gamma = launch.input<T>(1), *beta = launch.input<T>(2);
      T *y = launch.output<T>(0), *mean = launch.output<T>(1), *inv_std = launch.output<T>(2);
      Sums* sums = static_cast<Sums*>(launch.scratch);
      double* exact_mean = reinterpret_cast<double*>(sums + view.channels);
      const double count = static_cast<double>(view.per_channel());
      view.share_out([&](int64_t first, int64_t last) {
        view.sum(first, last, sums, [&](int64_t, int64_t i) { return Sums{x[i], 0}; });
        for (int64_t c = first; c < last; ++c) exact_mean[c] = sums[c].first / count;
        view.sum(first, last, sums, [&](int64_t c, int64_t i) {
          const double distance = x[i] - exact_mean[c];
          return Sums{distance * distance, 0};
        });
        for (int64_t c = first; c < last; ++c) {
          mean[c] = static_cast<T>(exact_mean[c]);
          inv_std[c] = static_cast<T>(1 / std::sqrt(sums[c].first / count + epsilon));
        }
        view.map(first, last, y,
                 [&](int64_t c, int64_t i) { return (x[i] - mean[c]) * (inv_std[c] * gamma[c]) + beta[c]; });
      });
    };
  });
}

Launch prepare_moving_statistics_update(KernelCall& call) {
  const int64_t channels = call.inputs[0].count();
  const double momentum = call.attrs.number("momentum"), epsilon = checked_epsilon(call.attrs);
  const double n = static_cast<double>(call.attrs.integer("count"));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      T *moving_mean = static_cast<T*>(launch.inputs[0]), *moving_variance = static_cast<T*>(launch.inputs[1]);
      const T *mean = launch.input<T>(2), *inv_std = launch.input<T>(3);
      for (int64_t c = 0; c < channels; ++c) {
        const double biased = std::max(1 / (double{inv_std[c]} * inv_std[c]) - epsilon, 0.0);
        const double unbiased = biased * n / std::max(n - 1, 1.0);
        moving_mean[c] = static_cast<T>(moving_mean[c] * momentum + mean[c] * (1 - momentum));
        moving_variance[c] = static_cast<T>(moving_variance[c] * momentum + unbiased * (1 - momentum));
      }
    };
  });
}

// With h = (x - mean) * inv_std, n values a channel, and a = gamma * inv_std:
//   dx = a * (dy - mean(dy) - h * mean(dy * h)) + dmean / n - dinv_std * inv_std^2 * h / n
// The last two terms are there when someone asks for the gradient of the statistics themselves.
Launch prepare_batch_norm_train_grad(KernelCall& call) {
  const Channels view(call.inputs[0].shape, call.attrs.integer("axis"));
  const bool has_dmean = call.has(5), has_dinv_std = call.has(6);
  call.scratch_bytes = view.channels * static_cast<int64_t>(2 * sizeof(Sums));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *gamma = launch.input<T>(1), *mean = launch.input<T>(2);
      const T *inv_std = launch.input<T>(3), *dy = launch.input<T>(4);
      const T *dmean = has_dmean ? launch.input<T>(5) : nullptr,
              *dinv_std = has_dinv_std ? launch.input<T>(6) : nullptr;
      T *dx = launch.output<T>(0), *dgamma = launch.output<T>(1), *dbeta = launch.output<T>(2);
      Sums* sums = static_cast<Sums*>(launch.scratch);
      Sums* rest = sums + view.channels;  // dx = gamma * inv_std * dy + first + second * h
      const double count = static_cast<double>(view.per_channel());
      view.share_out([&](int64_t first, int64_t last) {
        view.sum(first, last, sums, [&](int64_t c, int64_t i) {
          const double d = dy[i], h = double{x[i] - mean[c]} * inv_std[c];
          return Sums{d, d * h};
        });
        for (int64_t c = first; c < last; ++c) {
          const double slope = double{gamma[c]} * inv_std[c];
          dbeta[c] = static_cast<T>(sums[c].first);
          dgamma[c] = static_cast<T>(sums[c].second);
          rest[c] = {-slope * sums[c].first / count, -slope * sums[c].second / count};
          if (dmean) rest[c].first += dmean[c] / count;
          if (dinv_std) rest[c].second -= double{dinv_std[c]} * inv_std[c] * inv_std[c] / count;
        }
        view.map(first, last, dx, [&](int64_t c, int64_t i) {
          const T h = (x[i] - mean[c]) * inv_std[c];
          return gamma[c] * inv_std[c] * dy[i] + static_cast<T>(rest[c].first) + static_cast<T>(rest[c].second) * h;
        });
      });
    };
  });
}

Launch prepare_batch_norm_infer(KernelCall& call) {
  const Channels view(call.inputs[0].shape, call.attrs.integer("axis"));
  const double epsilon = checked_epsilon(call.attrs);
  call.scratch_bytes = checked_product(view.channels, sizeof(double));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *gamma = launch.input<T>(1), *beta = launch.input<T>(2);
      const T *mean = launch.input<T>(3), *variance = launch.input<T>(4);
      T* y = launch.output<T>(0);
      T* scale = static_cast<T*>(launch.scratch);
      for (int64_t c = 0; c < view.channels; ++c) {
        scale[c] = static_cast<T>(gamma[c] / std::sqrt(double{variance[c]} + epsilon));
      }
      // Whole rows (or channels) are shared out, since nothing is summed.
      Channels row = view;
      row.outer = 1;
      cpu::parallel_for(view.outer, cpu::kGrain / std::max<int64_t>(view.channels * view.inner, 1) + 1,
                        [&](int64_t first, int64_t last) {
                          for (int64_t r = first; r < last; ++r) {
                            const T* x_row = x + r * view.channels * view.inner;
                            row.map(0, view.channels, y + r * view.channels * view.inner,
                                    [&](int64_t c, int64_t i) { return (x_row[i] - mean[c]) * scale[c] + beta[c]; });
                          }
                        });
    };
  });
}

// With s = 1 / sqrt(variance + epsilon), h = (x - mean) * s:
//   dx = dy * gamma * s, dgamma = sum(dy * h), dbeta = sum(dy),
//   dmean = -gamma * s * dbeta, dvariance = -gamma * s^2 * dgamma / 2
Launch prepare_batch_norm_infer_grad(KernelCall& call) {
  const Channels view(call.inputs[1].shape, call.attrs.integer("axis"));
  const double epsilon = checked_epsilon(call.attrs);
  call.scratch_bytes = view.channels * static_cast<int64_t>(sizeof(Sums) + sizeof(double));
  return visit_floating(call.inputs[1].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *dy = launch.input<T>(0), *x = launch.input<T>(1), *gamma = launch.input<T>(2);
      const T *mean = launch.input<T>(3), *variance = launch.input<T>(4);
      T *dx = launch.output<T>(0), *dgamma = launch.output<T>(1), *dbeta = launch.output<T>(2);
      T *dmean = launch.output<T>(3), *dvariance = launch.output<T>(4);
      Sums* sums = static_cast<Sums*>(launch.scratch);
      double* inv_std = reinterpret_cast<double*>(sums + view.channels);
      view.share_out([&](int64_t first, int64_t last) {
        for (int64_t c = first; c < last; ++c) inv_std[c] = 1 / std::sqrt(double{variance[c]} + epsilon);
        view.sum(first, last, sums, [&](int64_t c, int64_t i) {
          const double d = dy[i];
          return Sums{d, d * double{x[i] - mean[c]} * inv_std[c]};
        });
        for (int64_t c = first; c < last; ++c) {
          const double slope = gamma[c] * inv_std[c];
          dbeta[c] = static_cast<T>(sums[c].first);
          dgamma[c] = static_cast<T>(sums[c].second);
          dmean[c] = static_cast<T>(-slope * sums[c].first);
          dvariance[c] = static_cast<T>(-slope * inv_std[c] * sums[c].second / 2);
        }
        view.map(first, last, dx,
                 [&](int64_t c, int64_t i) { return dy[i] * (gamma[c] * static_cast<T>(inv_std[c])); });
      });
    };
  });
}

AttrDef axis_attr() { return {"axis", int64_t{1}, "the axis of the channels; negative counts from the last"}; }
AttrDef epsilon_attr(double value) { return {"epsilon", value, "added to the variance"}; }

void add_batch_norm_train(Catalog& catalog) {
  OpDef op;
  op.name = "batch_norm_train";
  op.doc =
      "Batch normalisation by the statistics of the batch. moving_statistics_update moves the running ones.\n"
      "  mean, var = of x over all axes but `axis`, var divided by the number of values;  inv_std = 1 / sqrt(var + "
      "epsilon)\n"
      "  y = (x - mean) * inv_std * gamma + beta\n"
      "shapes: x (any, rank at least 1), gamma and beta (channels) -> y as x, mean and inv_std (channels)\n"
      "dtypes: float32 or float64, all the same\n"
      "defaults: axis = 1, epsilon = 0.001\n"
      "errors: gamma or beta without one value for each channel; no value to take statistics of\n"
      "source: Ioffe, Szegedy, Batch Normalization, ICML 2015";
  op.inputs = {{"x"}, {"gamma"}, {"beta"}};
  op.outputs = {"y", "mean", "inv_std"};
  op.attrs = {axis_attr(), epsilon_attr(1e-3)};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    require_type(call, 1, "gamma", channels);
    require_type(call, 2, "beta", channels);
    require(call.shape(0).count() > 0 || channels.shape[0] == 0, ErrorCode::ShapeMismatch, "x is ", call.shape(0),
            "; there is nothing to take statistics of");
    checked_epsilon(call.attrs);
    return {call.type(0), channels, channels};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    // Only the statistics may have been used; then y counts with a gradient of zero.
    const ValueId dy = g.grads[0] != kNone ? g.grads[0] : g.op("zeros_like", {g.outputs[0]});
    const std::vector<ValueId> grads = g.ops(
        "batch_norm_train_grad", {g.inputs[0], g.inputs[1], g.outputs[1], g.outputs[2], dy, g.grads[1], g.grads[2]},
        {{"axis", g.attrs.integer("axis")}});
    return {grads[0], grads[1], grads[2]};
  };
  op.cpu = {prepare_batch_norm_train};
  op.inplace = {{0, 0}};
  op.examples = {{{f32({3, 2, 4}), f32({2}), f32({2})}}, {{f32({5, 3}), f32({3}), f32({3})}, {{"axis", int64_t{-1}}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "batch_norm_train_grad";
  grad.doc =
      "Gradient of batch_norm_train. With h = (x - mean) * inv_std and n values in a channel:\n"
      "  dx = gamma * inv_std * (dy - sum(dy) / n - h * sum(dy * h) / n) + dmean / n - dinv_std * inv_std^2 * h / n\n"
      "  dgamma = sum(dy * h);  dbeta = sum(dy)\n"
      "shapes: x, dy alike, the other inputs (channels) -> dx as x, dgamma and dbeta (channels)";
  grad.inputs = {
      {"x"}, {"gamma"}, {"mean"}, {"inv_std"}, {"dy"}, {"dmean", InputDef::Optional}, {"dinv_std", InputDef::Optional}};
  grad.outputs = {"dx", "dgamma", "dbeta"};
  grad.attrs = {axis_attr()};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    const char* names[] = {"x", "gamma", "mean", "inv_std", "dy", "dmean", "dinv_std"};
    for (int i = 1; i < 7; ++i) {
      if (call.has(i)) require_type(call, i, names[i], i == 4 ? call.type(0) : channels);
    }
    return {call.type(0), channels, channels};
  };
  grad.cpu = {prepare_batch_norm_train_grad};
  grad.inplace = {{0, 0}, {0, 4}};
  const TensorType c = f32({2}), x = f32({3, 2, 4});
  grad.examples = {{{x, c, c, c, x}}, {{x, c, c, c, x, c, c}}};
  catalog.add(grad);
}

// A step of its own, apart from batch_norm_train: like every update it comes after all that can fail in a run.
void add_moving_statistics_update(Catalog& catalog) {
  OpDef op;
  op.name = "moving_statistics_update";
  op.doc =
      "Moves the running statistics of a batch normalisation towards those of a batch.\n"
      "  moving_mean = moving_mean * momentum + mean * (1 - momentum)\n"
      "  moving_variance = moving_variance * momentum + var * count / (count - 1) * (1 - momentum)\n"
      "  where var = 1 / inv_std^2 - epsilon. What enters is the unbiased variance, as cuDNN does it.\n"
      "shapes: all (channels)\n"
      "dtypes: float32 or float64, all the same\n"
      "defaults: momentum = 0.99, epsilon = 0.001\n"
      "errors: inputs of different types; momentum outside [0, 1]; count below 1";
  op.inputs = {{"moving_mean"}, {"moving_variance"}, {"mean"}, {"inv_std"}};
  op.outputs = {};
  op.attrs = {{"momentum", 0.99, "how much of the running statistics stays"},
              epsilon_attr(1e-3),
              {"count", int64_t{1}, "values of the batch in a channel", true}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "moving_mean");
    const char* names[] = {"moving_mean", "moving_variance", "mean", "inv_std"};
    for (int i = 1; i < 4; ++i) require_type(call, i, names[i], call.type(0));
    const double momentum = call.attrs.number("momentum");
    require(momentum >= 0 && momentum <= 1, ErrorCode::InvalidArgument, "momentum must be in [0, 1], got ", momentum);
    require(call.attrs.integer("count") >= 1, ErrorCode::InvalidArgument, "count must be at least 1");
    checked_epsilon(call.attrs);
    return {};
  };
  op.cpu = {prepare_moving_statistics_update};
  op.writes = {0, 1};
  const TensorType c = f32({3});
  op.examples = {{{c, c, c, c}, {{"count", int64_t{8}}}, 0.1, 0.9}};
  catalog.add(op);
}

void add_batch_norm_infer(Catalog& catalog) {
  OpDef op;
  op.name = "batch_norm_infer";
  op.doc =
      "Batch normalisation by given statistics.\n"
      "  y = (x - mean) / sqrt(variance + epsilon) * gamma + beta\n"
      "shapes: x (any, rank at least 1), the other inputs (channels) -> y as x\n"
      "dtypes: float32 or float64, all the same\n"
      "defaults: axis = 1, epsilon = 0.001\n"
      "errors: an input that has not one value for each channel\n"
      "source: Ioffe, Szegedy, Batch Normalization, ICML 2015";
  op.inputs = {{"x"}, {"gamma"}, {"beta"}, {"mean"}, {"variance"}};
  op.outputs = {"y"};
  op.attrs = {axis_attr(), epsilon_attr(1e-3)};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 0);
    const char* names[] = {"x", "gamma", "beta", "mean", "variance"};
    for (int i = 1; i < 5; ++i) require_type(call, i, names[i], channels);
    checked_epsilon(call.attrs);
    return {call.type(0)};
  };
  op.grad = [](GradCall& g) {
    return g.ops("batch_norm_infer_grad", {g.grads[0], g.inputs[0], g.inputs[1], g.inputs[3], g.inputs[4]}, g.attrs);
  };
  op.cpu = {prepare_batch_norm_infer};
  op.inplace = {{0, 0}};
  // The range keeps the drawn variances positive.
  op.examples = {{{f32({3, 2, 4}), f32({2}), f32({2}), f32({2}), f32({2})}, {}, 0.25, 1},
                 {{f32({5, 3}), f32({3}), f32({3}), f32({3}), f32({3})}, {{"axis", int64_t{-1}}}, 0.25, 1}};

  OpDef grad;
  grad.name = "batch_norm_infer_grad";
  grad.doc =
      "Gradient of batch_norm_infer. With s = 1 / sqrt(variance + epsilon) and h = (x - mean) * s:\n"
      "  dx = dy * gamma * s;  dgamma = sum(dy * h);  dbeta = sum(dy)\n"
      "  dmean = -gamma * s * dbeta;  dvariance = -gamma * s^2 * dgamma / 2\n"
      "shapes: dy and x alike, the other inputs (channels) -> dx as x, the others (channels)";
  grad.inputs = {{"dy"}, {"x"}, {"gamma"}, {"mean"}, {"variance"}};
  grad.outputs = {"dx", "dgamma", "dbeta", "dmean", "dvariance"};
  grad.attrs = op.attrs;
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType channels = per_channel_type(call, 1);
    require_type(call, 0, "dy", call.type(1));
    const char* names[] = {"dy", "x", "gamma", "mean", "variance"};
    for (int i = 2; i < 5; ++i) require_type(call, i, names[i], channels);
    return {call.type(1), channels, channels, channels, channels};
  };
  grad.cpu = {prepare_batch_norm_infer_grad};
  grad.inplace = {{0, 0}, {0, 1}};
  grad.examples = {{{f32({3, 2, 4}), f32({3, 2, 4}), f32({2}), f32({2}), f32({2})}, {}, 0.25, 1}};
  catalog.add(op);
  catalog.add(grad);
}

}  // namespace

void add_norm(Catalog& catalog) {
  add_batch_norm_train(catalog);
  add_moving_statistics_update(catalog);
  add_batch_norm_infer(catalog);
}

}  // namespace moonflow
