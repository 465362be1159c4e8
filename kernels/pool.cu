// Pooling on CUDA. Gradients are gathered, each element of dx from the windows that saw it, in the order of the
// windows, so no two threads write one place. The steps between elements are data, so images may lie in rows or with
// their channels last; in the latter a thread takes as many channels as fit one load of 16 bytes. What is narrow is
// computed in float32.
#include "kernels/cuda/image.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/pool.h"

namespace moonflow::cuda {
namespace {

struct Range {
  int64_t first, last;
  MOONFLOW_DEVICE int64_t size() const { return last - first; }
};

MOONFLOW_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
MOONFLOW_DEVICE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Windows along one axis. What they do not reach of the axis belongs to the nearest of them.
struct Sliding {
  int64_t in, size, stride, before, out;
  LongDivisor by_stride;

  explicit Sliding(const Window& window)
      : in(window.in),
        size(window.size),
        stride(window.stride),
        before(window.before),
        out(window.out),
        by_stride(window.stride) {}

  bool overlap() const { return size > stride; }
  MOONFLOW_DEVICE int64_t start(int64_t o) const { return o * stride - before; }
  MOONFLOW_DEVICE Range seen(int64_t o) const { return {larger(start(o), 0), smaller(start(o) + size, in)}; }
  // The outputs whose windows see input i.
  MOONFLOW_DEVICE Range seers(int64_t i) const {
    const int64_t past = i + before - size + stride;  // where the first of them starts, rounded up
    return {past < 0 ? 0 : by_stride.quotient(past), smaller(by_stride.quotient(i + before) + 1, out)};
  }
  // Where windows do not overlap: what output o alone writes, so that all of the axis is somebody's.
  MOONFLOW_DEVICE Range owned(int64_t o) const {
    return {o == 0 ? 0 : start(o), o == out - 1 ? in : start(o + 1)};
  }
};

struct Pooling {
  Image image, out;
  Sliding rows, columns;

  Pooling(const Pool& pool, const Layout& layout, int neighbours)
      : image(pool.image, pool.format.channels_last || is_channels_last(layout), neighbours),
        out(pool.out, image.channels_last, neighbours),
        rows(pool.windows[0]),
        columns(pool.windows[1]) {}
  bool overlap() const { return rows.overlap() || columns.overlap(); }
  // The number of place (y, x) within window (of.y, of.x).
  MOONFLOW_DEVICE int64_t number(const Place& of, int64_t y, int64_t x) const {
    return (y - rows.start(of.y)) * columns.size + (x - columns.start(of.x));
  }
};

// Calls body(y, x, pack) for what a window sees, row by row, with the loads of some neighbours under way together.
template <class T, int N, class Body>
MOONFLOW_DEVICE void each_seen(const Pooling& pool, const T* data, const Place& of, const Body& body) {
  constexpr int kAtATime = 4;
  const int64_t plane = pool.image.plane(of);
  const Range rows = pool.rows.seen(of.y), columns = pool.columns.seen(of.x);
  for (int64_t y = rows.first; y < rows.last; ++y) {
    for (int64_t x = columns.first; x < columns.last; x += kAtATime) {
      Pack<T, N> packs[kAtATime];
      MOONFLOW_UNROLL
      for (int i = 0; i < kAtATime; ++i)
        if (x + i < columns.last) packs[i] = pack_at<T, N>(data, pool.image.at(plane, y, x + i));
      MOONFLOW_UNROLL
      for (int i = 0; i < kAtATime; ++i)
        if (x + i < columns.last) body(y, x + i, packs[i]);
    }
  }
}

// The first maximum of a window in row-major order, and its number in the window, for each channel of a pack.
template <class T, int N>
struct Maxima {
  Computed<T> values[N];
  int64_t numbers[N];

