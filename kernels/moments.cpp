// Mean and variance over any axes, with their gradient.
// The variance is taken in two passes, as the mean of squared distances from the mean, so it cannot come out negative.
#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// The axes of x that are kept and those that are averaged over, neighbours joined.
struct Averaging {
  struct Axis {
    int64_t size, stride;
  };
  std::vector<Axis> kept, averaged;
  int64_t results = 1, per_result = 1;

  Averaging(const Shape& x, const Ints& axes) {
    const std::vector<bool> chosen = choose(x, axes);
    int64_t stride = x.count();
    bool last_chosen = false;
    for (int axis = 0; axis < x.rank(); ++axis) {
      stride /= std::max<int64_t>(x[axis], 1);
      std::vector<Axis>& list = chosen[axis] ? averaged : kept;
      (chosen[axis] ? per_result : results) *= x[axis];
      if (axis > 0 && last_chosen == chosen[axis]) {
        list.back() = {list.back().size * x[axis], stride};
      } else {
        list.push_back({x[axis], stride});
      }
      last_chosen = chosen[axis];
    }
    if (averaged.empty()) averaged.push_back({1, 1});
  }

  static std::vector<bool> choose(const Shape& x, const Ints& axes) {
    std::vector<bool> chosen(x.rank(), axes.empty());
    for (const int64_t axis : axes) chosen[wrap_axis(axis, x.rank())] = true;
    return chosen;
  }

  int64_t start_of(int64_t result) const {
    int64_t start = 0;
    for (size_t i = kept.size(); i-- > 0;) {
      start += result % kept[i].size * kept[i].stride;
      result /= kept[i].size;
    }
    return start;
  }

  // Results that lie side by side in x, as where channels come last, are made together, up to so many.
  static constexpr int64_t kTogether = 64;

  // Calls body(first, count) for results that are made together, shared between the threads.
  template <class Body>
  void for_each_group(const Body& body) const {
    if (per_result == 0 || results == 0) return;
    const int64_t side_by_side = kept.empty() || kept.back().stride != 1 ? 1 : kept.back().size;
    const int64_t groups = (side_by_side + kTogether - 1) / kTogether;
    const int64_t work = per_result * std::min(side_by_side, kTogether);
    cpu::parallel_for(results / side_by_side * groups, cpu::kGrain / 4 / work + 1, [&](int64_t first, int64_t last) {
      cpu::widest([&] {
        for (int64_t group = first; group < last; ++group) {
          const int64_t at = group % groups * kTogether;
          body(group / groups * side_by_side + at, std::min(kTogether, side_by_side - at));
        }
      });
    });
  }

  // Calls body(at, size, stride) for the elements of x that are averaged into a result, run by run, in one order.
  template <class Body>
  void for_each_run(int64_t result, const Body& body) const {
    const Axis inner = averaged.back();
    const int64_t start = start_of(result);
    for (int64_t run = 0; run < per_result / inner.size; ++run) {
      int64_t at = start, rest = run;
      for (size_t i = averaged.size() - 1; i-- > 0;) {
        at += rest % averaged[i].size * averaged[i].stride;
        rest /= averaged[i].size;
      }
      body(at, inner.size, inner.stride);
    }
  }

  // sums[c] = sum of term(element, c) over what is averaged into result first + c.
  template <class T, class Term>
  void sum(const T* x, int64_t first, int64_t count, double* sums, const Term& term) const {
    std::fill_n(sums, count, 0.0);
    if (count > 1) {
      return for_each_run(first, [&](int64_t at, int64_t size, int64_t stride) {
        for (int64_t i = 0; i < size; ++i)
          for (int64_t c = 0; c < count; ++c) sums[c] += term(x[at + i * stride + c], c);
      });
    }
    constexpr int64_t kLanes = 8;
    double lanes[kLanes] = {};
    for_each_run(first, [&](int64_t at, int64_t size, int64_t stride) {
      int64_t i = 0;
      for (; stride == 1 && i + kLanes <= size; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(x[at + i + lane], 0);
      for (; i < size; ++i) lanes[i % kLanes] += term(x[at + i * stride], 0);
    });
    for (const double lane : lanes) sums[0] += lane;
  }
};

Launch prepare_moments(KernelCall& call) {
  const Averaging view(call.inputs[0].shape, call.attrs.ints("axes"));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [view](const LaunchCall& launch) {
      const T* x = launch.input<T>(0);
      T *mean = launch.output<T>(0), *variance = launch.output<T>(1);
      const double n = static_cast<double>(view.per_result);
      view.for_each_group([&](int64_t first, int64_t count) {
        double centres[Averaging::kTogether], squares[Averaging::kTogether];
        view.sum(x, first, count, centres, [](T value, int64_t) { return static_cast<double>(value); });
        for (int64_t c = 0; c < count; ++c) centres[c] /= n;
        view.sum(x, first, count, squares,
                 [&](T value, int64_t c) { return (value - centres[c]) * (value - centres[c]); });
        for (int64_t c = 0; c < count; ++c) {
          mean[first + c] = static_cast<T>(centres[c]);
          variance[first + c] = static_cast<T>(squares[c] / n);
        }
      });
    };
  });
}

