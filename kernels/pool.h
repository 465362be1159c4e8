// The sizes of a pooling, its plain loops, and its launches through oneDNN.
#pragma once

#include "kernels/window.h"

namespace moonflow {

struct Pool {
  ImageFormat format;
  ImageSize image;
  ImageSize out;
  Windows windows;
};

// Checks the attributes of a pooling of x; all ops of pooling have them.
Pool pool_of(const Attrs& attrs, const Shape& x);

// The ops, told apart by what they compute.
enum class PoolKind {
  Max,          // (x) -> out
  Average,      // (x) -> out
  MaxGrad,      // (dy, x) -> dx, which may lie over x
  AverageGrad,  // (dy) -> dx
};

// Whether a maximum gives way to a value: a number to a greater one, and NaN to any number, so that NaN is the maximum
// of a window that holds nothing else.
template <class T>
constexpr bool gives_way(T maximum, T value) {
  return value > maximum || (maximum != maximum && value == value);
}

// Whether 2x2 windows tile the image.
bool pools_by_two(const Pool& pool);
bool pools_by_two(const Attrs& attrs, const Shape& x);

// For both floating dtypes and any sizes, over row-major values: the launch of whatever oneDNN has no kernel for, above
// all float64. `relu` is for MaxGrad: nothing passes where the maximum is not positive.
Launch pool_loops(const Pool& pool, PoolKind kind, bool relu, KernelCall& call);

// Through oneDNN, float32 only, in any layout with a channel form. Throws dnnl::error where it has no kernel.
namespace cpu {
Launch pool_primitive(const Pool& pool, PoolKind kind, bool relu, KernelCall& call);

// MaxGrad where 2 x 2 windows tile the image and the channels are innermost. float32.
bool pools_by_two(const Pool& pool, const ChannelForm& form);
Launch max_grad_by_two(const Pool& pool, const ChannelForm& form, bool relu);
}  // namespace cpu

}  // namespace moonflow
