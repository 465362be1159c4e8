// Pooling on CUDA. Gradients are gathered, each element of dx from the windows that saw it, in the order of the
// windows, so no two threads write one place. The steps between elements are data, so images may lie in rows or with
// their channels last.
#include <cmath>

#include "kernels/cuda/channels.h"
#include "kernels/cuda/kernels.h"
#include "kernels/pool.h"

namespace moonflow::cuda {
namespace {

struct Place {
  int64_t batch, channel, y, x;
};

// An image in memory, its elements numbered as they lie there.
struct Image {
  bool channels_last;
  LongDivisor channels, height, width;
  int64_t count, batch_step, channel_step, row_step, column_step;

  Image(const ImageSize& size, bool channels_last)
      : channels_last(channels_last),
        channels(size.channels),
        height(size.height),
        width(size.width),
        count(size.batch * size.channels * size.height * size.width),
        batch_step(size.channels * size.height * size.width),
        channel_step(channels_last ? 1 : size.height * size.width),
        row_step(channels_last ? size.width * size.channels : size.width),
        column_step(channels_last ? size.channels : 1) {}

  MOONFLOW_DEVICE Place place_of(int64_t element) const {
    Place place;
    if (channels_last) element = channels.quotient(element, place.channel);
    element = width.quotient(element, place.x);
    element = height.quotient(element, place.y);
    if (!channels_last) element = channels.quotient(element, place.channel);
    place.batch = element;
    return place;
  }
  MOONFLOW_DEVICE int64_t plane(const Place& place) const {
    return place.batch * batch_step + place.channel * channel_step;
  }
  MOONFLOW_DEVICE int64_t at(int64_t plane, int64_t y, int64_t x) const {
    return plane + y * row_step + x * column_step;
  }
};

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
  MOONFLOW_DEVICE Range seen(int64_t o) const {
    const int64_t start = o * stride - before;
    return {larger(start, 0), smaller(start + size, in)};
  }
  // The outputs whose windows see input i.
  MOONFLOW_DEVICE Range seers(int64_t i) const {
    const int64_t past = i + before - size + stride;  // where the first of them starts, rounded up
    return {past < 0 ? 0 : by_stride.quotient(past), smaller(by_stride.quotient(i + before) + 1, out)};
  }
  // Where windows do not overlap: what output o alone writes, so that all of the axis is somebody's.
  MOONFLOW_DEVICE Range owned(int64_t o) const {
    return {o == 0 ? 0 : o * stride - before, o == out - 1 ? in : (o + 1) * stride - before};
  }
};

struct Pooling {
  Image image, out;
  Sliding rows, columns;

  Pooling(const Pool& pool, const Layout& layout)
      : image(pool.image, pool.format.channels_last || is_channels_last(layout)),
        out(pool.out, image.channels_last),
        rows(pool.windows[0]),
        columns(pool.windows[1]) {}
  bool overlap() const { return rows.overlap() || columns.overlap(); }
};

// The offset of the first maximum of window (y, x) in row-major order.
template <class T>
MOONFLOW_DEVICE int64_t first_maximum(const Pooling& pool, const T* image, const Place& of) {
  const int64_t plane = pool.image.plane(of);
  const Range rows = pool.rows.seen(of.y), columns = pool.columns.seen(of.x);
  int64_t best = pool.image.at(plane, rows.first, columns.first);
  T largest = image[best];
  for (int64_t y = rows.first; y < rows.last; ++y) {
    for (int64_t x = columns.first; x < columns.last; ++x) {
      const int64_t at = pool.image.at(plane, y, x);
      if (!(image[at] > largest)) continue;
      best = at;
      largest = image[at];
    }
  }
  return best;
}

template <class T>
struct MaxPool {
  Pooling pool;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t o) const { out[o] = x[first_maximum(pool, x, pool.out.place_of(o))]; }
};

template <class T>
struct AveragePool {
  Pooling pool;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const Place of = pool.out.place_of(o);
    const int64_t plane = pool.image.plane(of);
    const Range rows = pool.rows.seen(of.y), columns = pool.columns.seen(of.x);
    double sum = 0;
    for (int64_t y = rows.first; y < rows.last; ++y)
      for (int64_t c = columns.first; c < columns.last; ++c) sum += x[pool.image.at(plane, y, c)];
    out[o] = static_cast<T>(sum / (rows.size() * columns.size()));
  }
};

