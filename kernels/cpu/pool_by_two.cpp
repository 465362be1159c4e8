// The gradient of max pooling where 2 x 2 windows tile the image, the commonest case by far, in one pass: each window
// is read once and written once, so dx may lie over x, and a relu before the pooling costs one comparison.
#include <limits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

// One window in `lanes` channels. `x` and `dx` are at its first place, `row` is the distance to the next row. Maxima up
// to `closed` pass nothing; no number is up to NaN. Comparisons are written out where they are used: a bool kept in
// between would stop the vectoriser. Of equal maxima the first in row-major order wins.
inline void window(int64_t row, int64_t lanes, float closed, const float* dy, const float* x, float* dx) {
#pragma omp simd
  for (int64_t i = 0; i < lanes; ++i) {
    const float a = x[i], b = x[i + lanes], c = x[i + row], d = x[i + row + lanes];
    const float above = b > a ? b : a, below = d > c ? d : c;
    const float most = below > above ? below : above;
    const float passed = most <= closed ? 0.0f : dy[i];
    const float to_above = below > above ? 0.0f : passed, to_below = below > above ? passed : 0.0f;
    dx[i] = b > a ? 0.0f : to_above;
    dx[i + lanes] = b > a ? to_above : 0.0f;
    dx[i + row] = d > c ? 0.0f : to_below;
    dx[i + row + lanes] = d > c ? to_below : 0.0f;
  }
}

// `kLanes` is the number of lanes where that is known here, else 0.
template <int kLanes>
void rows_of_windows(int64_t first, int64_t last, int64_t windows, int64_t lanes, float closed, const float* dy,
                     const float* x, float* dx) {
  const int64_t step = kLanes > 0 ? kLanes : lanes, row = 2 * windows * step;
  for (int64_t r = first; r < last; ++r) {
    for (int64_t w = 0; w < windows; ++w) {
      const int64_t at = 2 * r * row + 2 * w * step;
      window(row, step, closed, dy + (r * windows + w) * step, x + at, dx + at);
    }
  }
}

}  // namespace

bool pools_by_two(const Pool& pool, const ChannelForm& form) {
  return moonflow::pools_by_two(pool) && form.lanes >= 8;  // fewer do not fill a register
}

Launch max_grad_by_two(const Pool& pool, const ChannelForm& form, bool relu) {
  const int64_t windows = pool.out.width, lanes = form.lanes, rows = form.count() / (4 * windows * lanes);
  const float closed = relu ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  return [=](const LaunchCall& call) {
    const float *dy = call.input<float>(0), *x = call.input<float>(1);
    float* dx = call.output<float>(0);
    parallel_for(rows, std::max<int64_t>(1, kGrain / (windows * lanes)), [=](int64_t first, int64_t last) {
      widest([=] {
        if (lanes == 16) {
          rows_of_windows<16>(first, last, windows, lanes, closed, dy, x, dx);
        } else {
          rows_of_windows<0>(first, last, windows, lanes, closed, dy, x, dx);
        }
      });
    });
  };
}

}  // namespace moonflow::cpu
