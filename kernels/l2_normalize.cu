// l2_normalize on CUDA.
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/teams.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct L2Normalize {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T* x;
  T* out;
  T epsilon;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const auto values = team.values(x + start, n, stride);
    const double squares = values.sum([](T value) { return double{value} * value; });
    const T scale = static_cast<T>(1 / std::sqrt(squares < epsilon ? double{epsilon} : squares));
    values.map([=](T value) { return value * scale; }).write(out + start);
  }
};

// Where the norm is held at epsilon it is a constant, and only the scale is left of the gradient.
template <class T>
struct L2NormalizeGrad {
  static constexpr bool kHolds = sizeof(T) == 4;
  const T *dy, *x;
  T* dx;
  T epsilon;
  template <class Team>
  MOONFLOW_DEVICE void operator()(const Team& team, int64_t, int64_t start, int64_t n, int64_t stride) const {
    const auto values = team.values(x + start, n, stride), ds = team.values(dy + start, n, stride);
    const double squares = values.sum([](T value) { return double{value} * value; });
    const double dot = ds.sum([](T d, T value) { return double{d} * value; }, values);
    const double kept = squares < epsilon ? double{epsilon} : squares;
    const T scale = static_cast<T>(1 / std::sqrt(kept));
    const T along = squares > epsilon ? static_cast<T>(dot / kept) : T(0);
    ds.map([=](T d, T value) { return (d - value * along) * scale; }, values).write(dx + start);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// `x` is the input whose axis counts.
template <class LaunchLanes>
CudaKernel along_axis(int x, LaunchLanes launch_lanes) {
  return {{[=](KernelCall& call) {
    const Lanes lanes(call.inputs[x].shape, call.attrs.integer("axis"));
    const double epsilon = call.attrs.number("epsilon");
    return visit_floating(call.inputs[x].dtype, [&](auto zero) -> Launch {
      return [=](const LaunchCall& at) {
        if (lanes.n > 0) launch_lanes(at, lanes, static_cast<decltype(zero)>(epsilon));
      };
    });
  }}};
}

}  // namespace

void add_l2_normalize(Kernels& kernels) {
  kernels["l2_normalize"] = along_axis(0, [](const LaunchCall& at, const Lanes& lanes, auto epsilon) {
    using T = decltype(epsilon);
    for_each_lane(at.stream, lanes, L2Normalize<T>{at.input<T>(0), at.output<T>(0), epsilon});
  });
  kernels["l2_normalize_grad"] = along_axis(1, [](const LaunchCall& at, const Lanes& lanes, auto epsilon) {
    using T = decltype(epsilon);
    for_each_lane(at.stream, lanes, L2NormalizeGrad<T>{at.input<T>(0), at.input<T>(1), at.output<T>(0), epsilon});
  });
}

}  // namespace moonflow::cuda
