// Learning-rate schedules on CUDA: one thread each, from a step and to a rate in the card's memory.
#include "kernels/schedules.h"

#include "kernels/cuda/block.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

template <class F>
struct Rate {
  F schedule;
  const int64_t* step;
  float* out;
  MOONFLOW_DEVICE void operator()(int64_t) const { *out = static_cast<float>(schedule(*step)); }
};

struct WarmRate {
  schedules::Warmup warmup;
  const int64_t* step;
  const float* rate;
  float* out;
  MOONFLOW_DEVICE void operator()(int64_t) const { *out = warmup(*step, *rate); }
};

// Some pieces of a schedule, as many as a kernel's arguments have room for. Where the step lies behind all of them,
// `out` is left as it is.
struct SomePieces {
  static constexpr int kMost = 200;
  int count = 0;
  int64_t boundaries[kMost];
  double values[kMost];
  const int64_t* step = nullptr;
  float* out = nullptr;
  MOONFLOW_DEVICE void operator()(int64_t) const {
    for (int i = 0; i < count; ++i) {
      if (*step > boundaries[i]) continue;
      *out = static_cast<float>(values[i]);
      return;
    }
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class F>
Kernel by() {
  return {[](KernelCall& call) -> Launch {
    return [schedule = F(call.attrs)](const LaunchCall& at) {
      for_each(at.stream, 1, Rate<F>{schedule, at.input<int64_t>(0), at.output<float>(0)});
    };
  }};
}

template <bool rises>
Kernel warming_up() {
  return {[](KernelCall& call) -> Launch {
    return [warmup = schedules::Warmup(call.attrs, rises)](const LaunchCall& at) {
      for_each(at.stream, 1, WarmRate{warmup, at.input<int64_t>(0), at.input<float>(1), at.output<float>(0)});
    };
  }};
}

// The last pieces come first, and the ones before them where the step is there.
template <schedules::Pieces (*pieces_of)(const Attrs&)>
Kernel by_pieces() {
  return {[](KernelCall& call) -> Launch {
    return [pieces = pieces_of(call.attrs)](const LaunchCall& at) {
      constexpr size_t kMost = SomePieces::kMost;
      for (size_t last = pieces.values.size(); last > 0;) {
        const size_t first = last > kMost ? last - kMost : 0;
        SomePieces some;
        for (size_t i = first; i < last; ++i) {
          const bool has_end = i < pieces.boundaries.size();
          some.boundaries[some.count] = has_end ? pieces.boundaries[i] : std::numeric_limits<int64_t>::max();
          some.values[some.count++] = pieces.values[i];
        }
        some.step = at.input<int64_t>(0);
        some.out = at.output<float>(0);
        for_each(at.stream, 1, some);
        last = first;
      }
    };
  }};
}

}  // namespace

void add_schedule(Kernels& kernels) {
  kernels["schedule_piecewise_constant"] = {by_pieces<schedules::constant_pieces>()};
  kernels["schedule_piecewise_scaling"] = {by_pieces<schedules::scaled_pieces>()};
  kernels["schedule_cosine"] = {by<schedules::Cosine>()};
  kernels["schedule_linear_cosine"] = {by<schedules::LinearCosine>()};
  kernels["schedule_exponential"] = {by<schedules::Exponential>()};
  kernels["schedule_inverse_time"] = {by<schedules::InverseTime>()};
  kernels["schedule_natural_exp"] = {by<schedules::NaturalExp>()};
  kernels["schedule_polynomial"] = {by<schedules::Polynomial>()};
  kernels["schedule_warmup_constant"] = {warming_up<false>()};
  kernels["schedule_warmup_linear"] = {warming_up<true>()};
}

}  // namespace moonflow::cuda
