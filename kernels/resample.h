// Images made of other images place by place: each output is one place of the input, or a mixture of two neighbours,
// along each spatial axis by itself. Both directions are gathered, so no two threads write one place and every sum has
// one order.
#pragma once

#include "kernels/image.h"

namespace moonflow {

// How the places of one axis are found. All but Reflect are a stretch: output o lies at (slope * o + offset) / unit of
// the input, in whole numbers, so that every device takes the same places with the same shares.
struct ResampledAxis {
  enum Kind {
    Nearest,  // the input at or before that point
    Blend,    // the inputs on both sides of it, by their nearness; before the first and behind the last these alone
    Reflect,  // the input at o - before, mirrored at the first and the last place
  };
  Kind kind = Nearest;
  int64_t in = 1;
  int64_t out = 1;
  int64_t slope = 1;
  int64_t offset = 0;
  int64_t unit = 1;
  int64_t before = 0;
};

struct Resampling {
  ImageFormat format;
  ImageSize image;
  ImageSize out;
  ResampledAxis rows, columns;
};

// The checked sizes of upsample_2d and of reflection_pad2d for an image x.
Resampling upsampling_of(const Attrs& attrs, const Shape& x);
Resampling reflection_of(const Attrs& attrs, const Shape& x);

// What an output is made of: (1 - share) of `low` and share of `high`. Where only one counts they are the same.
struct Mixture {
  int64_t low, high;
  int64_t part, unit;  // share = part / unit

  template <class T>
  constexpr T share() const {
    return static_cast<T>(part) / static_cast<T>(unit);
  }
  // Of input i, which is one of the two.
  template <class T>
  constexpr T weight(int64_t i) const {
    return low == high ? T(1) : i == low ? T(1) - share<T>() : share<T>();
  }
};

// The outputs that an input is a part of, in rising order: for (o = first; o < past; o = after(o)).
struct Readers {
  int64_t first, past;
  bool apart;  // of a reflection: one on each side and itself
  int64_t itself, mirrored;

  constexpr int64_t after(int64_t o) const {
    if (!apart) return o + 1;
    return o < itself ? itself : o < mirrored ? mirrored : past;
  }
};

// The way there and back. Division is a class that divides by a number known beforehand, as the device does it best:
// quotient(n), and quotient(n, rest), which also gives what is left.
template <class Division>
class AxisMap {
 public:
  explicit AxisMap(const ResampledAxis& axis) : axis_(axis), by_unit_(axis.unit), by_slope_(axis.slope) {}

  constexpr Mixture mixture(int64_t o) const {
    if (axis_.kind == ResampledAxis::Reflect) {
      int64_t i = o - axis_.before;
      if (i < 0) i = -i;
      if (i >= axis_.in) i = 2 * (axis_.in - 1) - i;
      return {i, i, 0, 1};
    }
    const int64_t along = axis_.slope * o + axis_.offset;
    int64_t part = 0;
    const int64_t low = by_unit_.quotient(along > 0 ? along : 0, part);
    const bool alone = axis_.kind == ResampledAxis::Nearest || low + 1 >= axis_.in;
    return {low, alone ? low : low + 1, part, axis_.unit};
  }

  constexpr Readers readers(int64_t i) const {
    const int64_t last = axis_.in - 1;
    if (axis_.kind == ResampledAxis::Reflect) {
      const int64_t itself = axis_.before + i, mirrored = itself + 2 * (last - i);
      return {i > 0 && i <= axis_.before ? axis_.before - i : itself, axis_.out, true, itself,
              i < last && mirrored < axis_.out ? mirrored : axis_.out};
    }
    // Those whose point lies in (i - 1, i + 1), or in [i, i + 1); what is left of the axis belongs to its ends.
    const bool blends = axis_.kind == ResampledAxis::Blend;
    Readers readers{0, axis_.out, false, 0, 0};
    if (i > 0) {
      const int64_t from = (blends ? i - 1 : i) * axis_.unit - axis_.offset;
      readers.first = by_slope_.quotient(from + (blends ? axis_.slope : axis_.slope - 1));
    }
    if (i < last) readers.past = by_slope_.quotient((i + 1) * axis_.unit - axis_.offset + axis_.slope - 1);
    if (readers.past > axis_.out) readers.past = axis_.out;
    return readers;
  }

 private:
  ResampledAxis axis_;
  Division by_unit_, by_slope_;
};

}  // namespace moonflow
