// Matrix products on CUDA: matmul, dense, and the steps of gradient descent whose gradient is a product. Large products
// are the library's (kernels/cuda/product.h). Kernels of our own take the others: sizes for which the library is no
// faster or has nothing, factors of two dtypes, and results that change a variable, since those must be left alone
// after a fault; and small ones in TF32, for which the library wants two launches.
#include "kernels/cuda/fault.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/library_product.h"
#include "kernels/cuda/split_product.h"

namespace moonflow::cuda {
namespace {

// ---- results -------------------------------------------------------------------------------------------------

// What becomes of a sum: it is stored, with bias and relu. Half: what is narrow of these.
template <class T, class Half>
struct Store {
  void* out;
  const void* bias;  // one per column, or none
  bool narrow, narrow_bias, relu;
  MOONFLOW_DEVICE bool begins() const { return true; }
  MOONFLOW_DEVICE void operator()(int64_t place, int64_t column, T sum) const {
    if (bias) {
      sum += narrow_bias ? static_cast<T>(static_cast<float>(static_cast<const Half*>(bias)[column]))
                         : static_cast<const T*>(bias)[column];
    }
    if (relu && sum < 0) sum = 0;
    if (narrow)
      static_cast<Half*>(out)[place] = Half(static_cast<float>(sum));
    else
      static_cast<T*>(out)[place] = sum;
  }
};

// It is a gradient, and the variable goes down along it.
template <class T>
struct Descend {
  T* variable;
  const float* learning_rate;
  T scale;
  const FaultNote* note;
  MOONFLOW_DEVICE bool begins() const { return note->found == 0; }
  MOONFLOW_DEVICE void operator()(int64_t place, int64_t, T sum) const {
    variable[place] -= static_cast<T>(*learning_rate) * scale * sum;
  }
};

// The same along a gradient that is stored.
struct DescendAlong {
  const float *gradient, *learning_rate;
  float scale;
  const FaultNote* note;
  float* variable;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    if (note->found == 0) variable[i] -= *learning_rate * scale * gradient[i];
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

Launch prepare_product(Products& products, const Product& sizes, bool bias, bool relu, KernelCall& call) {
  const bool mixed = !call.attrs.string("mixed").empty();
  const Stored stored{is_narrow(call.inputs[0].dtype), is_narrow(call.inputs[1].dtype), mixed};
  const DType in = mixed ? call.attrs.dtype("rounds_to") : call.inputs[0].dtype, out = call.outputs[0].dtype;
  const bool all_float32 = in == DType::Float32 && out == in && !stored.any() && (!bias || call.inputs[2].dtype == in);
  if (all_float32 && call.allow_tf32 && wants_library(sizes) && splits_well(sizes) && has_tensor_cores(call.device)) {
    return [=](const LaunchCall& at) {
      using Kernel = SplitProduct<Store<float, BFloat16>>;
      const Kernel kernel{
          at.input<float>(0), at.input<float>(1), {at.outputs[0], bias ? at.inputs[2] : nullptr, false, false, relu},
          sizes.rows,         sizes.columns,      sizes.inner};
      launch(at.stream, Kernel::blocks(sizes), kernel, Kernel::kSharedBytes);
    };
  }
  if (wants_library(sizes)) {
    const LibraryProduct product(products, sizes, call, 0, in, out, bias, relu, 0);
    if (product) {
      call.scratch_bytes = product.scratch_end();
      return [product](const LaunchCall& at) { product(at, at.outputs[0]); };
    }
  }
  const bool narrow_bias = bias && is_narrow(call.inputs[2].dtype), narrow_out = is_narrow(out);
  if (!stored.any()) {
    return visit_floating(in, [&](auto zero) -> Launch {
      using T = decltype(zero);
      return [=](const LaunchCall& at) {
        multiply<T>(at.stream, sizes, at.inputs[0], at.inputs[1],
                    Store<T, BFloat16>{at.outputs[0], bias ? at.inputs[2] : nullptr, narrow_out, narrow_bias, relu});
      };
    });
  }
  return visit_narrow(in, [&](auto narrow) -> Launch {
    using Half = decltype(narrow);
    return [=](const LaunchCall& at) {
      multiply_narrow<Half>(
          at.stream, sizes, stored, at.inputs[0], at.inputs[1],
          Store<float, Half>{at.outputs[0], bias ? at.inputs[2] : nullptr, narrow_out, narrow_bias, relu});
    };
  });
}

// variable -= learning_rate * gradient_scale * a b. A large product is left to the library, and its result in scratch.
Launch prepare_update(Products& products, bool rounds, KernelCall& call) {
  const bool transpose_b = call.attrs.find("transpose_b") != nullptr && call.attrs.flag("transpose_b");
  const Product sizes =
      product(call.inputs[1].shape, call.inputs[2].shape, call.attrs.flag("transpose_a"), transpose_b);
  const double scale = call.attrs.number("gradient_scale");
  const Stored stored{is_narrow(call.inputs[1].dtype), is_narrow(call.inputs[2].dtype), rounds};
  if (call.inputs[0].dtype == DType::Float64) {
    return [=](const LaunchCall& at) {
      multiply<double>(
          at.stream, sizes, at.inputs[1], at.inputs[2],
          Descend<double>{static_cast<double*>(at.inputs[0]), at.input<float>(3), scale, fault_note(at.stream)});
    };
  }
  const int64_t count = sizes.rows * sizes.columns;
  if (stores_gradient(sizes)) {
    const int64_t gradient_bytes = aligned(count * static_cast<int64_t>(sizeof(float)));
    const DType in = rounds ? DType::BFloat16 : call.inputs[1].dtype;
    const LibraryProduct product(products, sizes, call, 1, in, DType::Float32, false, false, gradient_bytes);
    if (product) {
      call.scratch_bytes = product.scratch_end();
      return [=](const LaunchCall& at) {
        product(at, at.scratch);
        for_each(at.stream, count,
                 DescendAlong{static_cast<const float*>(at.scratch), at.input<float>(3), static_cast<float>(scale),
                              fault_note(at.stream), static_cast<float*>(at.inputs[0])});
      };
    }
  }
  return [=](const LaunchCall& at) {
    const Descend<float> descend{static_cast<float*>(at.inputs[0]), at.input<float>(3), static_cast<float>(scale),
                                 fault_note(at.stream)};
    if (stored.any()) return multiply_narrow<BFloat16>(at.stream, sizes, stored, at.inputs[1], at.inputs[2], descend);
    multiply<float>(at.stream, sizes, at.inputs[1], at.inputs[2], descend);
  };
}

}  // namespace

void add_matmul(Kernels& kernels) {
  const std::shared_ptr<Products> products = make_products();
  const auto matmul = [products](KernelCall& call) {
    return prepare_product(*products, matmul_product(call.attrs, call.inputs[0].shape, call.inputs[1].shape), false,
                           false, call);
  };
  const auto dense = [products](KernelCall& call) {
    return prepare_product(*products, dense_product(call.inputs[0].shape, call.inputs[1].shape), call.has(2),
                           call.attrs.string("activation") == "relu", call);
  };
  kernels["matmul"] = {{matmul}, true};
  kernels["dense"] = {{dense}, true};
  kernels["matmul_sgd_update"] = {{[products](KernelCall& call) { return prepare_update(*products, false, call); }}};
  kernels["matmul_bfloat16_sgd_update"] = {
      {[products](KernelCall& call) { return prepare_update(*products, true, call); }}, true};
}

}  // namespace moonflow::cuda
