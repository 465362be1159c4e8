// l2_normalize: vectors of length one, for losses that compare directions.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/side_sums.h"
#include "kernels/cpu/simd.h"
#include "kernels/formula.h"
#include "kernels/lanes.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// Both go lane by lane along the axis, and know it where the elements of a lane are neighbours.
template <class Body>
Launch prepare_lanes(KernelCall& call, int x, Body body) {
  const Lanes lanes(call.inputs[x].shape, call.attrs.integer("axis"));
  const double epsilon = call.attrs.number("epsilon");
  return visit_floating(call.inputs[x].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& launch) {
      if (lanes.n == 0) return;  // of however many lanes
      const int64_t grain = cpu::kGrain / 2 / std::max<int64_t>(lanes.n, 1) + 1;
      cpu::parallel_for(lanes.count, grain, [&](int64_t first, int64_t last) {
        cpu::widest([&] {
          for (int64_t lane = first; lane < last; ++lane) {
            if (lanes.stride == 1)
              body(launch, lane * lanes.n, lanes.n, std::integral_constant<int64_t, 1>(), T(epsilon));
            else body(launch, lanes.start(lane), lanes.n, lanes.stride, T(epsilon));
          }
        });
      });
    };
  });
}

Launch prepare_l2_normalize(KernelCall& call) {
  return prepare_lanes(call, 0, [](const LaunchCall& launch, int64_t offset, int64_t n, auto stride, auto epsilon) {
    using T = decltype(epsilon);
    const T* x = launch.input<T>(0) + offset;
    T* out = launch.output<T>(0) + offset;
    cpu::SideSums squares;
    squares.add(0, n, [&](int64_t i) { return cpu::Sums{double{x[i * stride]} * x[i * stride], 0}; });
    const T scale = static_cast<T>(1 / std::sqrt(std::max(squares.total().first, double{epsilon})));
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) out[i * stride] = x[i * stride] * scale;
  });
}

// Where the norm is held at epsilon it is a constant, and only the scale is left of the gradient.
Launch prepare_l2_normalize_grad(KernelCall& call) {
  return prepare_lanes(call, 1, [](const LaunchCall& launch, int64_t offset, int64_t n, auto stride, auto epsilon) {
    using T = decltype(epsilon);
    const T *dy = launch.input<T>(0) + offset, *x = launch.input<T>(1) + offset;
    T* dx = launch.output<T>(0) + offset;
    cpu::SideSums sums;
    sums.add(0, n, [&](int64_t i) {
      const double value = x[i * stride];
      return cpu::Sums{value * value, dy[i * stride] * value};
    });
    const auto [squares, dot] = sums.total();
    const double kept = std::max(squares, double{epsilon});
    const T scale = static_cast<T>(1 / std::sqrt(kept));
    const T along = squares > epsilon ? static_cast<T>(dot / kept) : T(0);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) dx[i * stride] = (dy[i * stride] - x[i * stride] * along) * scale;
  });
}

}  // namespace

void add_l2_normalize(Catalog& catalog) {
  OpDef op;
  op.name = "l2_normalize";
  op.lua = "math.l2_normalize";
  op.doc =
      "x normalised to unit length along an axis. The sum of products of two such is their cosine similarity.\n"
      "  out = x / sqrt(max(sum(x * x over axis), epsilon))\n"
      "shapes: x (any, rank at least 1) -> out alike\n"
      "dtypes: float32 or float64 -> the same\n"
      "defaults: epsilon = 1e-12\n"
      "errors: axis outside the rank; epsilon not above 0";
  op.inputs = {{"x"}};
  op.attrs = {{"axis", int64_t{-1}, "the axis of the vectors; negative counts from the last", true},
              {"epsilon", 1e-12, "smallest squared length that is divided by"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_floating(call, 0, "x");
    wrap_axis(call.attrs.integer("axis"), call.shape(0).rank());
    const double epsilon = call.attrs.number("epsilon");
    require(epsilon > 0, ErrorCode::InvalidArgument, "epsilon must be above 0, got ", epsilon);
    return {call.type(0)};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    return {g.op("l2_normalize_grad", {g.grads[0], g.inputs[0]}, g.attrs)};
  };
  op.cpu = {prepare_l2_normalize};
  op.inplace = {{0, 0}};
  op.examples = {{{f32({3, 4})}, {{"axis", int64_t{1}}}}, {{f32({2, 3, 2})}, {{"axis", int64_t{-2}}}}};
  catalog.add(op);

  OpDef grad;
  grad.name = "l2_normalize_grad";
  grad.doc =
      "Gradient of l2_normalize.\n"
      "  s = max(sum(x * x), epsilon);  dx = (dy - x * sum(dy * x) / s) / sqrt(s)\n"
      "  the inner sum is left out where epsilon holds the length\n"
      "shapes: dy and x alike -> dx alike";
  grad.inputs = {{"dy"}, {"x"}};
  grad.outputs = {"dx"};
  grad.attrs = op.attrs;
  grad.infer = [](const OpCall& call) -> std::vector<TensorType> {
    require_same(call, 0, "dy", 1, "x");
    wrap_axis(call.attrs.integer("axis"), call.shape(1).rank());
    return {call.type(1)};
  };
  grad.grad = gradient_of([](GradCall& call, const Terms& in) -> std::vector<Term> {
    const Term dy = *in[0], x = *in[1];
    const Ints axis{call.attrs.integer("axis")};
    const Term square = sum(x.op("square"), axis), epsilon = x.number(call.attrs.number("epsilon"));
    const Term counts = square.op("greater", epsilon).op("cast", {{"dtype", x.dtype()}});
    const Term s = square.op("maximum", epsilon);
    return {(dy - counts * x * sum(dy * x, axis) / s) * s.op("rsqrt")};
  });
  grad.cpu = {prepare_l2_normalize_grad};
  grad.inplace = {{0, 0}, {0, 1}};
  grad.examples = {{{f32({3, 4}), f32({3, 4})}, {{"axis", int64_t{1}}}}};
  catalog.add(grad);
}

}  // namespace moonflow
