// A dynamic loss scale: whether a step's gradients are all finite, and what becomes of the scale by that. Gradients of
// a narrow dtype vanish below its smallest number unless they are scaled up, and overflow where they are scaled too
// far; so the scale rises until that happens, the step is left out, and the scale falls again. The decision is a value
// of the graph, which updates take as their factor (update.cpp), so the host does not look.
#include "kernels/loss_scale.h"

#include <atomic>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/simd.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// ---- all_finite ----------------------------------------------------------------------------------------------

template <class T>
bool are_finite(const T* x, int64_t count) {
  std::atomic<bool> all{true};
  cpu::parallel_for(count, cpu::kWideGrain, [&](int64_t first, int64_t last) {
    int others = 0;
    cpu::widest([x, first, last, &others] {
      int found = 0;
      for (int64_t i = first; i < last; ++i) found += is_finite(x[i]) ? 0 : 1;
      others = found;
    });
    if (others != 0) all.store(false, std::memory_order_relaxed);
  });
  return all;
}

OpDef all_finite() {
  OpDef op;
  op.name = "all_finite";
  op.doc =
      "Whether several values have neither an infinity nor a NaN.\n"
      "  out = 1 if all elements of all x are finite, else 0\n"
      "shapes: any number of x of any shapes -> ()\n"
      "dtypes: float32, float64, also mixed -> float32";
  op.inputs = {{"x", InputDef::Many}};
  op.infer = [](const OpCall& call) {
    for (int i = 0; i < call.count(); ++i)
      require(is_floating(call.dtype(i)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.type(i));
    return std::vector<TensorType>{f32({})};
  };
  op.cpu = {[](KernelCall& call) -> Launch {
    return [types = call.inputs](const LaunchCall& launch) {
      bool all = true;
      for (size_t i = 0; i < types.size() && all; ++i) {
        all = visit_floating(types[i].dtype, [&](auto zero) {
          return are_finite(launch.input<decltype(zero)>(static_cast<int>(i)), types[i].count());
        });
      }
      *launch.output<float>(0) = all ? 1.0f : 0.0f;
    };
  }};
  op.examples = {{{f32({2, 3}), f32({4}), f32({})}}, {{f32({5}), {DType::Float64, {3}}}}};
  return op;
}

// ---- dynamic_loss_scale_update -------------------------------------------------------------------------------

OpDef dynamic_loss_scale_update() {
  OpDef op;
  op.name = "dynamic_loss_scale_update";
  op.doc =
      "The loss scale of the next step.\n"
      "  finite 0: loss_scale = max(1, loss_scale / multiplier), good_steps = 0\n"
      "  else good_steps += 1, and when that is increment_period: loss_scale *= multiplier, good_steps = 0\n"
      "shapes: loss_scale (), good_steps (), finite ()\n"
      "dtypes: loss_scale float32, at most its largest number; good_steps int64; finite float32\n"
      "errors: an increment_period below 1, a multiplier that is not above 1";
  op.inputs = {{"loss_scale"}, {"good_steps"}, {"finite"}};
  op.outputs = {};
  op.attrs = {{"increment_period", int64_t{2000}, "steps without overflow after which the scale rises"},
              {"multiplier", 2.0, "by which it rises and falls"}};
  op.infer = [](const OpCall& call) {
    require_type(call, 0, "loss_scale", f32({}));
    require_type(call, 1, "good_steps", {DType::Int64, {}});
    require_type(call, 2, "finite", f32({}));
    require(call.attrs.integer("increment_period") >= 1, ErrorCode::InvalidArgument,
            "increment_period must be at least 1, got ", call.attrs.integer("increment_period"));
    require(call.attrs.number("multiplier") > 1, ErrorCode::InvalidArgument, "multiplier must be above 1, got ",
            call.attrs.number("multiplier"));
    return std::vector<TensorType>{};
  };
  op.writes = {0, 1};
  op.cpu = {[](KernelCall& call) -> Launch {
    return [rule = DynamicLossScale(call.attrs)](const LaunchCall& launch) {
      rule(*static_cast<float*>(launch.inputs[0]), *static_cast<int64_t*>(launch.inputs[1]), *launch.input<float>(2));
    };
  }};
  const TensorType good_steps{DType::Int64, {}};
  op.examples = {{{f32({}), good_steps, f32({})}, {{"increment_period", int64_t{2}}}, 0.5, 3}};
  return op;
}

}  // namespace

void add_loss_scale(Catalog& catalog) {
  catalog.add(all_finite());
  catalog.add(dynamic_loss_scale_update());
}

}  // namespace moonflow
