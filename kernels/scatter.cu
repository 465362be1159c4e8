// On CUDA: rows that indices name, read and written. What several picks name is taken in in their order, so that the
// result is the CPU's to the bit wherever the picks are not shared by blocks.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/scatter_rows.h"

namespace moonflow::cuda {
namespace {

// Of an op that has the value, or its sizes, as an input or output of this shape.
PickedRows tuples(const Shape& value, const KernelCall& call, int indices) {
  return PickedRows::of_tuples(value, call.inputs[indices].shape);
}
PickedRows along(const Shape& value, const KernelCall& call) {
  return PickedRows::along(value, call.inputs[1].shape, wrap_axis(call.attrs.integer("dim"), value.rank()));
}

template <Into into>
Launch prepare_tensor_scatter(KernelCall& call) {
  return scatter_rows<into>(call, tuples(call.inputs[0].shape, call, 1), 0, 1, 2);
}
template <Into into>
Launch prepare_segments(KernelCall& call) {
  const int axis = wrap_axis(call.attrs.integer("axis"), call.inputs[0].shape.rank());
  return scatter_rows<into>(call, PickedRows::on_axis(call.outputs[0].shape, call.inputs[1].shape, axis), -1, 1, 0);
}

}  // namespace

void add_scatter(Kernels& kernels) {
  kernels["gather_nd"] = {{[](KernelCall& call) { return take_rows(call, tuples(call.inputs[0].shape, call, 1), 1); }},
                          true};
  kernels["scatter_nd"] = {{[](KernelCall& call) {
    return scatter_rows<Into::Sum>(call, tuples(call.outputs[0].shape, call, 0), -1, 0, 1);
  }}};
  kernels["tensor_scatter_nd_add"] = {{prepare_tensor_scatter<Into::Sum>}};
  kernels["tensor_scatter_nd_update"] = {{prepare_tensor_scatter<Into::Replaced>}};
  kernels["unsorted_segment_sum"] = {{prepare_segments<Into::Sum>}};
  kernels["unsorted_segment_max"] = {{prepare_segments<Into::Max>}};
  kernels["dim_gather"] = {{[](KernelCall& call) { return take_rows(call, along(call.inputs[0].shape, call), 1); }},
                           true};
  kernels["dim_gather_grad"] = {
      {[](KernelCall& call) { return scatter_rows<Into::Sum>(call, along(call.outputs[0].shape, call), -1, 1, 0); }}};
}

}  // namespace moonflow::cuda
