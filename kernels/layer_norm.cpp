// Layer normalisation with its gradients, about the mean of each row or, as RMSNorm has it, about 0.
// Every variance is taken in two passes, as the mean of squared distances from the mean,
// with sums in double, so it cannot come out negative. Each sum belongs to one thread, so results do not depend on how
// many there are.
#include <algorithm>
#include <cmath>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/side_sums.h"
#include "kernels/cpu/simd.h"
#include "kernels/formula.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using cpu::SideSums;
using cpu::Sums;

// x seen as (rows, n): each row is normalised by itself. The parameters repeat every `period` values of a row.
struct Rows {
  int64_t rows, n;

  Rows(const Shape& x, int64_t axis_attr) {
    const int axis = wrap_axis(axis_attr, x.rank());
    rows = x.count(0, axis);
    n = x.count(axis, x.rank());
  }
  int64_t grain() const { return cpu::kGrain / 4 / std::max<int64_t>(n, 1) + 1; }
};

// Parameters fit when they are shaped like the last axes of x, none of them before begin_norm_axis.
void require_parameter(const OpCall& call, int i, const char* what) {
  const Shape &x = call.shape(0), &parameter = call.shape(i);
  const int axis = wrap_axis(call.attrs.integer("begin_norm_axis"), x.rank());
  const int skipped = x.rank() - parameter.rank();
  require(call.dtype(i) == call.dtype(0), ErrorCode::DtypeMismatch, what, " is ", call.dtype(i), ", x is ",
          call.dtype(0));
  const bool fits = skipped >= axis && std::equal(parameter.begin(), parameter.end(), x.begin() + skipped);
  require(fits, ErrorCode::ShapeMismatch, what, " is ", parameter, ", it should be shaped like the last axes of x ", x,
          ", from axis ", axis, " or later");
}

// One value for each row, in the shape of the axes before begin_norm_axis.
TensorType per_row_type(const OpCall& call) {
  require_floating(call, 0, "x");
  const Shape& x = call.shape(0);
  return {call.dtype(0), Shape(x.begin(), x.begin() + wrap_axis(call.attrs.integer("begin_norm_axis"), x.rank()))};
}

// What each of some rows is normalised by: the centre, which is the mean or 0, and the variance about it. Short rows
// are gone through side by side.
template <class T>
void measure(const T* x, int64_t rows, int64_t n, bool centred, double* centre, double* variance) {
  constexpr int64_t kShort = 32;
  const double count = static_cast<double>(n);
  const auto squared = [](double distance) { return distance * distance; };
  if (n > kShort) {
    for (int64_t r = 0; r < rows; ++r, x += n) {
      const double c = centred ? cpu::side_sum(n, [=](int64_t i) { return x[i]; }) / count : 0;
      centre[r] = c;
      variance[r] = cpu::side_sum(n, [=](int64_t i) { return squared(x[i] - c); }) / count;
    }
    return;
  }
  const auto mean_beside = [=](double* mean, const auto& term) {
    std::fill_n(mean, rows, 0.0);
    for (int64_t i = 0; i < n; ++i) {
#pragma GCC ivdep
      for (int64_t r = 0; r < rows; ++r) mean[r] += term(r, x[r * n + i]);
    }
    for (int64_t r = 0; r < rows; ++r) mean[r] /= count;
  };
  mean_beside(centre, [=](int64_t, T value) { return centred ? value : T(0); });
  mean_beside(variance, [=](int64_t r, T value) { return squared(value - centre[r]); });
}

