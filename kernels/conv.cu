// Convolutions on CUDA, over one or two spatial axes: the library's (kernels/cuda/convolution.h), in the layout of the
// values, which for float32 is as good as any. What it has no engine for is computed directly.
#include <functional>

#include "kernels/conv.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/kernels.h"

namespace moonflow::cuda {
namespace {

// The sums of each channel over batch and places: a block for each, in double as on the CPU.
template <class T>
struct ChannelSums {
  static constexpr int kThreads = 256;
  const T* x;
  T* sums;
  Places at;
  int64_t batch;

  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t plane = at.height * at.width;
    double sum = 0;
    for (int64_t i = block.thread(); i < batch * plane; i += kThreads)
      sum += x[at.at(i / plane, block.index(), i % plane / at.width, i % at.width)];
    sum = over_block(block, sum, Sum());
    if (block.thread() == 0) sums[block.index()] = static_cast<T>(sum);
  }
};

template <class T>
struct AddUp {
  const T *x, *addend;
  T* sum;
  bool relu;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const T value = x[i] + addend[i];
    sum[i] = relu && !(value > 0) ? T(0) : value;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

// A convolution and the scratch it wants.
ConvolutionLaunch prepare_convolution(Convolutions& library, const ConvolutionCall& call, int64_t& scratch_bytes) {
  const auto empty = [](const ImageSize& size) { return size.batch * size.channels * size.height * size.width == 0; };
  if (!empty(call.conv.image) && !empty(call.conv.out)) {
    if (ConvolutionLaunch launch = library.prepare(call, scratch_bytes)) return launch;
  }
  scratch_bytes = 0;
  return visit_floating(call.dtype, [&](auto zero) { return direct_convolution<decltype(zero)>(call); });
}

// conv1d has no choice of algorithm.
bool exact(const Attrs& attrs) {
  const AttrValue* const algorithm = attrs.find("algorithm");
  return algorithm != nullptr && *algorithm == AttrValue(std::string("direct"));
}

bool has_relu(const Attrs& attrs) {
  const AttrValue* const activation = attrs.find("activation");
  return activation != nullptr && *activation == AttrValue(std::string("relu"));
}

Launch prepare(Convolutions& library, ConvKind kind, int spatial_axes, KernelCall& call) {
  const Conv conv = conv_of_inputs(kind, call.attrs, call.inputs[0].shape, call.inputs[1].shape, spatial_axes);
  const DType dtype = call.inputs[0].dtype;
  ConvolutionCall wanted{conv, kind, dtype, false, false, exact(call.attrs)};
  if (call.allow_tf32) wanted.precision = Precision::Tf32;
  if (is_forward(kind)) {
    wanted.kind = ConvKind::Forward;
    wanted.bias = kind == ConvKind::ForwardBias;
    wanted.relu = has_relu(call.attrs);
  }
  if (kind == ConvKind::FilterBiasGrad) wanted.kind = ConvKind::FilterGrad;
  const ConvolutionLaunch launch = prepare_convolution(library, wanted, call.scratch_bytes);
  if (is_forward(kind)) {
    return [launch, bias = wanted.bias](const LaunchCall& at) {
      launch(at.stream, {at.inputs[0], at.inputs[1], at.outputs[0], bias ? at.inputs[2] : nullptr, at.scratch});
    };
  }
  if (is_input_grad(kind)) {
    return [launch](const LaunchCall& at) {
      launch(at.stream, {at.outputs[0], at.inputs[1], at.inputs[0], nullptr, at.scratch});
    };
  }
  if (kind == ConvKind::FilterGrad) {
    return [launch](const LaunchCall& at) {
      launch(at.stream, {at.inputs[1], at.outputs[0], at.inputs[0], nullptr, at.scratch});
    };
  }
  return visit_floating(dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [launch, conv, of_out = places(conv.out, conv.format)](const LaunchCall& at) {
      launch(at.stream, {at.inputs[1], at.outputs[0], at.inputs[0], nullptr, at.scratch});
      cuda::launch(at.stream, conv.filters(), ChannelSums<T>{at.input<T>(0), at.output<T>(1), of_out, conv.out.batch});
    };
  });
}

// The output may be the addend's memory, so the convolution goes to scratch.
Launch prepare_sum(Convolutions& library, KernelCall& call) {
  const Conv conv = conv_of(call.attrs, call.inputs[0].shape, call.inputs[1].shape, 2);
  const DType dtype = call.inputs[0].dtype;
  const int64_t bytes = (call.outputs[0].bytes() + kAlignment - 1) / kAlignment * kAlignment;
  int64_t workspace = 0;
  const ConvolutionLaunch launch =
      prepare_convolution(library, {conv, ConvKind::Forward, dtype, true, false, exact(call.attrs)}, workspace);
  call.scratch_bytes = bytes + workspace;
  return visit_floating(dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [launch, bytes, count = call.outputs[0].count(), relu = has_relu(call.attrs)](const LaunchCall& at) {
      launch(at.stream, {at.inputs[0], at.inputs[1], at.scratch, at.inputs[2], static_cast<char*>(at.scratch) + bytes});
      for_each(at.stream, count, AddUp<T>{static_cast<const T*>(at.scratch), at.input<T>(3), at.output<T>(0), relu});
    };
  });
}

}  // namespace

void add_conv(Kernels& kernels) {
  const std::shared_ptr<Convolutions> library = make_convolutions();
  const auto add = [&](const char* name, ConvKind kind, int spatial_axes) {
    kernels[name] = {{[=](KernelCall& call) { return prepare(*library, kind, spatial_axes, call); }}};
  };
  add("conv1d", ConvKind::Forward, 1);
  add("conv1d_input_grad", ConvKind::InputGrad, 1);
  add("conv1d_filter_grad", ConvKind::FilterGrad, 1);
  add("conv2d", ConvKind::Forward, 2);
  add("conv2d_input_grad", ConvKind::InputGrad, 2);
  add("conv2d_filter_grad", ConvKind::FilterGrad, 2);
  add("conv2d_bias", ConvKind::ForwardBias, 2);
  add("conv2d_filter_bias_grad", ConvKind::FilterBiasGrad, 2);
  kernels["conv2d_bias_add"] = {{[library](KernelCall& call) { return prepare_sum(*library, call); }}};
}

}  // namespace moonflow::cuda
