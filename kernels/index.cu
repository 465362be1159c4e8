// Gather and one_hot on CUDA. An index outside its axis is noted where it is read, nothing is read or written for it,
// and the run ends with the error.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/scatter_rows.h"

namespace moonflow::cuda {
namespace {

template <class T>
struct OneHot {
  Indices indices;
  T* out;
  LongDivisor inner, depth;
  int64_t inner_size;
  T on, off;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block, int64_t e) const {
    int64_t place, k;
    const int64_t outer = depth.quotient(inner.quotient(e, place), k), i = outer * inner_size + place;
    const int64_t index = k == 0 ? indices.checked(block, i) : indices.at(i);
    out[e] = index == k ? on : off;
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

PickedRows places_of(const KernelCall& call, const Shape& params) {
  return PickedRows::on_axis(params, call.inputs[1].shape, wrap_axis(call.attrs.integer("axis"), params.rank()));
}

Launch prepare_one_hot(KernelCall& call) {
  const Shape& out = call.outputs[0].shape;
  const int axis = wrap_axis(call.attrs.integer("axis"), out.rank());
  const int64_t depth = out[axis], inner = out.count(axis + 1, out.rank());
  const int64_t picked = call.inputs[0].count(), count = out.count();
  const DType index_dtype = call.inputs[0].dtype;
  const double on = call.attrs.number("on_value"), off = call.attrs.number("off_value");
  call.explain = [indices = call.inputs[0].shape, depth](int64_t place, int64_t index) {
    fail_index(indices, place, index, depth);
  };
  return visit(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const Indices indices(at, 0, index_dtype, depth);
      if (count == 0) return for_each(at.stream, picked, CheckIndices{indices});  // bad ones are errors all the same
      for_each(at.stream, count,
               OneHot<T>{indices, at.output<T>(0), LongDivisor(inner), LongDivisor(depth), inner, static_cast<T>(on),
                         static_cast<T>(off)});
    };
  });
}

}  // namespace

void add_index(Kernels& kernels) {
  kernels["gather"] = {{[](KernelCall& call) { return take_rows(call, places_of(call, call.inputs[0].shape), 1); }},
                       true};
  kernels["gather_grad"] = {{[](KernelCall& call) {
    return scatter_rows<Into::Sum>(call, places_of(call, call.outputs[0].shape), -1, 1, 0);
  }}};
  kernels["one_hot"] = {{prepare_one_hot}};
}

}  // namespace moonflow::cuda
