// Pooling in loops: over the rows of planes, or over channels that lie side by side. What is summed is one thread's, so
// results do not depend on the number of threads.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/device.h"
#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

struct Range {
  int64_t first, last;

  int64_t size() const { return last - first; }
};

// What output o sees along an axis.
Range seen(const Window& window, int64_t o) {
  return {window.start(o) + window.first(o), window.start(o) + window.last(o)};
}

// ---- windows side by side --------------------------------------------------------------------------------------

// The windows of an output row where columns are neighbours, some at a time: first down the rows that they see of the
// image, all columns together, then along these.
class RowOfWindows {
 public:
  static constexpr int64_t kSpan = 512;  // columns that are held together

  static bool serves(const Pool& pool) { return pool.windows[1].size <= kSpan / 4; }

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

// Calls body(y, image plane, row of the output) for every row of windows of every plane, which is one thread's.
template <class Body>
void each_row(const Pool& pool, const Body& body) {
  const int64_t places = pool.image.height * pool.image.width;
  parallel_for(pool.image.batch * pool.image.channels, kGrain / places + 1, [&](int64_t first, int64_t last) {
    widest([&] {
      for (int64_t plane = first; plane < last; ++plane) {
        for (int64_t y = 0; y < pool.out.height; ++y)
          body(y, plane * places, (plane * pool.out.height + y) * pool.out.width);
      }
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
  const RowOfWindows windows(pool);
  each_row(pool, [&](int64_t y, int64_t image, int64_t row) {
    windows.gather<T>(pool, y, x + image, Larger(), [&](int64_t first, int64_t last, const T* held, Range) {
      std::copy(held, held + (last - first), out + row + first);
    });
  });
}

template <class T>
void average_of_rows(const Pool& pool, const T* x, T* out) {
  const auto add = [](double sum, double value) { return sum + value; };
  const RowOfWindows windows(pool);
  each_row(pool, [&](int64_t y, int64_t image, int64_t row) {
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
  const RowOfWindows windows(pool);
  each_row(pool, [&](int64_t y, int64_t image, int64_t row) {
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

template <class T>
void average_grad_of_rows(const Pool& pool, const T* dy, T* dx) {
  const int64_t width = pool.image.width;
  each_row(pool, [&](int64_t y, int64_t image, int64_t row) {
    if (y == 0) std::fill_n(dx + image, pool.image.height * width, T(0));
    const Range rows = seen(pool.windows[0], y);
    for (int64_t o = 0; o < pool.out.width; ++o) {
      const Range columns = seen(pool.windows[1], o);
      const T share = dy[row + o] / static_cast<T>(rows.size() * columns.size());
      for (int64_t i = rows.first; i < rows.last; ++i) {
        for (int64_t j = columns.first; j < columns.last; ++j) dx[image + i * width + j] += share;
      }
    }
  });
}

// ---- channels side by side -------------------------------------------------------------------------------------

// An image whose channels lie side by side, all of them or those of a block: a window is taken in some together.
struct Beside {
  static constexpr int64_t kSpan = 64;  // channels together
  int64_t planes, lanes;                // blocks of all images, channels of one
};

// Calls take(place) with the first of `count` channels at each place of a window but the first one.
template <class T, class Take>
void each_further_place(const T* corner, Range rows, Range columns, int64_t row, int64_t column, const Take& take) {
  for (int64_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = i == 0 ? 1 : 0; j < columns.size(); ++j) take(corner + i * row + j * column);
  }
}

// Calls done(offset, channels, held, seen) with the place in the output of so many, what `take` makes of their
// elements, and how many each has.
template <class Held, class T, class Take, class Done>
void each_window_beside(const Pool& pool, const Beside& beside, const T* x, const Take& take, const Done& done) {
  const int64_t work = pool.out.width * beside.lanes * pool.windows[0].size * pool.windows[1].size;
  const int64_t lanes = beside.lanes, width = pool.image.width * lanes;
  parallel_for(beside.planes * pool.out.height, kGrain / work + 1, [&](int64_t begin, int64_t end) {
    widest([&] {
      Held held[Beside::kSpan];
      for (int64_t line = begin; line < end; ++line) {
        const Range rows = seen(pool.windows[0], line % pool.out.height);
        const T* const image = x + (line / pool.out.height * pool.image.height + rows.first) * width;
        for (int64_t o = 0; o < pool.out.width; ++o) {
          const Range columns = seen(pool.windows[1], o);
          for (int64_t first = 0; first < lanes; first += Beside::kSpan) {
            const int64_t count = std::min(Beside::kSpan, lanes - first);
            const T* const corner = image + columns.first * lanes + first;
            for (int64_t c = 0; c < count; ++c) held[c] = corner[c];
            each_further_place(corner, rows, columns, width, lanes, [&](const T* place) {
              for (int64_t c = 0; c < count; ++c) held[c] = take(held[c], static_cast<Held>(place[c]));
            });
            done((line * pool.out.width + o) * lanes + first, count, held, rows.size() * columns.size());
          }
        }
      }
    });
  });
}

template <class T>
void max_beside(const Pool& pool, const Beside& beside, const T* x, T* out) {
  each_window_beside<T>(pool, beside, x, Larger(), [=](int64_t offset, int64_t count, const T* held, int64_t) {
    std::copy(held, held + count, out + offset);
  });
}

template <class T>
void average_beside(const Pool& pool, const Beside& beside, const T* x, T* out) {
  const auto add = [](double sum, double value) { return sum + value; };
  each_window_beside<double>(pool, beside, x, add,
                             [=](int64_t offset, int64_t count, const double* held, int64_t seen) {
                               for (int64_t c = 0; c < count; ++c)
                                 out[offset + c] = static_cast<T>(held[c] / static_cast<double>(seen));
                             });
}

// Calls body(count, dy, corner, rows, columns) for all windows of some channels after the other, which are one
// thread's: `dy` at the first of `count` channels of the output, `corner` where the window begins in the image. dx
// begins as 0.
template <class T, class Body>
void each_grad_beside(const Pool& pool, const Beside& beside, const T* dy, T* dx, const Body& body) {
  const int64_t places = pool.image.height * pool.image.width, windows = pool.out.height * pool.out.width;
  const int64_t lanes = beside.lanes, spans = (lanes + Beside::kSpan - 1) / Beside::kSpan;
  parallel_for(
      beside.planes * spans, kGrain / (places * std::min(lanes, Beside::kSpan)) + 1, [&](int64_t begin, int64_t end) {
        widest([&] {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t plane = i / spans, first = i % spans * Beside::kSpan;
            const int64_t start = plane * places * lanes + first, count = std::min(Beside::kSpan, lanes - first);
            for (int64_t p = 0; p < places; ++p) std::fill_n(dx + start + p * lanes, count, T(0));
            for (int64_t w = 0; w < windows; ++w) {
              const Range rows = seen(pool.windows[0], w / pool.out.width);
              const Range columns = seen(pool.windows[1], w % pool.out.width);
              body(count, dy + (plane * windows + w) * lanes + first,
                   start + (rows.first * pool.image.width + columns.first) * lanes, rows, columns);
            }
          }
        });
      });
}

template <class T>
void max_grad_beside(const Pool& pool, const Beside& beside, bool relu, const T* dy, const T* x, T* dx) {
  const int64_t column = beside.lanes, row = pool.image.width * column;
  each_grad_beside(pool, beside, dy, dx, [=](int64_t count, const T* given, int64_t corner, Range rows, Range columns) {
    T most[Beside::kSpan], rest[Beside::kSpan];
    for (int64_t c = 0; c < count; ++c) most[c] = x[corner + c];
    each_further_place(x + corner, rows, columns, row, column, [&](const T* place) {
      for (int64_t c = 0; c < count; ++c) most[c] = Larger()(most[c], place[c]);
    });
    for (int64_t c = 0; c < count; ++c) rest[c] = !relu || most[c] > 0 ? given[c] : T(0);
    for (int64_t i = 0; i < rows.size(); ++i) {
      for (int64_t j = 0; j < columns.size(); ++j) {
        const int64_t at = corner + i * row + j * column;
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) {
          const T left = x[at + c] == most[c] || most[c] != most[c] ? T(0) : rest[c];
          dx[at + c] += x[at + c] == most[c] || most[c] != most[c] ? rest[c] : T(0);
          rest[c] = left;
        }
      }
    }
  });
}

template <class T>
void average_grad_beside(const Pool& pool, const Beside& beside, const T* dy, T* dx) {
  const int64_t column = beside.lanes, row = pool.image.width * column;
  each_grad_beside(pool, beside, dy, dx, [=](int64_t count, const T* given, int64_t corner, Range rows, Range columns) {
    T share[Beside::kSpan];
    for (int64_t c = 0; c < count; ++c) share[c] = given[c] / static_cast<T>(rows.size() * columns.size());
    for (int64_t i = 0; i < rows.size(); ++i) {
      for (int64_t j = 0; j < columns.size(); ++j) {
        T* const to = dx + corner + i * row + j * column;
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) to[c] += share[c];
      }
    }
  });
}

// Rows where the channels are planes, else channels side by side; wide windows of rows as if there were one channel.
Beside beside_of(const Pool& pool, const TensorType& image, const Layout& layout) {
  const int64_t batch = pool.image.batch;
  if (layout.row_major() && !pool.format.channels_last) return {batch * pool.image.channels, 1};
  const auto form = channel_form(image, layout, pool.format.channel_axis());
  require(form.has_value(), ErrorCode::Internal, "pooling of an image without channels");
  return {batch * form->blocks, form->lanes};
}

}  // namespace

Launch pool_loops(const Pool& pool, PoolKind kind, bool relu, KernelCall& call) {
  const bool is_max_grad = kind == PoolKind::MaxGrad, makes_image = kind == PoolKind::AverageGrad;
  const TensorType& image = makes_image ? call.outputs[0] : call.inputs[is_max_grad];
  const Layout& layout = makes_image ? call.output_layouts[0] : call.input_layouts[is_max_grad];
  if (image.count() == 0) return [](const LaunchCall&) {};
  const Beside beside = beside_of(pool, image, layout);
  const bool in_rows = beside.lanes == 1 && (makes_image || RowOfWindows::serves(pool));
  if (is_max_grad) call.scratch_bytes = layout.bytes_of(image);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=, bytes = call.scratch_bytes](const LaunchCall& launch) {
      const T* first = launch.input<T>(0);
      T* out = launch.output<T>(0);
      switch (kind) {
        case PoolKind::Max:
          return in_rows ? max_of_rows(pool, first, out) : max_beside(pool, beside, first, out);
        case PoolKind::Average:
          return in_rows ? average_of_rows(pool, first, out) : average_beside(pool, beside, first, out);
        case PoolKind::AverageGrad:
          return in_rows ? average_grad_of_rows(pool, first, out) : average_grad_beside(pool, beside, first, out);
        case PoolKind::MaxGrad:
          break;
      }
      const T* x = launch.input<T>(1);
      if (x == out) x = static_cast<const T*>(std::memcpy(launch.scratch, x, bytes));
      in_rows ? max_grad_of_rows(pool, relu, first, x, out) : max_grad_beside(pool, beside, relu, first, x, out);
    };
  });
}

}  // namespace moonflow::cpu
