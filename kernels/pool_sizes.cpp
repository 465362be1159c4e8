// The sizes of a pooling; see pool.h.
#include "kernels/pool.h"

namespace moonflow {

Pool pool_of(const Attrs& attrs, const Shape& x) {
  Pool pool;
  pool.format = image_format(attrs.string("data_format"), 2);
  pool.image = image_size(x, pool.format, "x");
  const Ints& size = attrs.ints("ksize");
  const Ints& strides = attrs.ints("strides");
  pool.windows = windows(pool.image, pool.format,
                         {per_axis(size, pool.format, "ksize", 1),
                          strides.empty() ? size : strides,
                          {1},
                          attrs.string("padding"),
                          attrs.ints("pads"),
                          attrs.flag("ceil_mode")});
  for (const Window& window : pool.windows) {
    // Otherwise a window could lie wholly in the padding, and would have neither maximum nor average.
    require(window.before < window.size && (window.out == 0 || window.start(window.out - 1) < window.in),
            ErrorCode::InvalidArgument, "padding of ", window.before, " and ", window.after,
            " leaves a window of size ", window.size, " without any element of x");
  }
  pool.out = {pool.image.batch, pool.image.channels, pool.windows[0].out, pool.windows[1].out};
  return pool;
}

bool pools_by_two(const Pool& pool) {
  for (const Window& window : pool.windows) {
    if (window.size != 2 || window.stride != 2 || window.before != 0 || window.in != 2 * window.out) return false;
    if (window.out == 0) return false;
  }
  return true;
}

bool pools_by_two(const Attrs& attrs, const Shape& x) { return pools_by_two(pool_of(attrs, x)); }

}  // namespace moonflow