Launch prepare_layer_norm(KernelCall& call) {
  const Rows view(call.inputs[0].shape, call.attrs.integer("begin_norm_axis"));
  const double epsilon = call.attrs.number("epsilon");
  const bool centred = call.attrs.flag("centred"), scaled = call.has(1), shifted = call.has(2);
  const int64_t scale_period = std::max<int64_t>(scaled ? call.inputs[1].count() : view.n, 1);
  const int64_t shift_period = std::max<int64_t>(shifted ? call.inputs[2].count() : view.n, 1);
  const int64_t period = std::min(scale_period, shift_period);  // divides the other, which has more of the last axes
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *gamma = scaled ? launch.input<T>(1) : nullptr, *beta = shifted ? launch.input<T>(2) : nullptr;
      T *mean = launch.output<T>(1), *inv_std = launch.output<T>(2);
      cpu::for_rows_together(view.rows, view.grain(), [&, n = view.n](int64_t first, int64_t rows) {
        double centre[cpu::kTogether], variance[cpu::kTogether];
        measure(launch.input<T>(0) + first * n, rows, n, centred, centre, variance);
        for (int64_t r = 0; r < rows; ++r) {
          const T* x = launch.input<T>(0) + (first + r) * n;
          T* y = launch.output<T>(0) + (first + r) * n;
          const T m = static_cast<T>(centre[r]), s = static_cast<T>(1 / std::sqrt(variance[r] + epsilon));
          mean[first + r] = m;
          inv_std[first + r] = s;
          // Each kind its own loop: GCC leaves one that asks for the parameters as it goes scalar.
          const auto write = [=](auto is_scaled, auto is_shifted) {
            for (int64_t start = 0; start < n; start += period) {
              const T* const scale = is_scaled ? gamma + start % scale_period : nullptr;
              const T* const shift = is_shifted ? beta + start % shift_period : nullptr;
#pragma omp simd
              for (int64_t i = 0; i < period; ++i) {
                T h = (x[start + i] - m) * s;
                if constexpr (is_scaled) h *= scale[i];
                if constexpr (is_shifted) h += shift[i];
                y[start + i] = h;
              }
            }
          };
          constexpr std::true_type yes;
          constexpr std::false_type no;
          if (gamma)
            beta ? write(yes, yes) : write(yes, no);
          else
            beta ? write(no, yes) : write(no, no);
        }
      });
    };
  });
}

// With h = (x - mean) * inv_std, g = dy * gamma, n values a row:
//   dx = inv_std * (g - mean(g) - h * mean(g * h)) + dmean / n - dinv_std * inv_std^2 * h / n
// About 0 the mean depends on nothing: without mean(g) and dmean.
template <class T>
struct RowGrad {
  const T *x, *dy, *gamma;  // gamma may be absent
  int64_t n, period;
  double mean, inv_std;

  // sum(g) and sum(g * h)
  Sums sums() const {
    SideSums side;
    for (int64_t start = 0; start < n; start += period) {
      side.add(0, period, [&](int64_t i) {
        const double g = gamma ? double{dy[start + i]} * gamma[i] : double{dy[start + i]};
        return Sums{g, g * (x[start + i] - mean)};
      });
    }
    const Sums total = side.total();
    return {total.first, total.second * inv_std};
  }

  // dx = inv_std * g + constant + along * h
  void write(double constant, double along, T* dx) const {
    for (int64_t start = 0; start < n; start += period) {
#pragma omp simd
      for (int64_t i = 0; i < period; ++i) {
        const double g = gamma ? double{dy[start + i]} * gamma[i] : double{dy[start + i]};
        dx[start + i] = static_cast<T>(inv_std * g + constant + along * ((x[start + i] - mean) * inv_std));
      }
    }
  }
};

Launch prepare_layer_norm_grad(KernelCall& call) {
  const Rows view(call.inputs[0].shape, call.attrs.integer("begin_norm_axis"));
  const bool centred = call.attrs.flag("centred"), scaled = call.has(4), has_dmean = centred && call.has(5),
             has_dinv_std = call.has(6);
  const int64_t period = std::max<int64_t>(scaled ? call.inputs[4].count() : view.n, 1);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *mean = launch.input<T>(1), *inv_std = launch.input<T>(2);
      const T *dy = launch.input<T>(3), *gamma = scaled ? launch.input<T>(4) : nullptr;
      const double n = static_cast<double>(view.n);
      cpu::parallel_for(view.rows, view.grain(), [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          const int64_t start = row * view.n;
          const RowGrad<T> grad{x + start, dy + start, gamma, view.n, period, mean[row], inv_std[row]};
          cpu::widest([&] {
            const Sums sums = grad.sums();
            double constant = centred ? -grad.inv_std * sums.first / n : 0, along = -grad.inv_std * sums.second / n;
            if (has_dmean) constant += launch.input<T>(5)[row] / n;
            if (has_dinv_std) along -= launch.input<T>(6)[row] * grad.inv_std * grad.inv_std / n;
            grad.write(constant, along, launch.output<T>(0) + start);
          });
        }
      });
    };
  });
}