  MOONFLOW_DEVICE Maxima(const Pooling& pool, const T* image, const Place& of) {
    const int64_t first = pool.number(of, pool.rows.seen(of.y).first, pool.columns.seen(of.x).first);
    each_seen<T, N>(pool, image, of, [&](int64_t y, int64_t x, const Pack<T, N>& pack) {
      const int64_t number = pool.number(of, y, x);
      MOONFLOW_UNROLL
      for (int v = 0; v < N; ++v) {
        const Computed<T> value = Computed<T>(pack.values[v]);
        if (number != first && !gives_way(values[v], value)) continue;
        values[v] = value;
        numbers[v] = number;
      }
    });
  }
};

template <class T, int N>
struct MaxPool {
  Pooling pool;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    Pack<T, N> largest{};
    const Place of = pool.out.place_of(o);
    bool first = true;
    each_seen<T, N>(pool, x, of, [&](int64_t, int64_t, const Pack<T, N>& pack) {
      MOONFLOW_UNROLL
      for (int v = 0; v < N; ++v)
        if (first || gives_way(Computed<T>(largest.values[v]), Computed<T>(pack.values[v])))
          largest.values[v] = pack.values[v];
      first = false;
    });
    reinterpret_cast<Pack<T, N>*>(out)[o] = largest;
  }
};

template <class T, int N>
struct AveragePool {
  Pooling pool;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    using Sum = std::conditional_t<kNarrow<T>, float, double>;
    const Place of = pool.out.place_of(o);
    Sum sums[N] = {};
    each_seen<T, N>(pool, x, of, [&](int64_t, int64_t, const Pack<T, N>& pack) {
      MOONFLOW_UNROLL
      for (int v = 0; v < N; ++v) sums[v] += Computed<T>(pack.values[v]);
    });
    const Sum count = static_cast<Sum>(pool.rows.seen(of.y).size() * pool.columns.seen(of.x).size());
    Pack<T, N> averages;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v) averages.values[v] = static_cast<T>(static_cast<Computed<T>>(sums[v] / count));
    reinterpret_cast<Pack<T, N>*>(out)[o] = averages;
  }
};

// Where windows do not overlap. A thread reads its window, and writes it and what lies between it and the next, so dx
// may lie over x.
template <class T, int N>
struct MaxPoolGradApart {
  Pooling pool;
  bool relu;
  const T *dy, *x;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const Place of = pool.out.place_of(o);
    const Maxima<T, N> maxima(pool, x, of);
    Pack<T, N> arriving = reinterpret_cast<const Pack<T, N>*>(dy)[o];
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v)
      if (relu && !(maxima.values[v] > 0)) arriving.values[v] = T(0);
    const int64_t plane = pool.image.plane(of);
    const Range rows = pool.rows.owned(of.y), columns = pool.columns.owned(of.x);
    const Range seen = pool.columns.seen(of.x);
    for (int64_t y = rows.first; y < rows.last; ++y) {
      for (int64_t c = columns.first; c < columns.last; ++c) {
        // Beside the window numbers mean other places.
        const int64_t number = c >= seen.first && c < seen.last ? pool.number(of, y, c) : -1;
        Pack<T, N> result;
        MOONFLOW_UNROLL
        for (int v = 0; v < N; ++v) result.values[v] = maxima.numbers[v] == number ? arriving.values[v] : T(0);
        *reinterpret_cast<Pack<T, N>*>(dx + pool.image.at(plane, y, c)) = result;
      }
    }
  }
};

// Where they overlap: first the number of the place in each window that its gradient goes to, then what comes to each
// element. All bits set: it goes nowhere.
template <class T, int N, class Number>
struct FindMaxima {
  Pooling pool;
  bool relu;
  const T* x;
  Number* numbers;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const Maxima<T, N> maxima(pool, x, pool.out.place_of(o));
    Pack<Number, N> result;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v)
      result.values[v] = static_cast<Number>(!relu || maxima.values[v] > 0 ? maxima.numbers[v] : -1);
    reinterpret_cast<Pack<Number, N>*>(numbers)[o] = result;
  }
};

template <class T, int N, class Number>
struct MaxPoolGrad {
  Pooling pool;
  const T* dy;
  const Number* numbers;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    constexpr int kAtATime = 2;
    const Place of = pool.image.place_of(i);
    const int64_t plane = pool.out.plane(of);
    const Range rows = pool.rows.seers(of.y), columns = pool.columns.seers(of.x);
    Computed<T> sums[N] = {};
    for (int64_t y = rows.first; y < rows.last; ++y) {
      for (int64_t c = columns.first; c < columns.last; c += kAtATime) {
        Pack<T, N> ds[kAtATime];
        Pack<Number, N> found[kAtATime];
        MOONFLOW_UNROLL
        for (int k = 0; k < kAtATime; ++k) {
          if (c + k >= columns.last) continue;
          const int64_t o = pool.out.at(plane, y, c + k);
          found[k] = pack_at<Number, N>(numbers, o);
          ds[k] = pack_at<T, N>(dy, o);
        }
        MOONFLOW_UNROLL
        for (int k = 0; k < kAtATime; ++k) {
          if (c + k >= columns.last) continue;
          const Number number = static_cast<Number>(pool.number({0, 0, y, c + k}, of.y, of.x));
          MOONFLOW_UNROLL
          for (int v = 0; v < N; ++v)
            if (found[k].values[v] == number) sums[v] += Computed<T>(ds[k].values[v]);
        }
      }
    }
    Pack<T, N> result;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v) result.values[v] = static_cast<T>(sums[v]);
    reinterpret_cast<Pack<T, N>*>(dx)[i] = result;
  }
};

