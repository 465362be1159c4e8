// Cutting and joining on CUDA: box copies, of which some leave places that are filled before.
#include "kernels/cuda/box.h"
#include "kernels/cuda/fill.h"

namespace moonflow::cuda {
namespace {

// `value` fills what the box leaves free.
Launch fill_and_copy(const KernelCall& call, const Box& box, double value) {
  const BoxCopy copy(size_of(call.inputs[0].dtype), box);
  const TensorType out = call.outputs[0];
  return [copy, value, dtype = out.dtype, count = out.count()](const LaunchCall& at) {
    fill(at.stream, dtype, at.outputs[0], count, value);
    copy.run(at.stream, at.outputs[0], at.inputs[0]);
  };
}

CudaKernel join_kernel(std::vector<Box> (*boxes)(const KernelCall&)) {
  const auto prepare = [boxes](KernelCall& call) -> Launch {
    std::vector<BoxCopy> copies;
    for (const Box& box : boxes(call)) copies.emplace_back(size_of(call.outputs[0].dtype), box);
    return [copies](const LaunchCall& at) {
      for (size_t i = 0; i < copies.size(); ++i) copies[i].run(at.stream, at.outputs[0], at.inputs[i]);
    };
  };
  return {{prepare}, true};
}

}  // namespace

void add_slice(Kernels& kernels) {
  kernels["slice"] = copy_kernel(slice_box);
  kernels["strided_slice"] = copy_kernel(strided_slice_box);
  kernels["strided_slice_grad"] = {
      {[](KernelCall& call) { return fill_and_copy(call, strided_slice_grad_box(call), 0); }}, true};
  kernels["pad"] = {
      {[](KernelCall& call) { return fill_and_copy(call, pad_box(call), call.attrs.number("constant_value")); }}, true};
  kernels["concat"] = join_kernel(concat_boxes);
  kernels["stack"] = join_kernel(stack_boxes);
}

}  // namespace moonflow::cuda