// The sums over everything that shares a parameter. What repeats the parameters is cut into parts, whatever the number
// of threads, each of which reads rows that it has in its cache; the sums of the parts are added in order.
Launch prepare_layer_norm_parameter_grad(KernelCall& call) {
  constexpr int64_t kMostParts = 16, kLeastRepeats = 64, kMostParameters = 1024;
  const Rows view(call.inputs[0].shape, call.attrs.integer("begin_norm_axis"));
  const int64_t period = call.outputs[0].count(), repeats = call.inputs[0].count() / std::max<int64_t>(period, 1);
  const int64_t parts = std::clamp<int64_t>(repeats / kLeastRepeats, 1, kMostParts);
  const int64_t chunks = (period + kMostParameters - 1) / kMostParameters;
  call.scratch_bytes = checked_product(checked_product(parts, period), 2 * sizeof(double));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      const T *x = launch.input<T>(0), *mean = launch.input<T>(1), *inv_std = launch.input<T>(2);
      const T* dy = launch.input<T>(3);
      double* const sums = static_cast<double*>(launch.scratch);  // of a part, for gamma and then for beta
      const auto sum_part = [&](int64_t part, int64_t first, int64_t last) {
        double *const scales = sums + part * 2 * period, *const shifts = scales + period;
        std::fill(scales + first, scales + last, 0.0);
        std::fill(shifts + first, shifts + last, 0.0);
        for (int64_t repeat = repeats * part / parts; repeat < repeats * (part + 1) / parts; ++repeat) {
          const int64_t start = repeat * period, row = start / view.n;
          const double m = mean[row], s = inv_std[row];
#pragma GCC ivdep
          for (int64_t i = first; i < last; ++i) {
            const double g = dy[start + i];
            scales[i] += g * ((x[start + i] - m) * s);
            shifts[i] += g;
          }
        }
      };
      const int64_t work = std::max<int64_t>(1, repeats * period / parts / std::max<int64_t>(1, chunks));
      cpu::parallel_for(parts * chunks, cpu::kGrain / 2 / work + 1, [&](int64_t first, int64_t last) {
        cpu::widest([&] {
          for (int64_t i = first; i < last; ++i)
            sum_part(i / chunks, period * (i % chunks) / chunks, period * (i % chunks + 1) / chunks);
        });
      });
      cpu::widest([&] {
        for (int64_t part = 1; part < parts; ++part) {
#pragma GCC ivdep
          for (int64_t i = 0; i < 2 * period; ++i) sums[i] += sums[part * 2 * period + i];
        }
        std::copy(sums, sums + period, launch.output<T>(0));
        std::copy(sums + period, sums + 2 * period, launch.output<T>(1));
      });
    };
  });
}

std::vector<ValueId> layer_norm_grads(GradCall& g) {
  const ValueId x = g.inputs[0], gamma = g.inputs[1], beta = g.inputs[2], mean = g.outputs[1], inv_std = g.outputs[2];
  // Only the statistics may have been used; then y counts with a gradient of zero.
  const ValueId dy = g.grads[0] != kNone ? g.grads[0] : g.op("zeros_like", {g.outputs[0]});
  const Attrs axis{{"begin_norm_axis", g.attrs.integer("begin_norm_axis")}};
  Attrs row = axis;
  row.set("centred", g.attrs.flag("centred"));
  const ValueId dx = g.op("layer_norm_grad", {x, mean, inv_std, dy, gamma, g.grads[1], g.grads[2]}, row);

  const auto parameter_grads = [&](ValueId parameter) {
    return g.ops("layer_norm_parameter_grad", {x, mean, inv_std, dy},
                 with(axis, "shape", g.type(parameter).shape.dims()));
  };
  if (gamma == kNone) return {dx, kNone, beta == kNone ? kNone : parameter_grads(beta)[1]};
  const std::vector<ValueId> grads = parameter_grads(gamma);
  if (beta == kNone) return {dx, grads[0], kNone};
  return {dx, grads[0], g.type(beta) == g.type(gamma) ? grads[1] : parameter_grads(beta)[1]};
}

