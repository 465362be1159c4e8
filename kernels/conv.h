// The sizes of a convolution, and the ways to compute it: packed products, oneDNN, own kernels. The sizes are for all
// devices (conv_sizes.cpp), the rest is the CPU's.
#pragma once

#include "kernels/activation.h"
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

  constexpr int64_t filters() const { return out.channels; }
  constexpr int64_t filters_per_group() const { return out.channels / groups; }
  constexpr int64_t channels_per_group() const { return image.channels / groups; }
};

// The ops, told apart by what they compute.
enum class ConvKind {
  Forward,         // (x, filter) -> out
  ForwardBias,     // (x, filter, bias) -> out
  ForwardAdd,      // (x, filter, bias, addend) -> out
  InputGrad,       // (dy, filter) -> dx
  FilterGrad,      // (dy, x) -> dfilter
  FilterBiasGrad,  // (dy, x) -> dfilter, dbias
  // With relu and max pooling of 2x2 windows behind it; `places` says where in its window each maximum was.
  ForwardPool,     // (x, filter, bias) -> out, places
  PoolInputGrad,   // (dy, places, filter) -> dx
  PoolFilterGrad,  // (dy, places, x) -> dfilter, dbias
};

inline bool is_input_grad(ConvKind kind) { return kind == ConvKind::InputGrad || kind == ConvKind::PoolInputGrad; }
inline bool is_filter_grad(ConvKind kind) {
  return kind == ConvKind::FilterGrad || kind == ConvKind::FilterBiasGrad || kind == ConvKind::PoolFilterGrad;
}
inline bool is_forward(ConvKind kind) { return !is_input_grad(kind) && !is_filter_grad(kind); }
inline bool is_pooled(ConvKind kind) {
  return kind == ConvKind::ForwardPool || kind == ConvKind::PoolInputGrad || kind == ConvKind::PoolFilterGrad;
}

// What all convolutions have alike: their attributes, and the checked sizes of x (*) filter.
std::vector<AttrDef> conv_attrs(int spatial_axes);
AttrDef shape_attr(const char* of);
AttrDef activation_attr();
// The activation of an op that may have one.
Activation activation_of(const Attrs& attrs);
Conv conv_of(const Attrs& attrs, const Shape& x, const Shape& filter, int spatial_axes);
// From the first two inputs of an op of this kind, nothing pooled. Gradients know the shape they are to give from the
// attribute `shape`.
Conv conv_of_inputs(ConvKind kind, const Attrs& attrs, const Shape& first, const Shape& second, int spatial_axes);
double conv_flops(const Conv& conv);
// How many threads pay, each of which takes microseconds to begin and end with, where the algorithm saves so many times
// the operations.
int conv_parts(const Conv& conv, double saving = 1);

// For float32 and float64 and any sizes, over row-major values: the launch of whatever oneDNN has no kernel for, above
// all float64, and on a device for real time. Nothing pooled. The activation is for Forward and ForwardBias. Sets
// call.scratch_bytes.
Launch conv_packed(const Conv& conv, ConvKind kind, DType dtype, Activation activation, KernelCall& call);

// The fusions of conv2d_bias with the pooling behind it, in conv_pool.cpp.
void add_conv_pool(Catalog& catalog);
bool fuse_conv_pool(Rewriter& graph, NodeId conv2d_bias);
bool fuse_conv_pool_on_card(Rewriter& graph, NodeId conv2d_bias);
// The relu or relu6 that alone reads a value, which a convolution can take over under its name, or kNone.
NodeId activation_behind(const Rewriter& graph, ValueId value);
// The fusions of conv2d with batch_norm_infer, and of conv2d_bias with a sum, in conv_norm.cpp.
void add_conv_norm(Catalog& catalog);
bool fuse_conv_norm(Rewriter& graph, NodeId conv2d);
bool fuse_conv_add(Rewriter& graph, NodeId conv2d_bias);

namespace cpu {
// Each channel with a filter of its own, forwards, over row-major float or double values.
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

 private:
  template <class T>
  void run_planes(const T* image, const T* filter, T* out, T* scratch) const;
  template <class T>
  void run_rows(const T* image, const T* filter, T* out, T* scratch) const;

  Conv conv_;
  // With channels first: how a plane is cut, and where output 0 then finds each tap.
  std::vector<Run> runs_;
  std::vector<int64_t> taps_;
};

// Through oneDNN, float32 only, nothing pooled. Throws dnnl::error where it has no kernel.
void conv_layouts(const Conv& conv, ConvKind kind, Activation activation, LayoutCall& call);
Launch conv_primitive(const Conv& conv, ConvKind kind, Activation activation, KernelCall& call);

// Own kernels, float32 only, for two spatial axes; `algorithm` is the attribute. There may be none, and where the
// layouts are not those that were asked for, the launch is empty. Layouts throw dnnl::error where a device without
// oneDNN could not put values there.
bool has_own_conv(const Conv& conv, ConvKind kind, const std::string& algorithm);
bool own_conv_layouts(const Conv& conv, ConvKind kind, const std::string& algorithm, LayoutCall& call);
Launch own_conv(const Conv& conv, ConvKind kind, const std::string& algorithm, Activation activation, KernelCall& call);

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
}  // namespace cpu

}  // namespace moonflow
