// Pooling as plain loops. A plane, which is one channel of one image, is one thread's, so results do not depend on the
// number of threads.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
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
  parallel_for(pool.image.batch * channels, std::max<int64_t>(1, kGrain / work), [&](int64_t first, int64_t last) {
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

// ---- windows side by side --------------------------------------------------------------------------------------

// The windows of an output row where columns are neighbours, some at a time: first down the rows that they see of the
// image, all columns together, then along these.
class RowOfWindows {
 public:
  static constexpr int64_t kSpan = 512;  // columns that are held together

  static bool serves(const Pool& pool) { return !pool.format.channels_last && pool.windows[1].size <= kSpan / 4; }

  explicit RowOfWindows(const Pool& pool)
      : along_(pool.windows[1]), width_(pool.image.width), together_((kSpan - along_.size) / along_.stride + 1) {}

  // Calls done(first, last, held, rows) with the windows [first, last) of which `held` has what `take` makes of their
  // elements. `image` is a plane.
  template <class Held, class T, class Take, class Done>
  void gather(const Pool& pool, int64_t row, const T* image, const Take& take, const Done& done) const {
    const Range rows = seen(pool.windows[0], row);
    Held columns[kSpan], held[kSpan];
    for (int64_t first = 0; first < pool.out.width; first += together_) {
      const int64_t last = std::min(first + together_, pool.out.width);
      const int64_t left = seen(along_, first).first, span = seen(along_, last - 1).last - left;
      const T* x = image + rows.first * width_ + left;
      for (int64_t j = 0; j < span; ++j) columns[j] = x[j];
      for (int64_t i = rows.first + 1; i < rows.last; ++i) {
        x += width_;
        for (int64_t j = 0; j < span; ++j) columns[j] = take(columns[j], static_cast<Held>(x[j]));
      }
      // Those at a side of the image, which see less of it, one by one.
      int64_t begin = first, end = last;
      for (; begin < end && !is_complete(begin); ++begin) held[begin - first] = one(begin, columns, left, take);
      for (; end > begin && !is_complete(end - 1); --end) held[end - 1 - first] = one(end - 1, columns, left, take);
      const Held* const start = columns + (begin < end ? along_.start(begin) - left : 0);
      const auto others = [&, held = held + (begin - first)](auto stride) {
        for (int64_t o = 0; o < end - begin; ++o) held[o] = start[o * stride];
        for (int64_t k = 1; k < along_.size; ++k) {
          for (int64_t o = 0; o < end - begin; ++o) held[o] = take(held[o], start[o * stride + k]);
        }
      };
      if (along_.stride == 1)
        others(std::integral_constant<int64_t, 1>());
      else if (along_.stride == 2)
        others(std::integral_constant<int64_t, 2>());
      else
        others(along_.stride);
      done(first, last, held, rows);
    }
  }

 private:
  bool is_complete(int64_t o) const { return along_.first(o) == 0 && along_.last(o) == along_.size; }

  template <class Held, class Take>
  Held one(int64_t o, const Held* columns, int64_t left, const Take& take) const {
    const Range range = seen(along_, o);
    Held held = columns[range.first - left];
    for (int64_t j = range.first + 1; j < range.last; ++j) held = take(held, columns[j - left]);
    return held;
  }

  const Window& along_;
  const int64_t width_, together_;
};

// Calls body(row of windows, y, image plane, out plane) for every row of every plane.
template <class Body>
void each_row(const Pool& pool, const Body& body) {
  const RowOfWindows windows(pool);
  each_plane(pool, [&](const Plane& image, const Plane& out) {
    widest([&] {
      for (int64_t y = 0; y < pool.out.height; ++y) body(windows, y, image.offset, out.at(y, 0));
    });
  });
}

struct Larger {
  template <class T>
  T operator()(T maximum, T value) const {
    return gives_way(maximum, value) ? value : maximum;
  }
};

template <class T>
void max_of_rows(const Pool& pool, const T* x, T* out) {
  each_row(pool, [&](const RowOfWindows& windows, int64_t y, int64_t image, int64_t row) {
    windows.gather<T>(pool, y, x + image, Larger(), [&](int64_t first, int64_t last, const T* held, Range) {
      std::copy(held, held + (last - first), out + row + first);
    });
  });
}

template <class T>
void average_of_rows(const Pool& pool, const T* x, T* out) {
  const auto add = [](double sum, double value) { return sum + value; };
  each_row(pool, [&](const RowOfWindows& windows, int64_t y, int64_t image, int64_t row) {
    windows.gather<double>(pool, y, x + image, add, [&](int64_t first, int64_t last, const double* held, Range rows) {
      for (int64_t o = first; o < last; ++o) {
        const double count = static_cast<double>(rows.size() * seen(pool.windows[1], o).size());
        out[row + o] = static_cast<T>(held[o - first] / count);
      }
    });
  });
}

template <class T>
void max_grad_of_rows(const Pool& pool, bool relu, const T* dy, const T* x, T* dx) {
  const int64_t width = pool.image.width;
  each_row(pool, [&](const RowOfWindows& windows, int64_t y, int64_t image, int64_t row) {
    if (y == 0) std::fill_n(dx + image, pool.image.height * width, T(0));
    windows.gather<T>(pool, y, x + image, Larger(), [&](int64_t first, int64_t last, const T* held, Range rows) {
      for (int64_t o = first; o < last; ++o) {
        const T most = held[o - first];
        if (relu && !(most > 0)) continue;
        const Range columns = seen(pool.windows[1], o);
        int64_t place = image + rows.first * width + columns.first;
        const int64_t end = image + (rows.last - 1) * width + columns.last;
        for (int64_t j = columns.first; place < end && x[place] != most && most == most; ++place) {
          if (++j < columns.last) continue;
          j = columns.first;
          place += width - columns.size();
        }
        dx[place] += dy[row + o];
      }
    });
  });
}

// ---- channels side by side -------------------------------------------------------------------------------------

// Where channels come last a window is taken in all of them together, some at a time. Calls done(offset, channels,
// held, seen) with the place in the output of so many, what `take` makes of their elements, and how many each has.
template <class Held, class T, class Take, class Done>
void each_window_in_channels(const Pool& pool, const T* x, const Take& take, const Done& done) {
  constexpr int64_t kSpan = 256;
  const int64_t channels = pool.image.channels, width = pool.image.width * channels;
  const int64_t work = pool.out.width * channels * pool.windows[0].size * pool.windows[1].size;
  parallel_for(
      pool.out.batch * pool.out.height, kGrain / std::max<int64_t>(1, work) + 1, [&](int64_t begin, int64_t end) {
        widest([&] {
          Held held[kSpan];
          for (int64_t line = begin; line < end; ++line) {
            const Range rows = seen(pool.windows[0], line % pool.out.height);
            const T* const image = x + (line / pool.out.height * pool.image.height + rows.first) * width;
            for (int64_t o = 0; o < pool.out.width; ++o) {
              const Range columns = seen(pool.windows[1], o);
              for (int64_t first = 0; first < channels; first += kSpan) {
                const int64_t count = std::min(kSpan, channels - first);
                const T* const corner = image + columns.first * channels + first;
                for (int64_t c = 0; c < count; ++c) held[c] = corner[c];
                for (int64_t i = 0; i < rows.size(); ++i) {
                  for (int64_t j = i == 0 ? 1 : 0; j < columns.size(); ++j) {
                    const T* const place = corner + i * width + j * channels;
                    for (int64_t c = 0; c < count; ++c) held[c] = take(held[c], static_cast<Held>(place[c]));
                  }
                }
                done((line * pool.out.width + o) * channels + first, count, held, rows.size() * columns.size());
              }
            }
          }
        });
      });
}

template <class T>
void max_in_channels(const Pool& pool, const T* x, T* out) {
  each_window_in_channels<T>(pool, x, Larger(), [=](int64_t offset, int64_t count, const T* held, int64_t) {
    std::copy(held, held + count, out + offset);
  });
}

template <class T>
void average_in_channels(const Pool& pool, const T* x, T* out) {
  const auto add = [](double sum, double value) { return sum + value; };
  each_window_in_channels<double>(pool, x, add, [=](int64_t offset, int64_t count, const double* held, int64_t seen) {
    for (int64_t c = 0; c < count; ++c) out[offset + c] = static_cast<T>(held[c] / static_cast<double>(seen));
  });
}

// ---- one by one ------------------------------------------------------------------------------------------------

template <class T>
void max_pool(const Pool& pool, const T* x, T* out) {
  if (pool.format.channels_last) return max_in_channels(pool, x, out);
  if (RowOfWindows::serves(pool)) return max_of_rows(pool, x, out);
  each_plane(pool, [&](const Plane& from, const Plane& to) {
    each_window(pool, to,
                [&](int64_t o, Range rows, Range columns) { out[o] = x[first_maximum(x, from, rows, columns)]; });
  });
}

template <class T>
void max_pool_grad(const Pool& pool, bool relu, const T* dy, const T* x, T* dx) {
  if (RowOfWindows::serves(pool)) return max_grad_of_rows(pool, relu, dy, x, dx);
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
  if (pool.format.channels_last) return average_in_channels(pool, x, out);
  if (RowOfWindows::serves(pool)) return average_of_rows(pool, x, out);
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

}  // namespace moonflow::cpu
