// The sizes of a convolution, for all devices (conv_sizes.cpp), and what its families fuse with it.
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
  // Whether windows, and the places in them, are neighbours: strides and dilations of 1.
  constexpr bool slides_by_one() const {
    for (const Window& window : windows)
      if (window.stride != 1 || window.dilation != 1) return false;
    return true;
  }
  // Of the filter, as an image with filters for a batch.
  constexpr ImageSize filter_size() const {
    return {filters(), channels_per_group(), windows[0].size, windows[1].size};
  }
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
// It takes a bias, or gives the gradient of one.
inline bool has_bias(ConvKind kind) {
  return kind == ConvKind::ForwardBias || kind == ConvKind::ForwardAdd || kind == ConvKind::ForwardPool ||
         kind == ConvKind::FilterBiasGrad || kind == ConvKind::PoolFilterGrad;
}

// What all convolutions have alike: their attributes, and the checked sizes of x (*) filter.
std::vector<AttrDef> conv_attrs(int spatial_axes);
std::vector<AttrDef> conv_window_attrs(int spatial_axes);  // those without a choice of the way to compute it
AttrDef shape_attr(const char* of);
AttrDef activation_attr();
// The activation of an op that may have one.
Activation activation_of(const Attrs& attrs);
Conv conv_of(const Attrs& attrs, const Shape& x, const Shape& filter, int spatial_axes);
// From the first two inputs of an op of this kind, nothing pooled. Gradients know the shape they are to give from the
// attribute `shape`.
Conv conv_of_inputs(ConvKind kind, const Attrs& attrs, const Shape& first, const Shape& second, int spatial_axes);
double conv_flops(const Conv& conv);

// Which of the ways to compute it on the CPU is asked for.
struct ConvWay {
  std::string algorithm = "direct";  // the attribute; one axis has no other
  bool in_bfloat16 = false;          // its factors are to be rounded
};
ConvWay conv_way(const Attrs& attrs);

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

}  // namespace moonflow
