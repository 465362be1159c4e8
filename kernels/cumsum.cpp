// cumsum: the sums of the elements up to each one along an axis.
#include "kernels/cumsum.h"

#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/lanes.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

// Of so many lanes that begin `apart` from one another. The sums may lie where the elements do.
template <class T, class Apart>
void sum_up(const InOrder& order, int64_t count, Apart apart, const T* x, T* out) {
  using Acc = CumulativeSum<T>;
  static_assert(cpu::kTogether <= cpu::kBeside);
  Acc sums[cpu::kBeside] = {};
  for (int64_t i = 0; i < order.n; ++i) {
    const int64_t at = order.at(i);
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
      const Acc before = sums[j];
      sums[j] = before + static_cast<Acc>(x[at + j * apart]);
      out[at + j * apart] = static_cast<T>(order.exclusive ? before : sums[j]);
    }
  }
}

Launch prepare_cumsum(KernelCall& call) {
  const Lanes lanes(call.inputs[0].shape, call.attrs.integer("axis"));
  const InOrder order = in_order(lanes, call.attrs);
  return visit_stored(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const T* const x = at.input<T>(0);
      T* const out = at.output<T>(0);
      // A sum waits for the one before it, as long as four other operations take; so rows are summed some at a time.
      const int64_t grain = cpu::kGrain / 4 / std::max<int64_t>(lanes.n, 1) + 1;
      if (lanes.stride == 1 && lanes.count > 1) {
        cpu::for_rows_together(lanes.count, grain, [&](int64_t row, int64_t count) {
          sum_up(order, count, order.n, x + row * order.n, out + row * order.n);
        });
        return;
      }
      constexpr std::integral_constant<int64_t, 1> neighbours;
      const auto beside = [=](int64_t lane, int64_t count) {
        const int64_t start = lanes.start(lane);
        sum_up(order, count, neighbours, x + start, out + start);
      };
      cpu::for_each_lane(lanes, grain, [=](int64_t lane) { beside(lane, 1); }, beside);
    };
  });
}

}  // namespace

void add_cumsum(Catalog& catalog) {
  OpDef op;
  op.name = "cumsum";
  op.lua = "math.cumsum";
  op.doc =
      "The cumulative sums along an axis: of the elements up to each one, itself included; with reverse of those from "
      "it on, and with exclusive without the element itself.\n"
      "  out[i] = x[0] + ... + x[i]\n"
      "shapes: x of one axis or more -> out alike\n"
      "dtypes: all -> the same; floats are summed in float64 and rounded once, integers wrap around\n"
      "errors: an axis outside x";
  op.inputs = {{"x"}};
  op.attrs = {{"axis", int64_t{0}, "the axis; a negative one counts from the end"},
              {"reverse", false, "from the end on"},
              {"exclusive", false, "the first sum is 0, and the last element in none"}};
  op.infer = [](const OpCall& call) -> std::vector<TensorType> {
    wrap_axis(call.attrs.integer("axis"), call.shape(0).rank());
    return {call.type(0)};
  };
  op.grad = [](GradCall& g) -> std::vector<ValueId> {
    if (!is_floating(g.type(g.inputs[0]).dtype)) return {kNone};
    return {g.op("cumsum", {g.grads[0]}, with(g.attrs, "reverse", !g.attrs.flag("reverse")))};
  };
  op.narrow.in_kernels = true;
  op.cpu = {prepare_cumsum};
  op.inplace = {{0, 0}};
  op.examples = {{{f32({5})}},
                 {{f32({3, 70})}, {{"axis", int64_t{1}}, {"reverse", true}}},
                 {{f32({2, 5, 3})}, {{"axis", int64_t{-2}}, {"exclusive", true}}},
                 {{f32({2, 3000})}, {{"axis", int64_t{1}}, {"reverse", true}, {"exclusive", true}}},
                 {{i32({4, 3})}},
                 {{bf16({3, 40})}, {{"axis", int64_t{1}}}}};
  catalog.add(std::move(op));
}

}  // namespace moonflow
