// An axis of another length, each place of which is a weighted sum of the old places around a point.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "engine/op.h"
#include "kernels/elementary.h"

namespace moonflow {

struct AxisFilter {
  int64_t in = 1, out = 1;
  double slope = 1, offset = 0;  // place o of the result lies at slope * o + offset
  bool cubic = false;
  double coefficient = 0;            // of a cubic one
  double spread = 1, narrowing = 1;  // how many places wide what lies between neighbours is, and 1 over that
  bool extends = true;               // what lies outside is the place next to it, else it has no part
  bool stays_inside = false;         // points outside are moved to the first or last place

  MOONFLOW_BOTH double point(int64_t o) const {
    const double x = slope * static_cast<double>(o) + offset;
    return stays_inside ? fmax(0.0, fmin(static_cast<double>(in - 1), x)) : x;
  }
  MOONFLOW_BOTH double reach() const { return (cubic ? 2 : 1) * spread; }

  // Of an old place at a distance of `d` spreads, which is at most 1, or 2 of a cubic filter.
  MOONFLOW_BOTH double weight(double d) const {
    if (!cubic) return 1 - d;
    const double a = coefficient;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : (((d - 5) * d + 8) * d - 4) * a;
  }

  // Calls take(i, weight) for the old places that place o is made of; one next to what lies outside comes several
  // times. Weights are to be divided by their sum. What weighs less than a rounding of the point is no part: its NaN is
  // not.
  template <class Take>
  MOONFLOW_BOTH void each_part(int64_t o, const Take& take) const {
    constexpr double kRounding = 1.0 / (int64_t{1} << 32);
    const double x = point(o);
    const int64_t last = static_cast<int64_t>(floor(x + reach()));
    for (int64_t place = static_cast<int64_t>(ceil(x - reach())); place <= last; ++place) {
      const double part = weight(fabs(x - static_cast<double>(place)) * narrowing);
      const bool is_outside = place < 0 || place >= in;
      if (fabs(part) < kRounding || (is_outside && !extends)) continue;
      take(place < 0 ? 0 : place >= in ? in - 1 : place, part);
    }
  }

  // No place of the result before `first` or from `past` on has place i as a part.
  struct Readers {
    int64_t first, past;
  };
  MOONFLOW_BOTH Readers readers(int64_t i) const {
    Readers all{0, out};
    if (stays_inside || slope <= 0) return all;
    const double at = static_cast<double>(i) - offset;
    if (i > 0 || !extends) all.first = within(ceil((at - reach()) / slope) - 1);
    if (i < in - 1 || !extends) all.past = within(floor((at + reach()) / slope) + 2);
    return all;
  }

 private:
  MOONFLOW_BOTH int64_t within(double o) const {
    return static_cast<int64_t>(fmax(0.0, fmin(static_cast<double>(out), o)));
  }
};

// The checked filter of an op with these attributes for an axis of `in` places.
AxisFilter axis_filter(const Attrs& attrs, int64_t in);

}  // namespace moonflow