// Where windows do not overlap. A thread reads its window, and writes it and what lies between it and the next, so dx
// may lie over x.
template <class T>
struct MaxPoolGradApart {
  Pooling pool;
  bool relu;
  const T *dy, *x;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const Place of = pool.out.place_of(o);
    const int64_t plane = pool.image.plane(of), best = first_maximum(pool, x, of);
    const T arriving = !relu || x[best] > 0 ? dy[o] : T(0);
    const Range rows = pool.rows.owned(of.y), columns = pool.columns.owned(of.x);
    for (int64_t y = rows.first; y < rows.last; ++y) {
      for (int64_t c = columns.first; c < columns.last; ++c) {
        const int64_t at = pool.image.at(plane, y, c);
        dx[at] = at == best ? arriving : T(0);
      }
    }
  }
};

// Where they overlap: first where each window's gradient goes, -1 for nowhere, then what comes to each element.
template <class T>
struct FindMaxima {
  Pooling pool;
  bool relu;
  const T* x;
  int64_t* places;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const int64_t best = first_maximum(pool, x, pool.out.place_of(o));
    places[o] = !relu || x[best] > 0 ? best : -1;
  }
};

template <class T>
struct MaxPoolGrad {
  Pooling pool;
  const T* dy;
  const int64_t* places;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const Place of = pool.image.place_of(i);
    const int64_t plane = pool.out.plane(of);
    const Range rows = pool.rows.seers(of.y), columns = pool.columns.seers(of.x);
    T sum = 0;
    for (int64_t y = rows.first; y < rows.last; ++y) {
      for (int64_t c = columns.first; c < columns.last; ++c) {
        const int64_t o = pool.out.at(plane, y, c);
        if (places[o] == i) sum += dy[o];
      }
    }
    dx[i] = sum;
  }
};

template <class T>
struct AveragePoolGrad {
  Pooling pool;
  const T* dy;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const Place of = pool.image.place_of(i);
    const int64_t plane = pool.out.plane(of);
    const Range rows = pool.rows.seers(of.y), columns = pool.columns.seers(of.x);
    T sum = 0;
    for (int64_t y = rows.first; y < rows.last; ++y) {
      for (int64_t c = columns.first; c < columns.last; ++c)
        sum += dy[pool.out.at(plane, y, c)] / static_cast<T>(pool.rows.seen(y).size() * pool.columns.seen(c).size());
    }
    dx[i] = sum;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <template <class> class F>
Launch prepare_forward(KernelCall& call) {
  const Pooling pool(pool_of(call.attrs, call.inputs[0].shape), call.input_layouts[0]);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [pool](const LaunchCall& at) {
      for_each(at.stream, pool.out.count, F<T>{pool, at.input<T>(0), at.output<T>(0)});
    };
  });
}

Launch prepare_max_grad(KernelCall& call) {
  const Pooling pool(pool_of(call.attrs, call.inputs[1].shape), call.input_layouts[1]);
  const bool relu = call.attrs.flag("relu"), has_windows = pool.out.count > 0;
  const bool apart = !pool.overlap() && has_windows;
  if (!apart) call.scratch_bytes = checked_product(pool.out.count, sizeof(int64_t));
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const T *dy = at.input<T>(0), *x = at.input<T>(1);
      T* const dx = at.output<T>(0);
      if (apart) return for_each(at.stream, pool.out.count, MaxPoolGradApart<T>{pool, relu, dy, x, dx});
      int64_t* const places = static_cast<int64_t*>(at.scratch);
      for_each(at.stream, pool.out.count, FindMaxima<T>{pool, relu, x, places});
      for_each(at.stream, pool.image.count, MaxPoolGrad<T>{pool, dy, places, dx});
    };
  });
}

Launch prepare_average_grad(KernelCall& call) {
  const Pooling pool(pool_of(call.attrs, call.outputs[0].shape), call.input_layouts[0]);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [pool](const LaunchCall& at) {
      for_each(at.stream, pool.image.count, AveragePoolGrad<T>{pool, at.input<T>(0), at.output<T>(0)});
    };
  });
}

// All values of a pooling lie as `image` does, in rows or, where that is not the order of the shape, channels last.
CudaKernel kernel(Launch (*prepare)(KernelCall&), int image) {
  const auto layouts = [image](LayoutCall& call) {
    const bool last = is_channels_last(call.inputs[image]) && call.attrs.string("data_format") == "NCHW";
    for (size_t i = 0; i < call.inputs.size(); ++i)
      call.inputs[i] = last ? channels_last(call.input_types[i]) : Layout{};
    call.outputs[0] = last ? channels_last(call.output_types[0]) : Layout{};
  };
  return {{prepare, layouts}};
}

}  // namespace

void add_pool(Kernels& kernels) {
  kernels["max_pool2d"] = kernel(prepare_forward<MaxPool>, 0);
  kernels["avg_pool2d"] = kernel(prepare_forward<AveragePool>, 0);
  kernels["max_pool2d_grad"] = kernel(prepare_max_grad, 1);
  kernels["avg_pool2d_grad"] = kernel(prepare_average_grad, 0);
}

}  // namespace moonflow::cuda
