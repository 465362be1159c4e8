// Images taken at the places of a grid, between pixels and beyond the border.
#pragma once

#include <cmath>
#include <cstdint>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow {

struct GridSampling {
  enum Mode { Nearest, Bilinear, Bicubic };
  enum Padding { Zeros, Border, Reflection };
  Mode mode = Bilinear;
  Padding padding = Zeros;
  bool align_corners = false;
  int64_t batch = 0, channels = 0, height = 0, width = 0;
  int64_t rows = 0, columns = 0;  // of the grid

  int64_t plane() const { return height * width; }
  int64_t places() const { return rows * columns; }
};

// The checked sampling of an op with these attributes.
GridSampling grid_sampling(const Attrs& attrs, const Shape& x, const Shape& grid);

// The pixels of one axis around a place, the share of each, and by how much it grows as the grid does. What counts for
// nothing is some pixel of the axis with a share of 0; its NaN is to be left out.
template <class T, int kCount>
struct AxisTaps {
  int32_t pixel[kCount];
  T share[kCount], slope[kCount];
};

// From a number of the grid to pixels, along one axis.
template <class T>
struct GridAxis {
  int32_t size;
  GridSampling::Padding padding;
  bool align_corners;
  T half, middle;  // a number g of the grid lies at pixel half * g + middle

  GridAxis(const GridSampling& of, int64_t size)
      : size(static_cast<int32_t>(size)),
        padding(of.padding),
        align_corners(of.align_corners),
        half(static_cast<T>(of.align_corners ? size - 1 : size) / 2),
        middle(static_cast<T>(size - 1) / 2) {}

  // 1, 2 or 4 pixels: the nearest, of two the even one; those on both sides, or two on each, with the weights of Keys
  // for -0.75. A NaN has shares that are NaN.
  template <int kCount>
  MOONFLOW_BOTH AxisTaps<T, kCount> taps(T g) const {
    return taps<kCount>(g, padding);
  }
  // Of a loop whose padding is known to the compiler.
  template <int kCount>
  MOONFLOW_BOTH AxisTaps<T, kCount> taps(T g, GridSampling::Padding padding) const {
    AxisTaps<T, kCount> taps;
    const T at = near(half * g + middle, padding);
    const T low = kCount == 1 ? rint(at) : floor(at), part = at - low;
    shares(taps, part);
    const int32_t first = (low == low ? static_cast<int32_t>(low) : 0) - (kCount == 4);
    for (int k = 0; k < kCount; ++k) {
      const int32_t place = padding == GridSampling::Reflection ? reflected(first + k) : first + k;
      const int32_t inside = place < 0 ? 0 : place < size ? place : size - 1;
      const bool counts = padding != GridSampling::Zeros || inside == place;
      taps.pixel[k] = inside;
      taps.share[k] = counts ? taps.share[k] : T(0);
      taps.slope[k] = counts ? taps.slope[k] * half : T(0);
    }
    return taps;
  }

 private:
  // A place in reach of 32 bits that has the same pixels around it.
  MOONFLOW_BOTH T near(T at, GridSampling::Padding padding) const {
    if (padding == GridSampling::Reflection) {
      const T period = static_cast<T>(align_corners ? size > 1 ? 2 * (size - 1) : 1 : 2 * size);
      return fabs(at) < T(1 << 24) ? at : fmod(at, period);
    }
    const T first = -4, last = static_cast<T>(size) + 3;
    return at < first ? first : at > last ? last : at;
  }

  // There and back again: between the outermost pixels, or their edges, which repeats those.
  MOONFLOW_BOTH int32_t reflected(int32_t place) const {
    if (align_corners) {
      if (size == 1) return 0;
      const int32_t last = size - 1, phase = (place < 0 ? -place : place) % (2 * last);
      return phase <= last ? phase : 2 * last - phase;
    }
    const int32_t off = place < 0 ? -1 - place : place, phase = off % (2 * size);
    return phase < size ? phase : 2 * size - 1 - phase;
  }

  static MOONFLOW_BOTH void shares(AxisTaps<T, 1>& taps, T part) {
    taps.share[0] = part == part ? T(1) : part;
    taps.slope[0] = 0;
  }
  static MOONFLOW_BOTH void shares(AxisTaps<T, 2>& taps, T part) {
    taps.share[0] = 1 - part;
    taps.share[1] = part;
    taps.slope[0] = -1;
    taps.slope[1] = 1;
  }
  static MOONFLOW_BOTH void shares(AxisTaps<T, 4>& taps, T part) {
    const T a = T(-0.75), rest = 1 - part;
    // Up to 1 off: (a + 2) d^3 - (a + 3) d^2 + 1; up to 2: a d^3 - 5 a d^2 + 8 a d - 4 a.
    const auto near = [&](T d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto near_slope = [&](T d) { return (3 * (a + 2) * d - 2 * (a + 3)) * d; };
    const auto far = [&](T d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    const auto far_slope = [&](T d) { return (3 * a * d - 10 * a) * d + 8 * a; };
    taps.share[0] = far(1 + part);
    taps.share[1] = near(part);
    taps.share[2] = near(rest);
    taps.share[3] = far(1 + rest);
    taps.slope[0] = far_slope(1 + part);
    taps.slope[1] = near_slope(part);
    taps.slope[2] = -near_slope(rest);
    taps.slope[3] = -far_slope(1 + rest);
  }
};

// Calls f(std::integral_constant<int, k>{}) for the k pixels along an axis that the mode takes.
template <class F>
decltype(auto) visit_taps(GridSampling::Mode mode, const F& f) {
  if (mode == GridSampling::Nearest) return f(std::integral_constant<int, 1>{});
  if (mode == GridSampling::Bilinear) return f(std::integral_constant<int, 2>{});
  return f(std::integral_constant<int, 4>{});
}

}  // namespace moonflow
