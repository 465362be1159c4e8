// grid_sample and its gradients on CUDA. A thread takes one place of a result; what several places bring to a pixel is
// summed in their order, so that no two runs differ.
#include "kernels/grid_sample.h"

#include <algorithm>

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/units.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct Sizes {
  GridAxis<T> rows, columns;
  LongDivisor by_places, by_channels;  // by 1 where there are none
  int64_t places, channels, plane, width;

  explicit Sizes(const GridSampling& of)
      : rows(of, of.height),
        columns(of, of.width),
        by_places(of.places()),
        by_channels(of.channels),
        places(of.places()),
        channels(of.channels),
        plane(of.plane()),
        width(of.width) {}

  // What an element of the result is made of: pixels of a plane of x.
  template <int kSide>
  struct Around {
    int64_t plane;
    AxisTaps<T, kSide> row, column;
  };
  template <int kSide>
  MOONFLOW_DEVICE Around<kSide> around(int64_t element, const T* grid) const {
    int64_t place = 0, channel = 0;
    const int64_t plane = by_places.quotient(element, place), picture = by_channels.quotient(plane, channel);
    const T* const at = grid + 2 * (picture * places + place);
    return {plane, rows.template taps<kSide>(at[1]), columns.template taps<kSide>(at[0])};
  }
};

// The sum of the pixels of an image that count, each by product(row, column).
template <int kSide, class C, class T, class Product>
MOONFLOW_DEVICE C sum_of_taps(const AxisTaps<C, kSide>& row, const AxisTaps<C, kSide>& column, const T* image,
                              int64_t width, const Product& product) {
  C sum = 0;
  for (int r = 0; r < kSide; ++r) {
    for (int c = 0; c < kSide; ++c) {
      const C share = product(r, c);
      if (share != 0) sum += share * static_cast<C>(image[row.pixel[r] * width + column.pixel[c]]);
    }
  }
  return sum;
}

template <class T, int kSide>
struct Sample {
  using C = Computed<T>;
  Sizes<C> of;
  const T* x;
  const C* grid;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    const auto at = of.template around<kSide>(element, grid);
    out[element] =
        static_cast<T>(sum_of_taps<kSide>(at.row, at.column, x + at.plane * of.plane, of.width,
                                          [&](int r, int c) { return at.row.share[r] * at.column.share[c]; }));
  }
};

// The nearest pixels of any dtype, units of its size.
template <class Unit, class G>
struct Pick {
  Sizes<G> of;
  const Unit* x;
  const G* grid;
  Unit* out;
  MOONFLOW_DEVICE void operator()(int64_t element) const {
    const auto at = of.template around<1>(element, grid);
    const bool is_there = at.row.share[0] * at.column.share[0] == 1;
    out[element] = is_there ? x[at.plane * of.plane + at.row.pixel[0] * of.width + at.column.pixel[0]] : Unit(0);
  }
};

template <class T, int kSide>
struct Slopes {
  using C = Computed<T>;
  Sizes<C> of;
  const T* x;
  const C* grid;
  const T* dy;
  C* dgrid;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    int64_t place = 0;
    const int64_t picture = of.by_places.quotient(i, place);
    const auto column = of.columns.template taps<kSide>(grid[2 * i]),
               row = of.rows.template taps<kSide>(grid[2 * i + 1]);
    C by_column = 0, by_row = 0;
    for (int64_t c = 0; c < of.channels; ++c) {
      const int64_t plane = picture * of.channels + c;
      const T* const image = x + plane * of.plane;
      const C given = static_cast<C>(dy[plane * of.places + place]);
      by_column += given * sum_of_taps<kSide>(row, column, image, of.width,
                                              [&](int r, int s) { return row.share[r] * column.slope[s]; });
      by_row += given * sum_of_taps<kSide>(row, column, image, of.width,
                                           [&](int r, int s) { return row.slope[r] * column.share[s]; });
    }
    dgrid[2 * i] = by_column;
    dgrid[2 * i + 1] = by_row;
  }
};

// A block has some pixels of a plane, of which each thread has every 256th. It goes through all places, a few at a
// time: each thread finds one of the pixels that one of them is made of, and then takes from all that were found its
// own.
template <class T, int kSide>
struct Spread {
  static constexpr int kThreads = 256, kTaps = kSide * kSide, kPlaces = kThreads / kTaps;
  static constexpr int kRoom = 2048;  // pixels of a block
  using C = Computed<T>;
  Sizes<C> of;
  int64_t groups;  // blocks of a plane
  const C* grid;
  const T* dy;
  T* dx;

  static constexpr int64_t kShared = (kRoom + kThreads) * sizeof(C) + (kThreads + kThreads / kWarp) * sizeof(int);

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    C* const own = block.template shared<C>();
    C* const brought = own + kRoom;
    int* const pixels = reinterpret_cast<int*>(brought + kThreads);  // of the block; -1: of another one
    int* const found_by_warps = pixels + kThreads;

