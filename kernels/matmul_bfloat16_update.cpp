// A step of gradient descent whose gradient is a product in bfloat16, as that of a dense layer's weight is in mixed
// precision: it goes into the weight as it is summed, so it is never stored, and the weight is read and written once.
// The fusion that makes it is in matmul_update.cpp.
#include <algorithm>

#include "kernels/catalog.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_bfloat16.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

cpu::NarrowProduct product_of(const Attrs& attrs, const TensorType& a, const TensorType& b) {
  cpu::NarrowProduct product;
  product.transpose_a = attrs.flag("transpose_a");
  product.transpose_b = attrs.flag("transpose_b");
  product.rows = a.shape[product.transpose_a ? 1 : 0];
  product.inner = a.shape[product.transpose_a ? 0 : 1];
  product.columns = b.shape[product.transpose_b ? 0 : 1];
  product.narrow_a = a.dtype == DType::BFloat16;
  product.narrow_b = b.dtype == DType::BFloat16;
  return product;
}

std::vector<TensorType> infer_update(const OpCall& call) {
  for (int i = 1; i < 3; ++i) {
    require(call.dtype(i) == DType::Float32 || call.dtype(i) == DType::BFloat16, ErrorCode::DtypeMismatch,
            "needs factors of float32 or bfloat16, got ", call.dtype(i));
    require(call.shape(i).rank() == 2, ErrorCode::ShapeMismatch, "a factor is ", call.shape(i), ", wanted a matrix");
  }
  const cpu::NarrowProduct product = product_of(call.attrs, call.type(1), call.type(2));
  require(call.shape(2)[product.transpose_b ? 1 : 0] == product.inner, ErrorCode::ShapeMismatch,
          "inner sizes differ: a is ", call.shape(1), ", b is ", call.shape(2));
  require_type(call, 0, "variable", f32({product.rows, product.columns}));
  require_type(call, 3, "learning_rate", f32({}));
  return {};
}

// For processors that lack the instruction: down along each of the gradient's terms in turn, row by row.
template <class A, class B>
void descend(const cpu::NarrowProduct& product, const A* a, const B* b, float factor, float* variable) {
  const int64_t a_row = product.transpose_a ? 1 : product.inner, a_step = product.transpose_a ? product.rows : 1;
  const int64_t b_row = product.transpose_b ? 1 : product.columns, b_step = product.transpose_b ? product.inner : 1;
  const int64_t work = std::max<int64_t>(1, product.inner * product.columns);
  cpu::parallel_for(product.rows, cpu::kGrain / work + 1, [=, &product](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int64_t k = 0; k < product.inner; ++k) {
        const float down = factor * static_cast<float>(a[i * a_row + k * a_step]);
        for (int64_t j = 0; j < product.columns; ++j)
          variable[i * product.columns + j] -= down * static_cast<float>(b[k * b_row + j * b_step]);
      }
    }
  });
}

Launch prepare_update(KernelCall& call) {
  const cpu::NarrowProduct product = product_of(call.attrs, call.inputs[1], call.inputs[2]);
  const float scale = static_cast<float>(call.attrs.number("gradient_scale"));
  if (cpu::multiplies_bfloat16() && product.inner > 0) {
    call.scratch_bytes = cpu::narrow_scratch_bytes(product);
    return [=](const LaunchCall& launch) {
      cpu::NarrowEnding ending;
      ending.descends = true;
      ending.factor = *launch.input<float>(3) * scale;
      cpu::multiply_narrow(product, launch.inputs[1], launch.inputs[2], ending, launch.inputs[0], launch.scratch);
    };
  }
  return visit_stored(call.inputs[1].dtype, [&](auto a) -> Launch {
    return visit_stored(call.inputs[2].dtype, [&](auto b) -> Launch {
      using A = decltype(a);
      using B = decltype(b);
      return [product, scale](const LaunchCall& launch) {
        descend(product, launch.input<A>(1), launch.input<B>(2), *launch.input<float>(3) * scale,
                static_cast<float*>(launch.inputs[0]));
      };
    });
  });
}

double update_flops(const KernelCall& call) {
  const cpu::NarrowProduct product = product_of(call.attrs, call.inputs[1], call.inputs[2]);
  return 2.0 * static_cast<double>(product.rows * product.columns) * static_cast<double>(product.inner);
}

}  // namespace

void add_matmul_bfloat16_update(Catalog& catalog) {
  OpDef op;
  op.name = "matmul_bfloat16_sgd_update";
  op.doc =
      "Gradient descent along a product whose factors are rounded to bfloat16. Made by fusion, in mixed precision.\n"
      "  variable -= learning_rate * gradient_scale * a b\n"
      "shapes: variable (rows, columns), a (rows, inner), b (inner, columns), or a and b transposed\n"
      "dtypes: a and b float32 or bfloat16; variable float32; learning_rate float32 ()";
  op.inputs = {{"variable"}, {"a"}, {"b"}, {"learning_rate"}};
  op.outputs = {};
  op.attrs = {{"transpose_a", false, "take the transpose of a"},
              {"transpose_b", false, "take the transpose of b"},
              {"gradient_scale", 1.0, "factor of the gradient"}};
  op.infer = infer_update;
  op.writes = {0};
  op.narrow.in_kernels = true;
  op.cpu = {prepare_update};
  op.flops = update_flops;
  op.examples = {
      {{f32({3, 4}), bf16({3, 5}), bf16({5, 4}), f32({})}},
      {{f32({20, 70}), bf16({9, 20}), bf16({9, 70}), f32({})}, {{"transpose_a", true}, {"gradient_scale", 0.1}}},
      {{f32({7, 5}), bf16({7, 32}), bf16({5, 32}), f32({})}, {{"transpose_b", true}}},
  };
  catalog.add(std::move(op));
}

}  // namespace moonflow
