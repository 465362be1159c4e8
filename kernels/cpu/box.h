// Copies a box of elements between two strided arrays: what transpose, slice, concat, pad, tile and broadcasting share.
// The way through memory is chosen once, when the copy is made; running it allocates nothing.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/boxes.h"

namespace moonflow::cpu {

class BoxCopy {
 public:
  BoxCopy(int64_t element_bytes, const Box& box);

  void run(void* to, const void* from) const;

 private:
  static constexpr int kMaxAxes = Box::kMaxAxes;
  using Axis = Box::Axis;
  struct Walk;

  // Whether rows are worth whole registers, but not a call each.
  bool in_registers() const;
  template <class T>
  void run_as(T* to, const T* from) const;
  template <class T>
  void copy_rows(T* to, const T* from) const;
  // Calls work(to, from, size) for parts of column_ of `most` elements, with the places where they begin.
  template <class Work>
  void for_each_strip(int64_t most, const Work& work) const;
  template <class T>
  void copy_tiles(T* to, const T* from) const;
  template <class T>
  void copy_across(T* to, const T* from) const;

  int64_t element_bytes_, to_start_, from_start_;
  int64_t outer_count_ = 1;             // of the axes in outer_
  std::array<Axis, kMaxAxes> outer_{};  // all axes but the inner ones
  int outer_rank_ = 0;
  Axis row_{1, 1, 1};     // the innermost axis of the target
  Axis column_{1, 1, 1};  // not by rows: the other axis, along which the source of tiles is contiguous
  enum { Rows, Tiles, Across } way_ = Rows;
};

// The kernel of an op that copies one box.
Kernel copy_kernel(Box (*box)(const KernelCall&));

}  // namespace moonflow::cpu
