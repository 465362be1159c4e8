// Pooling as plain loops. A plane, which is one channel of one image, is one thread's, so results do not depend on the
// number of threads.
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/pool.h"

namespace moonflow {
namespace {

// Where the elements of a plane are.
struct Plane {
  int64_t offset, row, column;

  int64_t at(int64_t y, int64_t x) const { return offset + y * row + x * column; }
};

Plane plane_of(const ImageSize& size, const ImageFormat& format, int64_t n, int64_t c) {
  const int64_t places = size.height * size.width;
  if (!format.channels_last) return {(n * size.channels + c) * places, size.width, 1};
  return {n * places * size.channels + c, size.width * size.channels, size.channels};
}

// Calls body(image plane, out plane) for every channel of every image.
template <class Body>
void each_plane(const Pool& pool, const Body& body) {
  const int64_t work = std::max<int64_t>(1, pool.image.height * pool.image.width);
  const int64_t channels = pool.image.channels;
  cpu::parallel_for(pool.image.batch * channels, std::max<int64_t>(1, cpu::kGrain / work),
                    [&](int64_t first, int64_t last) {
                      for (int64_t i = first; i < last; ++i) {
                        body(plane_of(pool.image, pool.format, i / channels, i % channels),
                             plane_of(pool.out, pool.format, i / channels, i % channels));
                      }
                    });
}

struct Range {
  int64_t first, last;

  int64_t size() const { return last - first; }
};

// What output o sees along an axis.
Range seen(const Window& window, int64_t o) {
  return {window.start(o) + window.first(o), window.start(o) + window.last(o)};
}

// Calls body(output element, rows, columns) for every window; the ranges are what the window sees of the image.
template <class Body>
void each_window(const Pool& pool, const Plane& out, const Body& body) {
  for (int64_t y = 0; y < pool.out.height; ++y) {
    const Range rows = seen(pool.windows[0], y);
    for (int64_t x = 0; x < pool.out.width; ++x) body(out.at(y, x), rows, seen(pool.windows[1], x));
  }
}

// The offset of the first maximum in row-major order.
template <class T>
int64_t first_maximum(const T* image, const Plane& plane, Range rows, Range columns) {
  int64_t best = plane.at(rows.first, columns.first);
  for (int64_t y = rows.first; y < rows.last; ++y) {
    for (int64_t x = columns.first; x < columns.last; ++x) {
      if (gives_way(image[best], image[plane.at(y, x)])) best = plane.at(y, x);
    }
  }
  return best;
}

template <class T>
void clear(const Pool& pool, const Plane& plane, T* image) {
  for (int64_t y = 0; y < pool.image.height; ++y) {
    for (int64_t x = 0; x < pool.image.width; ++x) image[plane.at(y, x)] = 0;
  }
}

template <class T>
void max_pool(const Pool& pool, const T* x, T* out) {
  each_plane(pool, [&](const Plane& from, const Plane& to) {
    each_window(pool, to,
                [&](int64_t o, Range rows, Range columns) { out[o] = x[first_maximum(x, from, rows, columns)]; });
  });
}

template <class T>
void max_pool_grad(const Pool& pool, bool relu, const T* dy, const T* x, T* dx) {
  each_plane(pool, [&](const Plane& to, const Plane& from) {
    clear(pool, to, dx);
    each_window(pool, from, [&](int64_t o, Range rows, Range columns) {
      const int64_t best = first_maximum(x, to, rows, columns);
      if (!relu || x[best] > 0) dx[best] += dy[o];
    });
  });
}

template <class T>
void avg_pool(const Pool& pool, const T* x, T* out) {
  each_plane(pool, [&](const Plane& from, const Plane& to) {
    each_window(pool, to, [&](int64_t o, Range rows, Range columns) {
      double sum = 0;
      for (int64_t i = rows.first; i < rows.last; ++i) {
        for (int64_t j = columns.first; j < columns.last; ++j) sum += x[from.at(i, j)];
      }
      out[o] = static_cast<T>(sum / (rows.size() * columns.size()));
    });
  });
}

template <class T>
void avg_pool_grad(const Pool& pool, const T* dy, T* dx) {
  each_plane(pool, [&](const Plane& to, const Plane& from) {
    clear(pool, to, dx);
    each_window(pool, from, [&](int64_t o, Range rows, Range columns) {
      const T share = dy[o] / static_cast<T>(rows.size() * columns.size());
      for (int64_t i = rows.first; i < rows.last; ++i) {
        for (int64_t j = columns.first; j < columns.last; ++j) dx[to.at(i, j)] += share;
      }
    });
  });
}

}  // namespace

Launch pool_loops(const Pool& pool, PoolKind kind, bool relu, KernelCall& call) {
  if (kind == PoolKind::MaxGrad) call.scratch_bytes = call.inputs[1].bytes();
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [pool, kind, relu, bytes = call.scratch_bytes](const LaunchCall& launch) {
      const T* first = launch.input<T>(0);
      T* out = launch.output<T>(0);
      switch (kind) {
        case PoolKind::Max:
          return max_pool(pool, first, out);
        case PoolKind::Average:
          return avg_pool(pool, first, out);
        case PoolKind::AverageGrad:
          return avg_pool_grad(pool, first, out);
        case PoolKind::MaxGrad:
          break;
      }
      const T* x = launch.input<T>(1);
      if (x == out) x = static_cast<const T*>(std::memcpy(launch.scratch, x, bytes));
      max_pool_grad(pool, relu, first, x, out);
    };
  });
}

}  // namespace moonflow
