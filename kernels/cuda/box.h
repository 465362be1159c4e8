// Copies a box of elements between two strided arrays on the card; see kernels/boxes.h. Elements of any dtype, which
// are moved by their size and not looked at.
#pragma once

#include "kernels/boxes.h"
#include "kernels/cuda/axes.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {

class BoxCopy {
 public:
  BoxCopy(int64_t element_bytes, const Box& box);

  // Both arrays begin where a plan puts values.
  void run(Stream& stream, void* to, const void* from) const;

 private:
  int64_t element_bytes_, to_start_, from_start_;
  int64_t count_ = 0;              // of elements
  Axes<Box::kMaxAxes> to_, from_;  // of the box; with tiles, without the two axes that make them
  Box::Axis row_{}, column_{};     // with tiles: the innermost axis of the target, and that of the source
  bool tiled_ = false;
};

// The kernel of an op that copies one box.
CudaKernel copy_kernel(Box (*box)(const KernelCall&));

}  // namespace moonflow::cuda
