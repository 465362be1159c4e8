// Resampled images on CUDA: a thread makes one place of the result, or a pack of its channels, out of those it comes
// from. Moving and mixing go through the same numbers as on the CPU.
#include "kernels/resample.h"

#include "kernels/cuda/image.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"

namespace moonflow::cuda {
namespace {

struct Resampled {
  Image image, out;
  AxisMap<LongDivisor> rows, columns;

  Resampled(const Resampling& sizes, const Layout& layout, int neighbours)
      : image(sizes.image, sizes.format.channels_last || is_channels_last(layout), neighbours),
        out(sizes.out, image.channels_last, neighbours),
        rows(sizes.rows),
        columns(sizes.columns) {}
};

// One place each.
template <class T, int N>
struct Pick {
  Resampled over;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const Place of = over.out.place_of(o);
    const int64_t at = over.image.at(over.image.plane(of), over.rows.mixture(of.y).low, over.columns.mixture(of.x).low);
    reinterpret_cast<Pack<T, N>*>(out)[o] = pack_at<T, N>(x, at);
  }
};

// Four places each.
template <class T, int N>
struct Blend {
  using C = Computed<T>;
  Resampled over;
  const T* x;
  T* out;
  MOONFLOW_DEVICE void operator()(int64_t o) const {
    const Place of = over.out.place_of(o);
    const int64_t plane = over.image.plane(of);
    const Mixture row = over.rows.mixture(of.y), column = over.columns.mixture(of.x);
    const Pack<T, N> low_left = pack_at<T, N>(x, over.image.at(plane, row.low, column.low));
    const Pack<T, N> low_right = pack_at<T, N>(x, over.image.at(plane, row.low, column.high));
    const Pack<T, N> high_left = pack_at<T, N>(x, over.image.at(plane, row.high, column.low));
    const Pack<T, N> high_right = pack_at<T, N>(x, over.image.at(plane, row.high, column.high));
    const C down = row.share<C>(), across = column.share<C>();
    Pack<T, N> result;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v) {
      const C above = between(C(low_left.values[v]), C(low_right.values[v]), across);
      const C below = between(C(high_left.values[v]), C(high_right.values[v]), across);
      result.values[v] = static_cast<T>(between(above, below, down));
    }
    reinterpret_cast<Pack<T, N>*>(out)[o] = result;
  }
  static MOONFLOW_DEVICE C between(C a, C b, C share) { return a + share * (b - a); }
};

template <class T, int N>
struct Gather {
  using C = Computed<T>;
  Resampled over;
  const T* dy;
  T* dx;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const Place of = over.image.place_of(i);
    const int64_t plane = over.out.plane(of);
    const Readers rows = over.rows.readers(of.y), columns = over.columns.readers(of.x);
    C sums[N] = {};
    for (int64_t y = rows.first; y < rows.past; y = rows.after(y)) {
      const C down = over.rows.mixture(y).weight<C>(of.y);
      for (int64_t c = columns.first; c < columns.past; c = columns.after(c)) {
        const C weight = down * over.columns.mixture(c).weight<C>(of.x);
        const Pack<T, N> ds = pack_at<T, N>(dy, over.out.at(plane, y, c));
        MOONFLOW_UNROLL
        for (int v = 0; v < N; ++v) sums[v] += weight * C(ds.values[v]);
      }
    }
    Pack<T, N> result;
    MOONFLOW_UNROLL
    for (int v = 0; v < N; ++v) result.values[v] = static_cast<T>(sums[v]);
    reinterpret_cast<Pack<T, N>*>(dx)[i] = result;
  }
};

using SizesOf = Resampling (*)(const Attrs& attrs, const Shape& x);

template <SizesOf kSizesOf>
Launch prepare(KernelCall& call) {
  const Resampling sizes = kSizesOf(call.attrs, call.inputs[0].shape);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    const bool blends = sizes.rows.kind == ResampledAxis::Blend;
    return [=, ways = Ways<T, Resampled>(sizes, call.input_layouts[0])](const LaunchCall& at) {
      const T* const x = at.input<T>(0);
      T* const out = at.output<T>(0);
      ways.choose({x, out}, [&](const Resampled& over, auto n) {
        constexpr int kN = decltype(n)::value;
        if (blends)
          for_each(at.stream, over.out.count, Blend<T, kN>{over, x, out});
        else
          for_each(at.stream, over.out.count, Pick<T, kN>{over, x, out});
      });
    };
  });
}

template <SizesOf kSizesOf>
Launch prepare_grad(KernelCall& call) {
  const Resampling sizes = kSizesOf(call.attrs, call.outputs[0].shape);
  return visit_fractions(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [ways = Ways<T, Resampled>(sizes, call.input_layouts[0])](const LaunchCall& at) {
      const T* const dy = at.input<T>(0);
      T* const dx = at.output<T>(0);
      ways.choose({dy, dx}, [&](const Resampled& over, auto n) {
        for_each(at.stream, over.image.count, Gather<T, decltype(n)::value>{over, dy, dx});
      });
    };
  });
}

CudaKernel kernel(Launch (*prepare)(KernelCall&)) {
  return {{prepare, [](LayoutCall& call) { lie_alike(call, 0); }}, true};
}

}  // namespace

void add_resample(Kernels& kernels) {
  kernels["upsample_2d"] = kernel(prepare<upsampling_of>);
  kernels["upsample_2d_grad"] = kernel(prepare_grad<upsampling_of>);
  kernels["reflection_pad2d"] = kernel(prepare<reflection_of>);
  kernels["reflection_pad2d_grad"] = kernel(prepare_grad<reflection_of>);
}

}  // namespace moonflow::cuda
