// Labels and indices of any integer dtype, checked where they are read.
#pragma once

#include "engine/op.h"
#include "kernels/cuda/fault.h"

namespace moonflow::cuda {

struct Indices {
  const void* data;
  DType dtype;
  int64_t bound;
  FaultNote* note;
  int step;

  Indices(const LaunchCall& at, int input, DType dtype, int64_t bound)
      : data(at.inputs[input]), dtype(dtype), bound(bound), note(fault_note(at.stream)), step(at.step) {}

  MOONFLOW_DEVICE int64_t at(int64_t i) const {
    switch (dtype) {
      case DType::Int8:
        return static_cast<const int8_t*>(data)[i];
      case DType::UInt8:
        return static_cast<const uint8_t*>(data)[i];
      case DType::Int64:
        return static_cast<const int64_t*>(data)[i];
      default:
        return static_cast<const int32_t*>(data)[i];
    }
  }
  // -1 where it is outside [0, bound), which is noted.
  template <class Block>
  MOONFLOW_DEVICE int64_t checked(const Block& block, int64_t i) const {
    const int64_t index = at(i);
    if (index >= 0 && index < bound) return index;
    note_fault(block, note, step, i, index);
    return -1;
  }
};

// For where nothing else reads them, or what does is not to find a bad one.
struct CheckIndices {
  Indices indices;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t i) const {
    indices.checked(block, i);
  }
};

}  // namespace moonflow::cuda
