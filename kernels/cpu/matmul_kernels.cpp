// Products small and large, of stacks, of few rows or few columns, in private layouts, mostly of zeros: each has the
// kernel that is fastest for it.
#include "kernels/cpu/matmul_kernels.h"

#include "kernels/catalog.h"
#include "kernels/cpu/blocked.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/matmul_bfloat16.h"
#include "kernels/cpu/matmul_few_rows.h"
#include "kernels/cpu/matmul_quantized.h"
#include "kernels/cpu/matmul_sparse.h"
#include "kernels/cpu/matmul_stack.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/cpu/narrow.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/simd.h"
#include "kernels/types.h"

namespace moonflow::cpu {
namespace {

template <class T>
void finish_rows(const Product& sizes, Finish finish, const T* bias, T* out) {
  if (!finish.bias && !finish.relu) return;
  parallel_for(sizes.batch * sizes.rows, kGrain / std::max<int64_t>(1, sizes.columns) + 1,
               [=](int64_t first, int64_t last) {
                 for (int64_t i = first; i < last; ++i) {
                   T* row = out + i * sizes.columns;
                   finish_row(row, sizes.columns, finish.bias ? bias : nullptr, finish.relu, row);
                 }
               });
}

// A launch of `multiply`(a, b, out, scratch), and what is to follow the product.
template <class T, class Multiply>
Launch finished(const Product& sizes, Finish finish, Multiply multiply) {
  return [sizes, finish, multiply](const LaunchCall& call) mutable {
    T* out = call.output<T>(0);
    multiply(call.input<T>(0), call.input<T>(1), out, call.scratch);
    finish_rows(sizes, finish, finish.bias ? call.input<T>(2) : nullptr, out);
  };
}

// ---- kernels -----------------------------------------------------------------------------------------------------

template <class T>
Launch prepare_packed(const Product& product, Finish finish, KernelCall& call) {
  const PackedSizes sizes = packed_sizes(product);
  call.scratch_bytes = packed_scratch_bytes<T>(sizes);
  return [=](const LaunchCall& at) {
    PackedResult<T> result = packed_result(product, at.output<T>(0));
    result.bias = finish.bias ? at.input<T>(2) : nullptr;
    result.relu = finish.relu;
    multiply_packed(sizes, left_factor(product, at.input<T>(0)), right_factor(product, at.input<T>(1)), result,
                    at.scratch);
  };
}

// Up to this many rows the product is bound by reading b once, along its rows where it can.
constexpr int64_t kFewRows = 8;
// So many weights have to be read for it that fewer bytes of each pay.
constexpr int64_t kLeastWeights = 1 << 15;

// Whether it sums along rows of both factors as they lie. A single row or column lies as its transpose does.
bool is_along_rows(const Product& sizes) {
  return (!sizes.transpose_a || sizes.rows == 1) && (sizes.transpose_b || sizes.columns == 1);
}

// A matrix times a vector is a single row times a matrix, turned over: the vector and the result lie as before.
bool is_turned(const Product& sizes) { return sizes.batch == 1 && sizes.columns == 1 && sizes.rows > kFewRows; }
Product turned_over(const Product& sizes) {
  return {1, sizes.columns, sizes.rows, sizes.inner, !sizes.transpose_b, !sizes.transpose_a};
}

// Every other launch begins at the end of the matrix. Reading one that is larger than a core's cache in the same order
// every time finds nothing of it there, since what comes last drives out what comes first; to and fro, each launch
// finds what the one before has read last.
template <class T>
auto along_rows(const Product& sizes) {
  return [sizes, backwards = false](const T* a, const T* b, T* out, void*) mutable {
    multiply_few_rows(sizes.rows, sizes.columns, sizes.inner, a, b, out, backwards);
    backwards = !backwards;
  };
}

// A product that is over when its larger factor has been read; nothing where it is another.
template <class T>
Launch prepare_few_rows(const Product& sizes, Finish finish) {
  constexpr int64_t kLeastColumns = 16;  // which pay for registers across them
  if (sizes.batch > 1 || sizes.inner == 0) return {};
  const bool turned = is_turned(sizes);
  const Product read = turned ? turned_over(sizes) : sizes;
  const auto launch = [&](auto multiply) {
    return finished<T>(sizes, finish, [turned, multiply](const T* a, const T* b, T* out, void* scratch) mutable {
      multiply(turned ? b : a, turned ? a : b, out, scratch);
    });
  };
  if (read.rows <= kFewRows && is_along_rows(read)) return launch(along_rows<T>(read));
  if (read.transpose_b || read.rows > kRowsAcross || read.columns < kLeastColumns) return {};
  return launch([read](const T* a, const T* b, T* out, void*) { multiply_rows_across(read, a, b, out); });
}

// ---- a weight in panels ----
// A weight that a plan only reads is laid out once, as the tiles of a product read it, and kept.

// Panels of kPanelLanes rows of the weight, side by side.
Layout panel_layout(const TensorType& weight) {
  return layout_of(Blocked::dense(weight.shape.dims(), {0, 1}, 0, kPanelLanes), weight);
}

// A weight that is kept in 8 bits, for a product whose time is that of reading it.
Launch prepare_quantized(const Product& sizes, Finish finish, KernelCall& call) {
  call.scratch_bytes = quantized_scratch_bytes(sizes);
  return finished<float>(sizes, finish,
                         [sizes, backwards = false](const float* a, const float* b, float* out, void* scratch) mutable {
                           multiply_quantized(sizes, a, b, out, scratch, backwards);
                           backwards = !backwards;
                         });
}

Launch prepare_panels(const Product& sizes, Finish finish) {
  return [sizes, finish](const LaunchCall& call) {
    multiply_panels(sizes, call.input<float>(0), call.input<float>(1), finish.bias ? call.input<float>(2) : nullptr,
                    finish.relu, call.output<float>(0));
  };
}

// A product of few columns, each the sum of many terms, packs nothing; of more than a handful, of more terms still.
bool has_few_columns(const Product& sizes) {
  constexpr int64_t kHandful = 4, kFewColumns = 16, kManyTerms = 64, kMoreTerms = 256;
  return sizes.batch == 1 && !sizes.transpose_a && sizes.transpose_b && sizes.columns <= kFewColumns &&
         sizes.inner >= (sizes.columns <= kHandful ? kManyTerms : kMoreTerms);
}

Launch prepare_few_columns(const Product& sizes, Finish finish) {
  return finished<float>(sizes, finish, [sizes](const float* a, const float* b, float* out, void*) {
    multiply_few_columns(sizes.rows, sizes.columns, sizes.inner, a, b, out);
  });
}

// A product this small is over before a second thread would be at work, and on a busy machine much sooner.
constexpr double kSmallFlops = 2e6;

// As it is small, each of the tiles' numbers is near where it lies.
Launch prepare_small(const Product& sizes, Finish finish, KernelCall& call) {
  call.scratch_bytes = spread_scratch_bytes(sizes);
  return finished<float>(sizes, finish, [sizes](const float* a, const float* b, float* out, void* scratch) {
    multiply_spread(sizes, a, b, out, static_cast<float*>(scratch));
  });
}

// Where b^T has to be turned over for a few tiles of rows, turning the smaller factor will do. That has to fit into
// half of the second cache, and to turn it and the result must be little beside the product. So must be the rows that
// fill no tile, which with AVX-512 is as wide as two of AVX2.
bool turns(const Product& sizes) {
  constexpr int64_t kLeastRows = 32, kLeastColumns = 256, kLeastTerms = 512, kMost = 1 << 17, kTile = 32, kRest = 8;
  return sizes.batch == 1 && !sizes.transpose_a && sizes.transpose_b && sizes.rows >= kLeastRows &&
         sizes.columns >= kLeastColumns && sizes.inner >= kLeastTerms && sizes.rows * sizes.inner <= kMost &&
         (simd() != Simd::Avx512 || sizes.rows % kTile <= kRest);
}

Launch prepare_turned(const Product& sizes, Finish finish, KernelCall& call) {
  call.scratch_bytes = turned_scratch_bytes(sizes);
  return [sizes, finish](const LaunchCall& at) {
    multiply_turned(sizes, at.input<float>(0), at.input<float>(1), finish.bias ? at.input<float>(2) : nullptr,
                    finish.relu, at.output<float>(0), static_cast<float*>(at.scratch));
  };
}

Launch prepare_stack(const Product& sizes, Finish finish, KernelCall& call) {
  call.scratch_bytes = stack_scratch_bytes(sizes);
  return finished<float>(sizes, finish, [sizes](const float* a, const float* b, float* out, void* scratch) {
    multiply_stack(sizes, a, b, out, static_cast<float*>(scratch));
  });
}

// The kernel that has been chosen, unless a factor turns out to be mostly zeros.
Launch unless_sparse(const SparseProduct& sparse, const Product& sizes, Finish finish, KernelCall& call, Launch dense) {
  if (sizes.batch > 1 || !sparse.may_pay()) return dense;
  call.scratch_bytes = std::max(call.scratch_bytes, sparse.scratch_bytes());
  return [=](const LaunchCall& at) {
    float* out = at.output<float>(0);
    if (!multiply_sparse(sparse, at.input<float>(0), at.input<float>(1), out, at.scratch)) return dense(at);
    finish_rows(sizes, finish, finish.bias ? at.input<float>(2) : nullptr, out);
  };
}

Launch prepare_float32(const Product& sizes, Finish finish, KernelCall& call) {
  if (sizes.inner == 0) return prepare_packed<float>(sizes, finish, call);
  if (is_quantized(call.input_layouts[1])) return prepare_quantized(sizes, finish, call);
  if (!call.input_layouts[1].row_major())
    return unless_sparse({sizes, true}, sizes, finish, call, prepare_panels(sizes, finish));
  const bool tiny = is_small_stack(sizes);
  if (tiny && sizes.batch > 1) return prepare_stack(sizes, finish, call);
  if (Launch few_rows = prepare_few_rows<float>(sizes, finish)) return few_rows;
  const bool small = flops_of(sizes) < kSmallFlops;
  if (small && sizes.batch == 1 && !sizes.transpose_b) return prepare_small(sizes, finish, call);
  if (small && has_few_columns(sizes)) return prepare_few_columns(sizes, finish);
  if (tiny) return prepare_stack(sizes, finish, call);
  Launch dense = turns(sizes) ? prepare_turned(sizes, finish, call) : prepare_packed<float>(sizes, finish, call);
  return small || sizes.rows <= kFewRows ? dense : unless_sparse({sizes}, sizes, finish, call, std::move(dense));
}

Launch prepare_float64(const Product& sizes, Finish finish, KernelCall& call) {
  if (Launch few_rows = prepare_few_rows<double>(sizes, finish)) return few_rows;
  return prepare_packed<double>(sizes, finish, call);
}

Launch prepare_wide_product(const Product& sizes, Finish finish, KernelCall& call) {
  return call.inputs[0].dtype == DType::Float64 ? prepare_float64(sizes, finish, call)
                                                : prepare_float32(sizes, finish, call);
}

// What the factors are, or are rounded to: bfloat16 or float16, or nothing of the kind.
std::optional<DType> narrow_dtype(const KernelCall& call) {
  if (!call.attrs.string("mixed").empty()) return call.attrs.dtype("rounds_to");
  if (is_narrow(call.inputs[0].dtype)) return call.inputs[0].dtype;
  return std::nullopt;
}

// float16 has no kernel of its own here: it is widened.
Launch prepare_narrow_product(const Product& sizes, Finish finish, DType narrow, KernelCall& call) {
  if (narrow != DType::BFloat16 || !multiplies_bfloat16() || sizes.inner == 0) {
    const Kernel wide{[=](KernelCall& wide_call) { return prepare_wide_product(sizes, finish, wide_call); }};
    return widened(wide, {}).prepare(call);
  }
  const auto is_stored_narrow = [](const TensorType& type) { return type.dtype == DType::BFloat16; };
  const NarrowProduct product{sizes.batch,
                              sizes.rows,
                              sizes.columns,
                              sizes.inner,
                              sizes.transpose_a,
                              sizes.transpose_b,
                              is_stored_narrow(call.inputs[0]),
                              is_stored_narrow(call.inputs[1]),
                              is_stored_narrow(call.outputs[0])};
  const bool widens_bias = finish.bias && is_stored_narrow(call.inputs[2]);
  const int64_t product_bytes = aligned(narrow_scratch_bytes(product));
  call.scratch_bytes = product_bytes + (widens_bias ? sizes.columns * static_cast<int64_t>(sizeof(float)) : 0);
  return [=](const LaunchCall& at) {
    NarrowEnding ending;
    ending.relu = finish.relu;
    if (finish.bias) ending.bias = at.input<float>(2);
    if (widens_bias) {
      float* const bias = reinterpret_cast<float*>(static_cast<char*>(at.scratch) + product_bytes);
      widen(at.input<BFloat16>(2), bias, sizes.columns);
      ending.bias = bias;
    }
    multiply_narrow(product, at.inputs[0], at.inputs[1], ending, at.outputs[0], at.scratch);
  };
}

}  // namespace

Launch prepare_product(const Product& sizes, Finish finish, KernelCall& call) {
  if (call.outputs[0].count() == 0) return [](const LaunchCall&) {};  // it may have many rows, of no elements
  const std::optional<DType> narrow = narrow_dtype(call);
  return narrow ? prepare_narrow_product(sizes, finish, *narrow, call) : prepare_wide_product(sizes, finish, call);
}

void choose_layouts(LayoutCall& call, const Product& sizes) {
  const bool in_rows = call.inputs[1].row_major();
  std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
  const bool is_float32 = call.input_types[0].dtype == DType::Float32 && call.input_types[1].dtype == DType::Float32 &&
                          call.attrs.string("mixed").empty();
  const bool a_in_rows = !sizes.transpose_a || sizes.rows == 1;
  if (!call.lasting[1] || !is_float32 || !a_in_rows || sizes.batch > 1) return;
  if (sizes.rows <= kFewRows) {
    if (call.quantizes_weights && in_rows && sizes.inner * sizes.columns >= kLeastWeights)
      call.inputs[1] = quantized_layout(sizes);
  } else if (sizes.columns >= 2 * kPanelLanes && sizes.inner > 0 && sizes.transpose_b) {
    call.inputs[1] = panel_layout(call.input_types[1]);
  }
}

// Packing and rounding must be little beside the product. Of a few rows they are not: there the gain is that half as
// much is read of a weight that has been rounded before.
bool narrow_pays(const Product& sizes, DType narrow, DType b) {
  constexpr double kLeastFlops = 4e6;
  if (narrow != DType::BFloat16 || !multiplies_bfloat16()) return false;
  if (sizes.batch > 1 || sizes.rows > kFewRows) return flops_of(sizes) >= kLeastFlops;
  return b == narrow && sizes.transpose_b && !sizes.transpose_a && sizes.inner * sizes.columns >= kLeastWeights;
}

}  // namespace moonflow::cpu