Launch prepare_moments_grad(KernelCall& call) {
  const Averaging view(call.inputs[0].shape, call.attrs.ints("axes"));
  const bool has_dmean = call.has(2), has_dvariance = call.has(3);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *mean = launch.input<T>(1);
      T* dx = launch.output<T>(0);
      const T n = static_cast<T>(view.per_result);
      view.for_each_group([&](int64_t first, int64_t count) {
        T constants[Averaging::kTogether], slopes[Averaging::kTogether];
        for (int64_t c = 0; c < count; ++c) {
          constants[c] = has_dmean ? launch.input<T>(2)[first + c] / n : T(0);
          slopes[c] = has_dvariance ? 2 * launch.input<T>(3)[first + c] / n : T(0);
        }
        view.for_each_run(first, [&](int64_t at, int64_t size, int64_t stride) {
          const auto element = [&](int64_t i, int64_t c) {
            dx[i + c] = constants[c] + slopes[c] * (x[i + c] - mean[first + c]);
          };
          if (count == 1) {
            for (int64_t i = 0; i < size; ++i) element(at + i * stride, 0);
          } else {
            for (int64_t i = 0; i < size; ++i)
              for (int64_t c = 0; c < count; ++c) element(at + i * stride, c);
          }
        });
      });
    };
  });
}

}  // namespace

void add_moments(Catalog& catalog) {
  OpDef op;
  op.name = "moments";
  op.lua = "nn.moments";
  op.doc =
      "Mean and variance over some axes.\n"
      "  mean = sum(x) / n;  variance = sum((x - mean)^2) / n, in two passes\n"
      "shapes: x (2, 3, 4) with axes = {0, 2} -> both (3), with keepdims (1, 3, 1)\n"
      "dtypes: float32 or float64 -> the same\n"
      "defaults: axes = {}, all of them; keepdims = false\n"
      "errors: an axis outside the rank; an average over nothing";
  op.inputs = {{"x"}};
  op.outputs = {"mean", "variance"};
  op.attrs = {{"axes", Ints{}, "the axes to average over; negative counts from the last"},
              {"keepdims", false, "keep them with size 1"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    const Shape& x = call.shape(0);
    const std::vector<bool> chosen = Averaging::choose(x, call.attrs.ints("axes"));
    Shape shape;
    for (int axis = 0; axis < x.rank(); ++axis) {
      require(!chosen[axis] || x[axis] > 0, ErrorCode::ShapeMismatch, "axis ", axis, " of x ", x, " has size 0; ",
              "there is nothing to average");
      if (!chosen[axis]) {
        shape.push_back(x[axis]);
      } else if (call.attrs.flag("keepdims")) {
        shape.push_back(1);
      }
    }
    return {{call.dtype(0), shape}, {call.dtype(0), shape}};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    const std::vector<ValueId> inputs{g.inputs[0], g.outputs[0], g.grads[0], g.grads[1]};
    return {g.op("moments_grad", inputs, {{"axes", g.attrs.ints("axes")}})};
  };
  op.cpu = {prepare_moments};
  op.examples = {{{f32({2, 3, 4})}, {{"axes", Ints{0, 2}}}},
                 {{f32({3, 4})}, {{"axes", Ints{-1}}, {"keepdims", true}}},
                 {{f32({2, 3})}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "moments_grad";
  grad.doc =
      "Gradient of moments.\n"
      "  dx = dmean / n + dvariance * 2 * (x - mean) / n\n"
      "shapes: x (any), the other inputs as the mean -> dx as x";
  grad.inputs = {{"x"}, {"mean"}, {"dmean", InputDef::Optional}, {"dvariance", InputDef::Optional}};
  grad.outputs = {"dx"};
  grad.attrs = {op.attrs[0]};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    const Averaging view(call.shape(0), call.attrs.ints("axes"));
    require(call.dtype(1) == call.dtype(0) && call.shape(1).count() == view.results, ErrorCode::ShapeMismatch,
            "mean is ", call.type(1), ", it should have ", view.results, " elements of ", call.dtype(0));
    if (call.has(2)) require_type(call, 2, "dmean", call.type(1));
    if (call.has(3)) require_type(call, 3, "dvariance", call.type(1));
    return {call.type(0)};
  };
  grad.grad = gradient_of([](GradCall& call, const Terms& in) -> std::vector<Term> {
    const Term x = *in[0];
    Shape kept = x.shape();
    const std::vector<bool> averaged = Averaging::choose(kept, call.attrs.ints("axes"));
    double count = 1;
    for (int axis = 0; axis < kept.rank(); ++axis) {
      if (!averaged[axis]) continue;
      count *= static_cast<double>(kept[axis]);
      kept[axis] = 1;
    }
    std::vector<Term> parts;
    if (in[2]) parts.push_back(1 / count * in[2]->reshaped(kept));
    if (in[3]) parts.push_back(2 / count * in[3]->reshaped(kept) * (x - in[1]->reshaped(kept)));
    const Term all = parts.size() == 2 ? parts[0] + parts[1] : parts[0];
    return {all.shape() == x.shape() ? all : all.op("broadcast_to", {{"shape", x.shape().dims()}})};
  });
  grad.cpu = {prepare_moments_grad};
  grad.examples = {{{f32({2, 3, 4}), f32({3}), f32({3}), f32({3})}, {{"axes", Ints{0, 2}}}}};
  catalog.add(grad);
}

}  // namespace moonflow