template <class T, int N>
struct AveragePoolGrad {
  Pooling pool;
  const T* dy;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const Place of = pool.image.place_of(i);
    const int64_t plane = pool.out.plane(of);
    const Range rows = pool.rows.seers(of.y), columns = pool.columns.seers(of.x);
    Computed<T> sums[N] = {};
    for (int64_t y = rows.first; y < rows.last; ++y) {
      const auto height = static_cast<Computed<T>>(pool.rows.seen(y).size());
      for (int64_t c = columns.first; c < columns.last; ++c) {
        const Pack<T, N> ds = pack_at<T, N>(dy, pool.out.at(plane, y, c));
        const Computed<T> share = 1 / (height * static_cast<Computed<T>>(pool.columns.seen(c).size()));
        MOONFLOW_UNROLL
        for (int v = 0; v < N; ++v) sums[v] += Computed<T>(ds.values[v]) * share;
      }
    }
    Pack<T, N> result;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v) result.values[v] = static_cast<T>(sums[v]);
    reinterpret_cast<Pack<T, N>*>(dx)[i] = result;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class T>
using PoolingWays = Ways<T, Pooling>;

template <template <class, int> class F>
Launch prepare_forward(KernelCall& call) {
  const Pool pool = pool_of(call.attrs, call.inputs[0].shape);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [ways = PoolingWays<T>(pool, call.input_layouts[0])](const LaunchCall& at) {
      const T* x = at.input<T>(0);
      T* const out = at.output<T>(0);
      ways.choose({x, out}, [&](const Pooling& pool, auto n) {
        for_each(at.stream, pool.out.count, F<T, decltype(n)::value>{pool, x, out});
      });
    };
  });
}

template <class T, class Number>
Launch max_grad_with_numbers(const PoolingWays<T>& ways, bool relu, KernelCall& call) {
  call.scratch_bytes = checked_product(ways.single.out.count, sizeof(Number));
  return [=](const LaunchCall& at) {
    const T *dy = at.input<T>(0), *x = at.input<T>(1);
    T* const dx = at.output<T>(0);
    Number* const numbers = static_cast<Number*>(at.scratch);
    ways.choose({dy, x, dx}, [&](const Pooling& pool, auto n) {
      constexpr int kN = decltype(n)::value;
      for_each(at.stream, pool.out.count, FindMaxima<T, kN, Number>{pool, relu, x, numbers});
      for_each(at.stream, pool.image.count, MaxPoolGrad<T, kN, Number>{pool, dy, numbers, dx});
    });
  };
}

Launch prepare_max_grad(KernelCall& call) {
  const Pool pool = pool_of(call.attrs, call.inputs[1].shape);
  const bool relu = call.attrs.flag("relu");
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const PoolingWays<T> ways(pool, call.input_layouts[1]);
    if (ways.single.overlap() || ways.single.out.count == 0) {
      const bool small = pool.windows[0].size <= 15 && pool.windows[1].size <= 15;  // numbers below 225
      return small ? max_grad_with_numbers<T, uint8_t>(ways, relu, call)
                   : max_grad_with_numbers<T, int64_t>(ways, relu, call);
    }
    return [=](const LaunchCall& at) {
      const T *dy = at.input<T>(0), *x = at.input<T>(1);
      T* const dx = at.output<T>(0);
      ways.choose({dy, x, dx}, [&](const Pooling& pool, auto n) {
        for_each(at.stream, pool.out.count, MaxPoolGradApart<T, decltype(n)::value>{pool, relu, dy, x, dx});
      });
    };
  });
}

Launch prepare_average_grad(KernelCall& call) {
  const Pool pool = pool_of(call.attrs, call.outputs[0].shape);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [ways = PoolingWays<T>(pool, call.input_layouts[0])](const LaunchCall& at) {
      const T* dy = at.input<T>(0);
      T* const dx = at.output<T>(0);
      ways.choose({dy, dx}, [&](const Pooling& pool, auto n) {
        for_each(at.stream, pool.image.count, AveragePoolGrad<T, decltype(n)::value>{pool, dy, dx});
      });
    };
  });
}

CudaKernel kernel(Launch (*prepare)(KernelCall&), int image) {
  return {{prepare, [image](LayoutCall& call) { lie_alike(call, image); }}, true};
}

}  // namespace

void add_pool(Kernels& kernels) {
  kernels["max_pool2d"] = kernel(prepare_forward<MaxPool>, 0);
  kernels["avg_pool2d"] = kernel(prepare_forward<AveragePool>, 0);
  kernels["max_pool2d_grad"] = kernel(prepare_max_grad, 1);
  kernels["avg_pool2d_grad"] = kernel(prepare_average_grad, 0);
}

}  // namespace moonflow::cuda
