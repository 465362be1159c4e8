// The loops of pooling, over images in rows or in blocks of channels.
#pragma once

#include "kernels/window.h"

namespace moonflow {

// A plane is all that shares (batch, block of channels): element (plane, y, x, lane) is at
//   ((plane * height + y) * width + x) * lanes + lane,
// so NCHW has one lane, NHWC has the channels as lanes, and a blocked form has its block.
struct Pool {
  ImageFormat format;
  ImageSize image;
  ImageSize out;
  Windows windows;
  int64_t planes = 0;
  int64_t lanes = 1;
};

template <class T>
void max_pool(const Pool& pool, const T* x, T* out);
template <class T>
void avg_pool(const Pool& pool, const T* x, T* out);
template <class T>
void avg_pool_grad(const Pool& pool, const T* dy, T* dx);

// `dx` may be the memory of `x`. With `relu` nothing passes where the maximum is not positive.
template <class T>
void max_pool_grad(const Pool& pool, bool relu, const T* dy, const T* x, T* dx, int32_t* scratch);
int64_t max_pool_grad_scratch(const Pool& pool);  // bytes

}  // namespace moonflow
