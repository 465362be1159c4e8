// The ways of the CPU to compute a convolution: packed products, oneDNN, own kernels.
#pragma once

#include "kernels/conv.h"
#include "kernels/cpu/image_layouts.h"

namespace moonflow::cpu {

// How many threads pay, each of which takes microseconds to begin and end with, where the algorithm saves so many times
// the operations.
int conv_parts(const Conv& conv, double saving = 1);

// For float32 and float64 and any sizes, over row-major values: the launch of whatever oneDNN has no kernel for, above
// all float64, and on a device for real time. Nothing pooled. The activation is for Forward and ForwardBias. Sets
// call.scratch_bytes.
Launch conv_packed(const Conv& conv, ConvKind kind, DType dtype, Activation activation, KernelCall& call);

// Each channel with a filter of its own, over row-major float or double values. `scratch` is for scratch_bytes.
class DepthwiseConv {
 public:
  // Neighbours of a plane that are as far apart as its strides, and where they lie side by side.
  struct Run {
    int64_t from, to, count;
  };

  static bool fits(const Conv& conv);
  explicit DepthwiseConv(const Conv& conv);  // that fits
  template <class T>
  int64_t scratch_bytes() const;
  template <class T>
  void run(const T* image, const T* filter, T* out, T* scratch) const;
  template <class T>
  void filter_grad(const T* dy, const T* image, T* dfilter, T* scratch) const;  // of channels first

 private:
  // Calls body(register, part, i, scratch of the part) for each i below `count`, each part of them on a thread.
  template <class T, class Body>
  void divide(int64_t count, T* scratch, const Body& body) const;
  template <class T>
  void run_planes(const T* image, const T* filter, T* out, T* scratch) const;
  template <class T>
  void run_rows(const T* image, const T* filter, T* out, T* scratch) const;

  Conv conv_;
  // With channels first: how a plane is cut, and where output 0 then finds each tap.
  std::vector<Run> runs_;
  std::vector<int64_t> taps_;
};

// Through oneDNN, float32 only, nothing pooled. Where it has no kernel for these sizes, the launch is empty.
bool conv_layouts(const Conv& conv, ConvKind kind, Activation activation, LayoutCall& call);
Launch conv_primitive(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call);

// Own kernels, float32 only, for two spatial axes. There may be none, and where the layouts are not those that were
// asked for, the launch is empty.
bool has_own_conv(const Conv& conv, ConvKind kind, const ConvWay& way);
bool own_conv_layouts(const Conv& conv, ConvKind kind, const ConvWay& way, LayoutCall& call);
Launch own_conv(const Conv& conv, ConvKind kind, const ConvWay& way, Activation activation, KernelCall& call);

// Steps between the elements of a row-major filter, seen from what is summed over to what is produced: channels and
// filters, and the other way round for the gradient of the image, which sees the filter turned by 180 degrees.
struct FilterSteps {
  int64_t summed, produced, row, column;
  int64_t start = 0;
};
FilterSteps filter_steps(const Conv& conv, ConvKind kind);

// Images in blocks of 16 channels, places as what they are about, filters in rows.
void block_layouts(const Conv& conv, ConvKind kind, LayoutCall& call);

// Where those images lie: what is convolved, and what that gives or is the gradient of, each as it was before pooling
// or will be. Nothing where one of a call lies otherwise, or places do not lie as what they are about.
struct ConvBlocks {
  Blocks image, out;
};
std::optional<ConvBlocks> conv_blocks(const Conv& conv, ConvKind kind, const KernelCall& call);

// By direct sums in the tile registers of AMX, where factors may be rounded to bfloat16: one group.
bool tiles_fit(const Conv& conv);
Launch conv_tiles(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call);
Launch conv_tiles_filter(const Conv& conv, ConvKind kind, KernelCall& call);  // of those, the gradients of the filter

// Of 1x1, and of each channel with a filter of its own: forwards, with as many channels as a register has at a time.
bool lanes_fit(const Conv& conv, ConvKind kind);
void lane_layouts(const Conv& conv, LayoutCall& call);
Launch conv_lanes(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call);

// By Winograd's algorithm, where it fits: strides and dilations of 1, one group, 3x3 or 5x5.
bool winograd_fits(const Conv& conv, ConvKind kind);
bool winograd_is_faster(const Conv& conv, ConvKind kind);
void winograd_layouts(const Conv& conv, ConvKind kind, LayoutCall& call);
Launch conv_winograd(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call);
// Its filters have a layout of their own: what the algorithm makes of them. `winograd_filter` puts a row-major one
// there.
bool is_winograd_filter(const Layout& layout);
Launch winograd_filter(const Layout& layout);

// By direct sums for images of up to three channels, for ForwardPool and PoolFilterGrad.
bool few_channels_fits(const Conv& conv, ConvKind kind);
void few_channels_layouts(const Conv& conv, ConvKind kind, LayoutCall& call);
Launch conv_few_channels(const Conv& conv, ConvKind kind, KernelCall& call);

// By direct sums over the windows that pass something, for PoolFilterGrad with 3x3 and 5x5 filters.
bool sparse_fits(const Conv& conv, ConvKind kind);
void sparse_layouts(const Conv& conv, LayoutCall& call);
Launch conv_sparse(const Conv& conv, KernelCall& call);

}  // namespace moonflow::cpu