// ---- gradients of the gradients ------------------------------------------------------------------------------

// The axes of a row, and one value for each row beside x.
struct RowsOf {
  RowsOf(GradCall& call, const Term& x) : beside(x.shape()) {
    const int begin = wrap_axis(call.attrs.integer("begin_norm_axis"), beside.rank());
    for (int axis = begin; axis < beside.rank(); ++axis) {
      axes.push_back(axis);
      count *= static_cast<double>(beside[axis]);
      beside[axis] = 1;
    }
  }
  Ints axes;
  Shape beside;
  double count = 1;
};

std::vector<Term> layer_norm_grad_formula(GradCall& call, const Terms& in) {
  const Term x = *in[0], dy = *in[3];
  const RowsOf rows(call, x);
  const Term inv_std = in[2]->reshaped(rows.beside), h = (x - in[1]->reshaped(rows.beside)) * inv_std;
  const Term g = in[4] ? dy * *in[4] : dy;
  const bool centred = call.attrs.flag("centred");
  Term dx = inv_std * ((centred ? g - mean(g, rows.axes) : g) - h * mean(g * h, rows.axes));
  if (centred && in[5]) dx = dx + 1 / rows.count * in[5]->reshaped(rows.beside);
  if (in[6]) dx = dx - 1 / rows.count * in[6]->reshaped(rows.beside) * inv_std.op("square") * h;
  return {dx};
}

std::vector<Term> layer_norm_parameter_grad_formula(GradCall& call, const Terms& in) {
  const Term x = *in[0], dy = *in[3];
  const RowsOf rows(call, x);
  const Attrs shape{{"shape", call.attrs.ints("shape")}};
  const Term h = (x - in[1]->reshaped(rows.beside)) * in[2]->reshaped(rows.beside);
  return {(dy * h).op("sum_to_shape", shape), dy.op("sum_to_shape", shape)};
}

