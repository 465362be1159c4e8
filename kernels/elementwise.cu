// Element-wise ops of one input and their gradients, and cast, on CUDA.
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"

namespace moonflow::cuda {
namespace {

using elementwise::Dtypes;

template <class To>
struct Convert : functor::Cheap {
  template <class From>
  MOONFLOW_BOTH To operator()(From x) const {
    return functor::convert<To>(x);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

template <class F, Dtypes dtypes>
Element one(const Attrs& attrs, DType dtype) {
  return visit_row<dtypes>(
      dtype, [&](auto zero) { return Element(elementwise::make<F>(attrs), start_one<F, decltype(zero)>); });
}

template <class F>
Element gradient(const Attrs& attrs, DType dtype) {
  return visit_row<Dtypes::Floating>(
      dtype, [&](auto zero) { return Element(elementwise::make<F>(attrs), start_two<F, decltype(zero)>); });
}

CudaKernel over_all(MakeElement make) {
  return {{[make](KernelCall& call) -> Launch {
             return [element = make(call.attrs, call.inputs[0].dtype), count = call.outputs[0].count(),
                     two = call.inputs.size() > 1](const LaunchCall& at) {
               element.start(at.stream, element, count, at.inputs[0], two ? at.inputs[1] : nullptr, at.outputs[0]);
             };
           },
           share_channels_last},
          true};
}

Launch prepare_cast(KernelCall& call) {
  const Element element = visit_stored(call.outputs[0].dtype, [&](auto to) {
    using F = Convert<decltype(to)>;
    return visit_stored(call.inputs[0].dtype,
                        [](auto from) { return Element(F{}, start_one<F, decltype(from), decltype(to)>); });
  });
  return [element, count = call.outputs[0].count()](const LaunchCall& at) {
    element.start(at.stream, element, count, at.inputs[0], nullptr, at.outputs[0]);
  };
}

}  // namespace

void add_elementwise(Kernels& kernels) {
  elementwise::for_each_unary([&](auto computes, const elementwise::UnaryRow& row) {
    using Row = decltype(computes);
    kernels[row.name] = over_all(one<typename Row::Functor, Row::dtypes>);
    if constexpr (!std::is_same_v<typename Row::Gradient, functor::None>)
      kernels[text(row.name, "_grad")] = over_all(gradient<typename Row::Gradient>);
  });
  kernels["cast"] = {{prepare_cast, share_channels_last}, true};
}

}  // namespace moonflow::cuda
