// dense_input_grad on CUDA: what follows the product is done as its sums are stored. Where the product is the
// library's, it is done in one pass over what that has stored.
#include <optional>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/library_product.h"
#include "kernels/elementwise.h"

namespace moonflow::cuda {
namespace {

enum Input { kGradient, kWeight, kY, kMask };

template <class T>
struct Through {
  const T* y;
  const int8_t* mask;
  T scale;
  T* dx;
  MOONFLOW_DEVICE bool begins() const { return true; }
  MOONFLOW_DEVICE void operator()(int64_t place, int64_t, T sum) const {
    if (mask) sum = mask[place] ? sum * scale : T(0);
    dx[place] = y ? functor::ReluGrad()(sum, y[place]) : sum;
  }
  MOONFLOW_DEVICE void operator()(int64_t place) const { (*this)(place, 0, dx[place]); }
};

// Up to here the tiles are no slower than the library and a launch.
bool is_small(const Product& sizes) {
  constexpr double kMostFlops = 64e6;
  return flops_of(sizes) <= kMostFlops;
}

Launch prepare(Products& products, KernelCall& call) {
  const Product sizes = product(call.inputs[kGradient].shape, call.inputs[kWeight].shape, false, false);
  const double scale = 1 / (1 - call.attrs.number("rate"));
  const DType dtype = call.outputs[0].dtype;
  std::optional<LibraryProduct> library;
  if (wants_library(sizes) && !is_small(sizes)) {
    library.emplace(products, sizes, call, kGradient, dtype, dtype, false, false, 0);
    if (*library)
      call.scratch_bytes = library->scratch_end();
    else
      library.reset();
  }
  return visit_floating(dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [=](const LaunchCall& at) {
      const Through<T> end{at.input<T>(kY), at.input<int8_t>(kMask), static_cast<T>(scale), at.output<T>(0)};
      if (!library) return multiply<T>(at.stream, sizes, at.inputs[kGradient], at.inputs[kWeight], end);
      (*library)(at, at.outputs[0]);
      for_each(at.stream, sizes.rows * sizes.columns, end);
    };
  });
}

}  // namespace

void add_dense_back(Kernels& kernels) {
  const std::shared_ptr<Products> products = make_products();
  kernels["dense_input_grad"] = {{[products](KernelCall& call) { return prepare(*products, call); }}};
}

}  // namespace moonflow::cuda
