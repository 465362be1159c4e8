// The sizes of a convolution, its plain loops, and its launches through oneDNN and by Winograd's algorithm.
#pragma once

#include <dnnl.hpp>

#include "kernels/window.h"

namespace moonflow {

// out[n, f, y, x] = sum over c, i, j of image[n, c, y * stride - before + i * dilation, ...] * filter[f, c, i, j],
// where filter f sees only the channels of its group.
struct Conv {
  ImageFormat format;
  int64_t groups = 1;
  ImageSize image;
  ImageSize out;  // its channels are the filters
  Windows windows;

  int64_t filters() const { return out.channels; }
  int64_t filters_per_group() const { return out.channels / groups; }
  int64_t channels_per_group() const { return image.channels / groups; }
};

// The ops, told apart by what they compute.
enum class ConvKind {
  Forward,         // (x, filter) -> out
  ForwardBias,     // (x, filter, bias) -> out
  InputGrad,       // (dy, filter) -> dx
  FilterGrad,      // (dy, x) -> dfilter
  FilterBiasGrad,  // (dy, x) -> dfilter, dbias
};

// For every floating dtype and any sizes, over row-major values: the launch of whatever oneDNN has no kernel for,
// above all float64. `relu` is for Forward and ForwardBias.
Launch conv_loops(const Conv& conv, ConvKind kind, DType dtype, bool relu);

// Through oneDNN, float32 only. Throws dnnl::error where it has no kernel.
namespace cpu {
void conv_layouts(const Conv& conv, ConvKind kind, bool relu, LayoutCall& call);
Launch conv_primitive(const Conv& conv, ConvKind kind, bool relu, KernelCall& call);

// By Winograd's algorithm, float32 only, where it fits: two axes, strides and dilations of 1, one group, 3x3 or 5x5.
// The launch is empty where the layouts are not those it asked for.
bool winograd_fits(const Conv& conv, ConvKind kind);
bool winograd_is_faster(const Conv& conv, ConvKind kind);
void winograd_layouts(const Conv& conv, ConvKind kind, LayoutCall& call);
Launch conv_winograd(const Conv& conv, ConvKind kind, bool relu, KernelCall& call);
}  // namespace cpu

}  // namespace moonflow
