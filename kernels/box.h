// Copies a box of elements between two strided arrays: what transpose, slice, concat, pad, tile and broadcasting share.
// The way through memory is chosen once, when the copy is made; running it allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "engine/tensor.h"

namespace moonflow::cpu {

class BoxCopy {
 public:
  // One axis of the box. Steps count elements; `from` may be 0 (the same element again) or negative (backwards), and
  // no two elements of the box may have the same place in the target.
  struct Axis {
    int64_t size, to, from;
  };

  // Axes outermost first; at most 2 * Shape::kMaxRank of them. The starts count elements.
  BoxCopy(int64_t element_bytes, const std::vector<Axis>& axes, int64_t to_start = 0, int64_t from_start = 0);

  void run(void* to, const void* from) const;

 private:
  static constexpr int kMaxAxes = 2 * Shape::kMaxRank;
  struct Walk;

  template <class T>
  void run_as(T* to, const T* from) const;
  template <class T>
  void copy_rows(T* to, const T* from) const;
  template <class T>
  void copy_tiles(T* to, const T* from) const;

  int64_t element_bytes_, to_start_, from_start_;
  int64_t outer_count_ = 1;             // of the axes in outer_
  std::array<Axis, kMaxAxes> outer_{};  // all axes but the inner ones
  int outer_rank_ = 0;
  Axis row_{1, 1, 1};     // the innermost axis of the target
  Axis column_{1, 1, 1};  // with tiles: the axis along which the source is contiguous
  bool tiled_ = false;
};

// The row-major steps of a shape, in elements.
std::vector<int64_t> strides_of(const Shape& shape);

}  // namespace moonflow::cpu