void add_core(Catalog& catalog) {
  const AttrDef begin{"begin_norm_axis", int64_t{1},
                      "first axis that is normalised over; negative counts from the last"};
  const AttrDef centred{"centred", true, "false: about 0 in place of the mean, which is 0 then"};

  OpDef op;
  op.name = "layer_norm_core";
  op.doc =
      "Each row brought to mean 0 and variance 1, then scaled and shifted. A row is everything from begin_norm_axis "
      "on.\n"
      "  y = (x - mean) * inv_std * gamma + beta, with inv_std = 1 / sqrt(variance + epsilon), variance divided by n\n"
      "Not centred, the mean is 0 and the variance the mean of the squares.\n"
      "shapes: x (rows..., n...), gamma and beta shaped like the last axes of x, none before begin_norm_axis\n"
      "  -> y as x, mean and inv_std (rows...)\n"
      "dtypes: float32 or float64, all the same\n"
      "defaults: no gamma is 1, no beta is 0; begin_norm_axis = 1, epsilon = 1e-5\n"
      "errors: begin_norm_axis outside the rank; gamma or beta of another shape\n"
      "source: Ba, Kiros, Hinton, Layer Normalization, 2016; Zhang, Sennrich, Root Mean Square Layer Normalization, "
      "2019";
  op.inputs = {{"x"}, {"gamma", InputDef::Optional}, {"beta", InputDef::Optional}};
  op.outputs = {"y", "mean", "inv_std"};
  op.attrs = {begin, {"epsilon", 1e-5, "added to the variance"}, centred};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType rows = per_row_type(call);
    if (call.has(1)) require_parameter(call, 1, "gamma");
    if (call.has(2)) require_parameter(call, 2, "beta");
    const double epsilon = call.attrs.number("epsilon");
    require(epsilon >= 0, ErrorCode::InvalidArgument, "epsilon must be at least 0, got ", epsilon);
    return {call.type(0), rows, rows};
  };
  op.grad = layer_norm_grads;
  op.cpu = {prepare_layer_norm};
  op.inplace = {{0, 0}};
  const TensorType x = f32({3, 2, 4}), last = f32({4}), row = f32({3});
  op.examples = {{{x, last, last}},
                 {{x}, {{"begin_norm_axis", int64_t{-1}}}},
                 {{x, f32({2, 4}), last}},
                 {{x, last}, {{"centred", false}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "layer_norm_grad";
  grad.doc =
      "Gradient of layer_norm_core for x. With h = (x - mean) * inv_std and g = dy * gamma, over the n values of a "
      "row:\n"
      "  dx = inv_std * (g - sum(g) / n - h * sum(g * h) / n) + dmean / n - dinv_std * inv_std^2 * h / n\n"
      "Not centred, without sum(g) and dmean.\n"
      "shapes: x and dy alike, mean, inv_std, dmean and dinv_std (rows...), gamma like the last axes of x -> dx as x";
  grad.inputs = {{"x"},
                 {"mean"},
                 {"inv_std"},
                 {"dy"},
                 {"gamma", InputDef::Optional},
                 {"dmean", InputDef::Optional},
                 {"dinv_std", InputDef::Optional}};
  grad.outputs = {"dx"};
  grad.attrs = {begin, centred};
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType rows = per_row_type(call);
    const char* names[] = {"x", "mean", "inv_std", "dy", "gamma", "dmean", "dinv_std"};
    for (int i = 1; i < 7; ++i) {
      if (call.has(i) && i != 4) require_type(call, i, names[i], i == 3 ? call.type(0) : rows);
    }
    if (call.has(4)) require_parameter(call, 4, "gamma");
    return {call.type(0)};
  };
  grad.grad = gradient_of(layer_norm_grad_formula);
  grad.cpu = {prepare_layer_norm_grad};
  grad.inplace = {{0, 0}, {0, 3}};
  grad.examples = {{{x, row, row, x, last}},
                   {{x, row, row, x, last, row, row}},
                   {{x, row, row, x, last, row, row}, {{"centred", false}}}};
  catalog.add(grad);

  OpDef parameters;
  parameters.name = "layer_norm_parameter_grad";
  parameters.doc =
      "Gradients of layer_norm_core for gamma and beta, over everything that shares a parameter.\n"
      "  dgamma = sum(dy * (x - mean) * inv_std);  dbeta = sum(dy)\n"
      "shapes: x and dy alike, mean and inv_std (rows...) -> dgamma and dbeta `shape`";
  parameters.inputs = {{"x"}, {"mean"}, {"inv_std"}, {"dy"}};
  parameters.outputs = {"dgamma", "dbeta"};
  parameters.attrs = {begin, {"shape", Ints{}, "of the parameter", true}};
  parameters.infer = [](const OpCall& call) -> std::vector<TensorType> {
    const TensorType rows = per_row_type(call);
    require_type(call, 1, "mean", rows);
    require_type(call, 2, "inv_std", rows);
    require_type(call, 3, "dy", call.type(0));
    const TensorType parameter{call.dtype(0), Shape(call.attrs.ints("shape"))};
    const std::vector<const TensorType*> inputs{&call.type(0), &parameter};
    require_parameter(OpCall{inputs, call.attrs}, 1, "the parameter");
    return {parameter, parameter};
  };
  parameters.grad = gradient_of(layer_norm_parameter_grad_formula);
  parameters.cpu = {prepare_layer_norm_parameter_grad};
  parameters.examples = {{{x, row, row, x}, {{"shape", Ints{4}}}}};
  catalog.add(parameters);
}

}  // namespace

void add_layer_norm(Catalog& catalog) { add_core(catalog); }

}  // namespace moonflow
