// A dynamic loss scale, on CUDA: a look at all gradients in a launch for each dtype, and the rule for the scale.
#include "kernels/loss_scale.h"

#include "kernels/cuda/arrays.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

struct SayYes {
  float* out;
  MOONFLOW_DEVICE void operator()(int64_t) const { *out = 1; }
};

// Every thread that finds something says the same, so none has to wait for another.
template <class T>
struct FindNotFinite {
  static constexpr int kPointers = 1, kN = 16 / static_cast<int>(sizeof(T));
  using Row = ArrayRow<kPointers>;
  float* out;

  static bool is_aligned(const Row& row) { return cuda::is_aligned<T, kN>(row.data[0]); }
  MOONFLOW_DEVICE bool skips() const { return false; }
  MOONFLOW_DEVICE FindNotFinite begin(const Row&) const { return *this; }
  MOONFLOW_DEVICE void operator()(const Row& row, int64_t first, int64_t rest, bool whole) const {
    const auto x = read<T, kN>(static_cast<const T*>(row.data[0]) + first, rest, whole);
    bool all = true;
    for (int i = 0; i < kN; ++i) all = all && is_finite(Computed<T>(x.values[i]));
    if (!all) *out = 0;
  }
};

struct UpdateLossScale {
  DynamicLossScale rule;
  const FaultNote* note;
  float* loss_scale;
  int64_t* good_steps;
  const float* finite;
  MOONFLOW_DEVICE void operator()(int64_t) const {
    if (note->found == 0) rule(*loss_scale, *good_steps, *finite);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// The values of one dtype.
struct Some {
  DType dtype;
  std::vector<int> places;
  std::vector<int64_t> counts;
};

Launch prepare_all_finite(KernelCall& call) {
  std::vector<Some> all;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const DType dtype = call.inputs[i].dtype;
    auto some = std::find_if(all.begin(), all.end(), [&](const Some& some) { return some.dtype == dtype; });
    if (some == all.end()) some = all.insert(all.end(), Some{dtype, {}, {}});
    some->places.push_back(static_cast<int>(i));
    some->counts.push_back(call.inputs[i].count());
  }
  return [all](const LaunchCall& at) {
    float* const out = at.output<float>(0);
    for_each(at.stream, 1, SayYes{out});
    for (const Some& some : all) {
      visit_fractions(some.dtype, [&](auto zero) {
        over_arrays(at.stream, FindNotFinite<decltype(zero)>{out}, static_cast<int64_t>(some.places.size()),
                    [&](int64_t i) { return ArrayRow<1>{{at.inputs[some.places[i]]}, some.counts[i]}; });
      });
    }
  };
}

Launch prepare_dynamic_loss_scale_update(KernelCall& call) {
  return [rule = DynamicLossScale(call.attrs)](const LaunchCall& at) {
    for_each(at.stream, 1,
             UpdateLossScale{rule, fault_note(at.stream), static_cast<float*>(at.inputs[0]),
                             static_cast<int64_t*>(at.inputs[1]), at.input<float>(2)});
  };
}

}  // namespace

void add_loss_scale(Kernels& kernels) {
  kernels["all_finite"] = {{prepare_all_finite}, true};
  kernels["dynamic_loss_scale_update"] = {{prepare_dynamic_loss_scale_update}};
}

}  // namespace moonflow::cuda
