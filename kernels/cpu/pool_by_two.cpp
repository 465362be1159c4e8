// The gradient of max pooling where 2 x 2 windows tile the image, the commonest case by far, in one pass: each window
// is read once and written once, so dx may lie over x, and a relu before the pooling costs one comparison.
#include <type_traits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

// `kept`, or `other` where the maximum gives way (pool.h), without a bool in between, which would stop the vectoriser.
inline float kept_or(float maximum, float value, float kept, float other) {
  return maximum >= value ? kept : value == value ? other : kept;
}

// One window in `lanes` channels. `x` and `dx` are at its first place, `row` is the distance to the next row. Of equal
// maxima the first in row-major order wins.
template <bool kRelu>
void window(int64_t row, int64_t lanes, const float* dy, const float* x, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) {
    const float a = x[i], b = x[i + lanes], c = x[i + row], d = x[i + row + lanes];
    const float above = kept_or(a, b, a, b), below = kept_or(c, d, c, d);
    const float passed = !kRelu || kept_or(above, below, above, below) > 0 ? dy[i] : 0.0f;
    const float to_above = kept_or(above, below, passed, 0.0f), to_below = kept_or(above, below, 0.0f, passed);
    dx[i] = kept_or(a, b, to_above, 0.0f);
    dx[i + lanes] = kept_or(a, b, 0.0f, to_above);
    dx[i + row] = kept_or(c, d, to_below, 0.0f);
    dx[i + row + lanes] = kept_or(c, d, 0.0f, to_below);
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
