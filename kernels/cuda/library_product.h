// Products by NVIDIA's library as kernels launch them: with factors in the dtype that it wants.
#pragma once

#include "kernels/cuda/activate.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/tiles.h"

namespace moonflow::cuda {

// From here on the library is worth its launch, unless a side is so short that its tiles would be mostly edge.
inline bool wants_library(const Product& s) {
  constexpr double kLeastFlops = 4e6;
  return flops_of(s) >= kLeastFlops && s.rows > 4 && s.columns > 16 && !wants_dots(s);
}

// Whether a gradient that goes into a variable is left to the library, which stores it first. Up to here the product
// costs less than storing the gradient and reading it again.
inline bool stores_gradient(const Product& s) {
  constexpr double kMostFlopsPerElement = 256;
  return wants_library(s) && flops_of(s) > kMostFlopsPerElement * static_cast<double>(s.rows * s.columns);
}

// Products by the library of what `call` has at the places 0, 1 and (a bias) 2 of its inputs from `first` on: factors
// of `in`, a bias and a result of `out`, with relu if that is said. What is to be narrow and is float32 is rounded into
// scratch first. The scratch that the launch uses begins at `scratch_begin`.
class LibraryProduct {
 public:
  LibraryProduct(Products& products, const Product& sizes, const KernelCall& call, int first, DType in, DType out,
                 bool bias, bool relu, int64_t scratch_begin)
      : in_(in),
        out_(out),
        count_(sizes.batch * sizes.rows * sizes.columns),
        activation_(relu ? Activation::Relu : Activation::None),
        first_(first),
        scratch_begin_(scratch_begin) {
    ProductCall wanted{sizes, in, out, bias};
    if (call.allow_tf32 && in == DType::Float32) wanted.precision = Precision::Tf32;
    wanted.timed_on = &call.device;
    int64_t product_scratch = 0;
    launch_ = products.prepare(wanted, product_scratch);
    int64_t end = scratch_begin + aligned(product_scratch);
    for (int i = 0; i < 3; ++i) {
      if (i == 2 && !bias) break;
      const TensorType& type = call.inputs[first + i];
      rounded_[i] = type.dtype == DType::Float32 && is_narrow(i == 2 ? out : in);
      places_[i] = end;
      counts_[i] = type.count();
      if (rounded_[i]) end += aligned(counts_[i] * size_of(in));
    }
    scratch_end_ = end;
  }

  explicit operator bool() const { return static_cast<bool>(launch_); }
  int64_t scratch_end() const { return scratch_end_; }

  void operator()(const LaunchCall& at, void* out) const {
    char* const scratch = static_cast<char*>(at.scratch);
    const void* inputs[3] = {at.inputs[first_], at.inputs[first_ + 1], nullptr};
    if (counts_[2] > 0) inputs[2] = at.inputs[first_ + 2];
    for (int i = 0; i < 3; ++i) {
      if (!rounded_[i]) continue;
      visit_narrow(in_, [&](auto zero) {
        using Half = decltype(zero);
        for_each(at.stream, counts_[i],
                 Round<Half>{static_cast<const float*>(inputs[i]), reinterpret_cast<Half*>(scratch + places_[i])});
      });
      inputs[i] = scratch + places_[i];
    }
    launch_(at.stream, {inputs[0], inputs[1], inputs[2], out, scratch + scratch_begin_});
    activate(at.stream, activation_, out_, count_, out);
  }

 private:
  ProductLaunch launch_;
  DType in_, out_;
  int64_t count_;  // of the result
  Activation activation_;
  int first_;
  bool rounded_[3] = {};
  int64_t places_[3] = {}, counts_[3] = {};
  int64_t scratch_begin_, scratch_end_ = 0;
};

}  // namespace moonflow::cuda