    const int thread = block.thread(), tap = thread % kTaps, warp = thread / kWarp;
    const int64_t plane = block.index() / groups, first = block.index() % groups * kRoom;
    int64_t channel = 0;
    const int64_t picture = of.by_channels.quotient(plane, channel), places = of.places;
    for (int i = thread; i < kRoom; i += kThreads) own[i] = 0;
    for (int64_t begin = 0; begin < places; begin += kPlaces) {
      const int64_t place = begin + thread / kTaps;
      pixels[thread] = -1;
      if (place < places) {
        const C* const at = grid + 2 * (picture * places + place);
        const Part column = part(of.columns, at[0], tap % kSide), row = part(of.rows, at[1], tap / kSide);
        const int64_t pixel = row.pixel * of.width + column.pixel;
        const C share = row.share * column.share;
        if (share != 0 && pixel >= first && pixel < first + kRoom) {
          pixels[thread] = static_cast<int>(pixel - first);
          brought[thread] = share * static_cast<C>(dy[plane * places + place]);
        }
      }
      const unsigned found = block.ballot(pixels[thread] >= 0);
      if (thread % kWarp == 0) found_by_warps[warp] = found != 0;
      block.sync();
      for (int w = 0; w < kThreads / kWarp; ++w) {
        if (!found_by_warps[w]) continue;
        for (int i = w * kWarp; i < (w + 1) * kWarp; ++i)
          if (pixels[i] >= 0 && pixels[i] % kThreads == thread) own[pixels[i]] += brought[i];
      }
      block.sync();  // before the next ones are found
    }
    T* const to = dx + plane * of.plane + first;
    for (int i = thread; i < kRoom && first + i < of.plane; i += kThreads) to[i] = static_cast<T>(own[i]);
  }

 private:
  struct Part {
    int32_t pixel;
    C share;
  };
  static MOONFLOW_DEVICE Part part(const GridAxis<C>& axis, C g, int which) {
    const AxisTaps<C, kSide> taps = axis.template taps<kSide>(g);
    Part part{};
    MOONFLOW_UNROLL
    for (int k = 0; k < kSide; ++k)
      if (k == which) part = {taps.pixel[k], taps.share[k]};
    return part;
  }
};

Launch prepare(KernelCall& call) {
  const GridSampling of = grid_sampling(call.attrs, call.inputs[0].shape, call.inputs[1].shape);
  const DType dtype = call.inputs[0].dtype;
  const int64_t count = call.outputs[0].count();
  if (count == 0) return [](const LaunchCall&) {};
  if (!is_floating(dtype) && !is_narrow(dtype)) {
    return visit_element(size_of(dtype), [&](auto unit) {
      return visit_floating(call.inputs[1].dtype, [&](auto g) -> Launch {
        using Unit = decltype(unit);
        using G = decltype(g);
        return [=](const LaunchCall& at) {
          for_each(at.stream, count,
                   Pick<Unit, G>{Sizes<G>(of), at.input<Unit>(0), at.input<G>(1), at.output<Unit>(0)});
        };
      });
    });
  }
  return visit_fractions(dtype, [&](auto zero) {
    return visit_taps(of.mode, [&](auto side) -> Launch {
      using T = decltype(zero);
      using C = Computed<T>;
      return [=](const LaunchCall& at) {
        for_each(at.stream, count, Sample<T, side()>{Sizes<C>(of), at.input<T>(0), at.input<C>(1), at.output<T>(0)});
      };
    });
  });
}

Launch prepare_image_grad(KernelCall& call) {
  const GridSampling of = grid_sampling(call.attrs, call.outputs[0].shape, call.inputs[0].shape);
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};
  return visit_fractions(call.inputs[1].dtype, [&](auto zero) {
    return visit_taps(of.mode, [&](auto side) -> Launch {
      using T = decltype(zero);
      using C = Computed<T>;
      using Kernel = Spread<T, side()>;
      const int64_t groups = (of.plane() + Kernel::kRoom - 1) / Kernel::kRoom;
      return [=](const LaunchCall& at) {
        launch(at.stream, of.batch * of.channels * groups,
               Kernel{Sizes<C>(of), groups, at.input<C>(0), at.input<T>(1), at.output<T>(0)}, Kernel::kShared);
      };
    });
  });
}

Launch prepare_grid_grad(KernelCall& call) {
  const GridSampling of = grid_sampling(call.attrs, call.inputs[0].shape, call.inputs[1].shape);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) {
    return visit_taps(of.mode, [&](auto side) -> Launch {
      using T = decltype(zero);
      using C = Computed<T>;
      return [=](const LaunchCall& at) {
        for_each(at.stream, of.batch * of.places(),
                 Slopes<T, side()>{Sizes<C>(of), at.input<T>(0), at.input<C>(1), at.input<T>(2), at.output<C>(0)});
      };
    });
  });
}

}  // namespace

void add_grid_sample(Kernels& kernels) {
  kernels["grid_sample"] = {{prepare}, true};
  kernels["grid_sample_image_grad"] = {{prepare_image_grad}, true};
  kernels["grid_sample_grid_grad"] = {{prepare_grid_grad}, true};
}

}  // namespace moonflow::cuda
