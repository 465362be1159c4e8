// The gradient of max pooling where 2 x 2 windows tile the image, the commonest case by far, in one pass: each window
// is read once and written once, so dx may lie over x, and a relu before the pooling costs one comparison.
#include <limits>
#include <type_traits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

// One window in `lanes` channels. `x` and `dx` are at its first place, `row` is the distance to the next row. Of equal
// maxima the first in row-major order wins, and NaN is below all numbers. Comparisons are written out where they are
// used: a bool kept in between would stop the vectoriser.
template <bool kRelu>
void window(int64_t row, int64_t lanes, const float* dy, const float* x, float* dx) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) {
    const float in_a = x[i], in_b = x[i + lanes], in_c = x[i + row], in_d = x[i + row + lanes];
    const float a = in_a == in_a ? in_a : kNone, b = in_b == in_b ? in_b : kNone;
    const float c = in_c == in_c ? in_c : kNone, d = in_d == in_d ? in_d : kNone;
    const float above = b > a ? b : a, below = d > c ? d : c;
    const float most = below > above ? below : above;
    const float passed = kRelu && most <= 0.0f ? 0.0f : dy[i];
    const float to_above = below > above ? 0.0f : passed, to_below = below > above ? passed : 0.0f;
    dx[i] = b > a ? 0.0f : to_above;
    dx[i + lanes] = b > a ? to_above : 0.0f;
    dx[i + row] = d > c ? 0.0f : to_below;
    dx[i + row + lanes] = d > c ? to_below : 0.0f;
  }
}

// `kLanes` is the number of lanes where that is known here, else 0.
template <int kLanes, bool kRelu>
void rows_of_windows(int64_t first, int64_t last, int64_t windows, int64_t lanes, const float* dy, const float* x,
                     float* dx) {
  const int64_t step = kLanes > 0 ? kLanes : lanes, row = 2 * windows * step;
  for (int64_t r = first; r < last; ++r) {
    for (int64_t w = 0; w < windows; ++w) {
      const int64_t at = 2 * r * row + 2 * w * step;
      window<kRelu>(row, step, dy + (r * windows + w) * step, x + at, dx + at);
    }
  }
}

}  // namespace

bool pools_by_two(const Pool& pool, const ChannelForm& form) {
  return moonflow::pools_by_two(pool) && form.lanes >= 8;  // fewer do not fill a register
}

Launch max_grad_by_two(const Pool& pool, const ChannelForm& form, bool relu) {
  const int64_t windows = pool.out.width, lanes = form.lanes, rows = form.count() / (4 * windows * lanes);
  return [=](const LaunchCall& call) {
    const float *dy = call.input<float>(0), *x = call.input<float>(1);
    float* dx = call.output<float>(0);
    parallel_for(rows, std::max<int64_t>(1, kGrain / (windows * lanes)), [=](int64_t first, int64_t last) {
      widest([=] {
        const auto compute = [=](auto known) {
          constexpr int kLanes = decltype(known)::value;
          relu ? rows_of_windows<kLanes, true>(first, last, windows, lanes, dy, x, dx)
               : rows_of_windows<kLanes, false>(first, last, windows, lanes, dy, x, dx);
        };
        lanes == 16 ? compute(std::integral_constant<int, 16>()) : compute(std::integral_constant<int, 0>());
      });
    });
  };
}

}  // namespace moonflow::cpu
