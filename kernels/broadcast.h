// How several values line up under NumPy broadcasting: as few axes as possible, each with a step per value.
// Neighbouring axes that every value walks in the same way are one axis, so (N, C, H, W) + (C, 1, 1) has three axes and
// two values of one shape have one.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace moonflow {

template <int kValues>
struct Broadcast {
  struct Axis {
    int64_t size;
    std::array<int64_t, kValues> steps;  // in elements; 0 where the value is repeated
  };
  std::vector<Axis> axes;  // outermost first; at least one

  explicit Broadcast(std::vector<Axis> given) : axes(std::move(given)) {
    if (axes.empty()) axes.push_back({1, {}});
  }

  Broadcast(const std::array<Shape, kValues>& shapes, const Shape& out) {
    std::array<int64_t, kValues> step;
    step.fill(1);
    for (int axis = out.rank(); axis-- > 0;) {
      Axis next{out[axis], {}};
      for (int v = 0; v < kValues; ++v) {
        const int own = axis - out.rank() + shapes[v].rank();
        const int64_t size = own < 0 ? 1 : shapes[v][own];
        next.steps[v] = size == 1 ? 0 : step[v];
        step[v] *= size;
      }
      if (next.size == 1) continue;
      if (!axes.empty() && continues(next, axes.back())) {
        axes.back().size *= next.size;
      } else {
        axes.push_back(next);
      }
    }
    if (axes.empty()) axes.push_back({1, {}});
    std::reverse(axes.begin(), axes.end());
  }

  // Places of element `index` of the result in each value.
  std::array<int64_t, kValues> offsets_of(int64_t index) const {
    std::array<int64_t, kValues> offsets{};
    for (int a = static_cast<int>(axes.size()) - 1; a >= 0; index /= axes[a].size, --a) {
      for (int v = 0; v < kValues; ++v) offsets[v] += index % axes[a].size * axes[a].steps[v];
    }
    return offsets;
  }

  // Calls run(out, length, offsets) for the runs along the innermost axis that make up elements [first, last) of the
  // result: `out` is the first element's place in the result, offsets[v] its place in value v.
  template <class Run>
  void for_each_run(int64_t first, int64_t last, const Run& run) const {
    if (first >= last) return;  // an axis may have no elements
    std::array<int64_t, Shape::kMaxRank> index{};
    std::array<int64_t, kValues> offsets{};
    const int inner = static_cast<int>(axes.size()) - 1;
    int64_t rest = first;
    for (int a = inner; a >= 0; --a) {
      index[a] = rest % axes[a].size;
      rest /= axes[a].size;
      for (int v = 0; v < kValues; ++v) offsets[v] += index[a] * axes[a].steps[v];
    }
    while (first < last) {
      const int64_t length = std::min(axes[inner].size - index[inner], last - first);
      run(first, length, offsets);
      first += length;
      advance(inner, length, index, offsets);
    }
  }

 private:
  static bool continues(const Axis& outer, const Axis& inner) {
    for (int v = 0; v < kValues; ++v) {
      if (outer.steps[v] != inner.steps[v] * inner.size) return false;
    }
    return true;
  }

  // On by `length` along the innermost axis, carrying into the outer ones.
  void advance(int a, int64_t length, std::array<int64_t, Shape::kMaxRank>& index,
               std::array<int64_t, kValues>& offsets) const {
    for (; a >= 0; --a, length = 1) {
      index[a] += length;
      for (int v = 0; v < kValues; ++v) offsets[v] += length * axes[a].steps[v];
      if (index[a] < axes[a].size) return;
      for (int v = 0; v < kValues; ++v) offsets[v] -= index[a] * axes[a].steps[v];
      index[a] = 0;
    }
  }
};

}  // namespace moonflow
