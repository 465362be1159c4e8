// Matrix products: matmul (also batched), and dense, its fusion with bias and relu. The sizes are in matmul_sizes.cpp.
#include "kernels/matmul.h"
#include "engine/graph.h"
#include "engine/rewriter.h"
#include "kernels/catalog.h"
#include "kernels/classifier.h"
#include "kernels/dense_back.h"
#include "kernels/dense_pair.h"
#include "kernels/matmul_bfloat16.h"
#include "kernels/matmul_few_rows.h"
#include "kernels/matmul_sparse.h"
#include "kernels/matmul_stack.h"
#include "kernels/matmul_tiles.h"
#include "kernels/narrow.h"
#include "kernels/primitive.h"
#include "kernels/simd.h"
#include "kernels/types.h"

namespace moonflow {
namespace {

using dnnl::memory;

// ---- meaning -------------------------------------------------------------------------------------------------

AttrDef mixed_attr() {
  return {"mixed", std::string(),
          "of automatic mixed precision: \"float32\", or what `rounds_to` is, the dtype of the result; the inputs may "
          "then be either, are rounded, and the products are summed in float32"};
}
AttrDef rounds_to_attr() {
  return {"rounds_to", DType::BFloat16,
          "of automatic mixed precision: bfloat16 or float16, what the inputs are rounded to"};
}

// The dtype of the result; checks those of the factors.
DType product_dtype(const OpCall& call) {
  if (const std::string& mixed = call.attrs.string("mixed"); !mixed.empty()) {
    const DType narrow = call.attrs.dtype("rounds_to");
    require(is_narrow(narrow), ErrorCode::InvalidArgument, "rounds_to is ", narrow, ", wanted bfloat16 or float16");
    for (int i = 0; i < 2; ++i)
      require(call.dtype(i) == DType::Float32 || call.dtype(i) == narrow, ErrorCode::DtypeMismatch,
              "mixed precision needs float32 or ", narrow, ", got ", call.dtype(i));
    return mixed_dtype(mixed, narrow);
  }
  require(is_floating(call.dtype(0)), ErrorCode::DtypeMismatch, "needs float32 or float64, got ", call.dtype(0));
  require(call.dtype(0) == call.dtype(1), ErrorCode::DtypeMismatch, "the inputs differ in dtype: ", call.dtype(0),
          " and ", call.dtype(1));
  return call.dtype(0);
}

std::vector<TensorType> infer_matmul(const OpCall& call) {
  const DType dtype = product_dtype(call);
  const Product sizes = matmul_product(call.attrs, call.shape(0), call.shape(1));
  Shape shape(call.shape(0).begin(), call.shape(0).end() - 2);
  shape.push_back(sizes.rows);
  shape.push_back(sizes.columns);
  return {{dtype, shape}};
}

std::vector<TensorType> infer_dense(const OpCall& call) {
  const DType dtype = product_dtype(call);
  const Product sizes = dense_product(call.shape(0), call.shape(1));
  const TensorType bias{call.attrs.string("mixed").empty() ? dtype : DType::Float32, {sizes.columns}};
  require(!call.has(2) || call.type(2) == bias, ErrorCode::ShapeMismatch, "bias is ", call.has(2) ? call.type(2) : bias,
          ", wanted ", bias);
  const std::string& activation = call.attrs.string("activation");
  require(activation == "none" || activation == "relu", ErrorCode::InvalidArgument, "activation is \"", activation,
          "\", wanted \"none\" or \"relu\"");
  return {{dtype, {sizes.rows, sizes.columns}}};
}

// ---- gradients -------------------------------------------------------------------------------------------------

// With y = a' b': da' = dy b'^T and db' = a'^T dy, transposed again where a' or b' is a transpose.
std::vector<ValueId> grad_matmul(GradCall& call) {
  const ValueId a = call.inputs[0], b = call.inputs[1], dy = call.grads[0];
  const bool ta = call.attrs.flag("transpose_a"), tb = call.attrs.flag("transpose_b");
  const auto matmul = [&](ValueId left, ValueId right, bool transpose_left, bool transpose_right) {
    return call.op("matmul", {left, right}, {{"transpose_a", transpose_left}, {"transpose_b", transpose_right}});
  };
  return {ta ? matmul(b, dy, tb, true) : matmul(dy, b, false, !tb),
          tb ? matmul(dy, a, true, ta) : matmul(a, dy, !ta, false)};
}

// ---- kernels ---------------------------------------------------------------------------------------------------

// What happens to each element of the product before it is stored.
struct Finish {
  bool bias = false;  // one per column
  bool relu = false;
};

template <class T>
void finish_rows(const Product& sizes, Finish finish, const T* bias, T* out) {
  if (!finish.bias && !finish.relu) return;
  for (int64_t i = 0; i < sizes.batch * sizes.rows; ++i) {
    T* row = out + i * sizes.columns;
    for (int64_t j = 0; j < sizes.columns; ++j) {
      const T y = finish.bias ? row[j] + bias[j] : row[j];
      row[j] = finish.relu && y < 0 ? T(0) : y;
    }
  }
}

// Plain loops, for float64 and for sizes that oneDNN does not know. Each row is one thread's, summed in order of k.
template <class T>
void multiply(const Product& sizes, const T* a, const T* b, T* out) {
  const int64_t a_row = sizes.transpose_a ? 1 : sizes.inner, a_inner = sizes.transpose_a ? sizes.rows : 1;
  const auto multiply_row = [&](int64_t index) {
    const int64_t n = index / sizes.rows, i = index % sizes.rows;
    const T* left = a + n * sizes.rows * sizes.inner + i * a_row;
    const T* right = b + n * sizes.inner * sizes.columns;
    T* row = out + index * sizes.columns;
    if (sizes.transpose_b) {
      for (int64_t j = 0; j < sizes.columns; ++j) {
        T sum = 0;
        for (int64_t k = 0; k < sizes.inner; ++k) sum += left[k * a_inner] * right[j * sizes.inner + k];
        row[j] = sum;
      }
      return;
    }
    std::fill(row, row + sizes.columns, T(0));
    for (int64_t k = 0; k < sizes.inner; ++k) {
      const T factor = left[k * a_inner];
      for (int64_t j = 0; j < sizes.columns; ++j) row[j] += factor * right[k * sizes.columns + j];
    }
  };
  const int64_t work = std::max<int64_t>(1, sizes.inner * sizes.columns);
  cpu::parallel_for(sizes.batch * sizes.rows, std::max<int64_t>(1, cpu::kGrain / work),
                    [&](int64_t first, int64_t last) {
                      for (int64_t i = first; i < last; ++i) multiply_row(i);
                    });
}

Launch prepare_loops(const Product& sizes, Finish finish, DType dtype) {
  return visit_floating(dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [sizes, finish](const LaunchCall& call) {
      T* out = call.output<T>(0);
      multiply(sizes, call.input<T>(0), call.input<T>(1), out);
      finish_rows(sizes, finish, finish.bias ? call.input<T>(2) : nullptr, out);
    };
  });
}

// Up to this many rows the product is bound by reading b once, and kernels that pack nothing are up to four times
// faster than the matmul primitive; from 16 rows on it is the other way round.
constexpr int64_t kFewRows = 8;

// Every other launch begins at the end of the matrix. Reading one that is larger than a core's cache in the same order
// every time finds nothing of it there, since what comes last drives out what comes first; to and fro, each launch
// finds what the one before has read last.
Launch prepare_few_rows(const Product& sizes, Finish finish) {
  return [sizes, finish, backwards = false](const LaunchCall& call) mutable {
    float* out = call.output<float>(0);
    cpu::multiply_few_rows(sizes.rows, sizes.columns, sizes.inner, call.input<float>(0), call.input<float>(1), out,
                           backwards);
    backwards = !backwards;
    finish_rows(sizes, finish, finish.bias ? call.input<float>(2) : nullptr, out);
  };
}

void multiply_across(const Product& sizes, const float* a, const float* b, float* out) {
  const dnnl::status status =
      dnnl::sgemm(sizes.transpose_a ? 'T' : 'N', sizes.transpose_b ? 'T' : 'N', sizes.rows, sizes.columns, sizes.inner,
                  1.0f, a, sizes.transpose_a ? sizes.rows : sizes.inner, b,
                  sizes.transpose_b ? sizes.inner : sizes.columns, 0.0f, out, sizes.columns);
  require(status == dnnl::status::success, ErrorCode::Unsupported, "oneDNN could not multiply, status ",
          static_cast<int>(status));
}

// The other ways round, which gradients have. oneDNN makes its kernels in the first call of this kind, so that call
// belongs here: in a launch it would allocate, and might do so while the process ends.
Launch prepare_few_rows_across(const Product& sizes, Finish finish) {
  constexpr int64_t kMost = 32;
  Product small = sizes;
  for (int64_t* size : {&small.rows, &small.columns, &small.inner}) *size = std::min(*size, kMost);
  const std::vector<float> zeros(kMost * kMost);
  std::vector<float> out(kMost * kMost);
  multiply_across(small, zeros.data(), zeros.data(), out.data());
  return [sizes, finish](const LaunchCall& call) {
    float* out = call.output<float>(0);
    multiply_across(sizes, call.input<float>(0), call.input<float>(1), out);
    finish_rows(sizes, finish, finish.bias ? call.input<float>(2) : nullptr, out);
  };
}

// A stack of matrices of (rows, columns), or of the transpose of what is stored.
memory::desc matrices(int64_t batch, int64_t rows, int64_t columns, bool transposed) {
  memory::dims dims{rows, columns};
  memory::dims strides = transposed ? memory::dims{1, rows} : memory::dims{columns, 1};
  if (batch > 1) {
    dims.insert(dims.begin(), batch);
    strides.insert(strides.begin(), rows * columns);
  }
  return {dims, memory::data_type::f32, strides};
}

Launch prepare_primitive(const Product& sizes, Finish finish, KernelCall& call) {
  const memory::desc a = matrices(sizes.batch, sizes.rows, sizes.inner, sizes.transpose_a);
  const memory::desc b = matrices(sizes.batch, sizes.inner, sizes.columns, sizes.transpose_b);
  const memory::desc out = matrices(sizes.batch, sizes.rows, sizes.columns, false);
  const memory::desc bias = matrices(1, 1, sizes.columns, false);
  const dnnl::matmul::primitive_desc desc(
      finish.bias ? dnnl::matmul::desc(a, b, bias, out) : dnnl::matmul::desc(a, b, out),
      cpu::attributes(finish.relu ? Activation::Relu : Activation::None), cpu::dnnl_engine(call.device));
  cpu::PrimitiveLaunch launch(call, dnnl::matmul(desc), desc.scratchpad_desc());
  launch.read(DNNL_ARG_SRC, 0, a, a);
  launch.read(DNNL_ARG_WEIGHTS, 1, b, b);
  if (finish.bias) launch.read(DNNL_ARG_BIAS, 2, bias, bias);
  launch.write(DNNL_ARG_DST, 0, out, out);
  return launch.finish();
}

// ---- a weight in panels ----
// A weight that a plan only reads is laid out once, as the tiles of a product read it, and kept.

// Panels of kPanelLanes rows of the weight, side by side, as a descriptor of oneDNN's, which then reorders.
Layout panel_layout(const TensorType& weight) {
  memory::desc desc = cpu::row_major(weight);
  const int64_t lanes = cpu::kPanelLanes;
  desc.data.padded_dims[0] = (desc.data.dims[0] + lanes - 1) / lanes * lanes;
  dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  blocking.strides[0] = desc.data.dims[1] * lanes;
  blocking.strides[1] = lanes;
  blocking.inner_nblks = 1;
  blocking.inner_blks[0] = lanes;
  blocking.inner_idxs[0] = 0;
  return cpu::layout_of(desc, weight);
}

// A device for real time has none, and could not reorder.
bool has_primitives(Device& device) {
  try {
    cpu::dnnl_engine(device);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

void prefer_panels(LayoutCall& call, const Product& sizes) {
  std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
  const bool fits = call.input_types[0].dtype == DType::Float32 && call.input_types[1].dtype == DType::Float32 &&
                    sizes.batch == 1 && sizes.rows > kFewRows && sizes.columns >= 2 * cpu::kPanelLanes &&
                    sizes.inner > 0 && !sizes.transpose_a && sizes.transpose_b;
  if (fits && call.lasting[1] && has_primitives(call.device)) call.inputs[1] = panel_layout(call.input_types[1]);
}

void matmul_layouts(LayoutCall& call) {
  prefer_panels(call, matmul_product(call.attrs, call.input_types[0].shape, call.input_types[1].shape));
}

void dense_layouts(LayoutCall& call) {
  prefer_panels(call, dense_product(call.input_types[0].shape, call.input_types[1].shape));
}

cpu::ProductSizes tiled_sizes(const Product& product) {
  return {product.rows, product.columns, product.inner, product.transpose_a, product.transpose_b};
}

Launch prepare_panels(const Product& product, Finish finish) {
  const cpu::ProductSizes sizes = tiled_sizes(product);
  return [sizes, finish](const LaunchCall& call) {
    cpu::multiply_panels(sizes, call.input<float>(0), call.input<float>(1),
                         finish.bias ? call.input<float>(2) : nullptr, finish.relu, call.output<float>(0));
  };
}

// Nor does a small product pack anything that has few columns, each the sum of many terms.
bool has_few_columns(const Product& sizes) {
  constexpr int64_t kFewColumns = 16, kManyTerms = 64;
  return sizes.batch == 1 && !sizes.transpose_a && sizes.transpose_b && sizes.columns <= kFewColumns &&
         sizes.inner >= kManyTerms;
}

Launch prepare_few_columns(const Product& sizes, Finish finish) {
  return [sizes, finish](const LaunchCall& call) {
    float* out = call.output<float>(0);
    cpu::multiply_few_columns(sizes.rows, sizes.columns, sizes.inner, call.input<float>(0), call.input<float>(1), out);
    finish_rows(sizes, finish, finish.bias ? call.input<float>(2) : nullptr, out);
  };
}

// A product this small is over before a second thread would be at work, and on a busy machine much sooner.
constexpr double kSmallFlops = 2e6;

Launch prepare_primitive_on_one_thread(const Product& sizes, Finish finish, KernelCall& call) {
  const cpu::ThreadLimit one(1);  // a primitive divides its work when it is made
  return [launch = prepare_primitive(sizes, finish, call)](const LaunchCall& at) {
    const cpu::ThreadLimit one(1);
    launch(at);
  };
}

// As it is small, each of the tiles' numbers is near, and a primitive would take longer to begin.
Launch prepare_small(const Product& product, Finish finish, KernelCall& call) {
  const cpu::ProductSizes sizes = tiled_sizes(product);
  call.scratch_bytes = cpu::spread_scratch_bytes(sizes);
  return [sizes, product, finish](const LaunchCall& at) {
    float* out = at.output<float>(0);
    cpu::multiply_spread(sizes, at.input<float>(0), at.input<float>(1), out, static_cast<float*>(at.scratch));
    finish_rows(product, finish, finish.bias ? at.input<float>(2) : nullptr, out);
  };
}

// Without AVX-512 oneDNN copies nothing of products with results of this size. Where rows are a power of two apart they
// drive each other out of the cache, and it takes up to two and a half times as long as with copies.
bool is_deep(const Product& sizes) {
  constexpr int64_t kApart = 128, kTerms = 256, kMost = 1 << 18;
  if (cpu::simd() == cpu::Simd::Avx512 || sizes.batch > 1 || sizes.transpose_b) return false;
  if (sizes.inner < kTerms || sizes.rows * sizes.columns > kMost) return false;
  constexpr int64_t kFarApart = 512, kLeastRows = 16;  // of b alone
  return sizes.transpose_a ? sizes.rows % kApart == 0 && sizes.columns % kApart == 0
                           : sizes.rows >= kLeastRows && sizes.columns % kFarApart == 0;
}

Launch prepare_deep(const Product& product, Finish finish, KernelCall& call) {
  const cpu::ProductSizes sizes = tiled_sizes(product);
  call.scratch_bytes = cpu::deep_scratch_bytes();
  return [sizes, product, finish](const LaunchCall& at) {
    float* out = at.output<float>(0);
    cpu::multiply_deep(sizes, at.input<float>(0), at.input<float>(1), out, static_cast<float*>(at.scratch));
    finish_rows(product, finish, finish.bias ? at.input<float>(2) : nullptr, out);
  };
}

// Without AVX-512 oneDNN copies both factors of a product a b^T, where copying the smaller one will do. That has to fit
// into half of the second cache, and to turn it and the result must be little beside the product.
bool turns(const Product& sizes) {
  constexpr int64_t kLeastRows = 32, kLeastColumns = 256, kLeastTerms = 512, kMost = 1 << 17;
  return cpu::simd() != cpu::Simd::Avx512 && sizes.batch == 1 && !sizes.transpose_a && sizes.transpose_b &&
         sizes.rows >= kLeastRows && sizes.columns >= kLeastColumns && sizes.inner >= kLeastTerms &&
         sizes.rows * sizes.inner <= kMost;
}

Launch prepare_turned(const Product& product, Finish finish, KernelCall& call) {
  const cpu::ProductSizes sizes = tiled_sizes(product);
  call.scratch_bytes = cpu::turned_scratch_bytes(sizes);
  return [sizes, finish](const LaunchCall& at) {
    cpu::multiply_turned(sizes, at.input<float>(0), at.input<float>(1), finish.bias ? at.input<float>(2) : nullptr,
                         finish.relu, at.output<float>(0), static_cast<float*>(at.scratch));
  };
}

Launch prepare_stack(const Product& sizes, Finish finish, KernelCall& call) {
  call.scratch_bytes = cpu::stack_scratch_bytes(sizes);
  return [sizes, finish](const LaunchCall& at) {
    float* out = at.output<float>(0);
    cpu::multiply_stack(sizes, at.input<float>(0), at.input<float>(1), out, static_cast<float*>(at.scratch));
    finish_rows(sizes, finish, finish.bias ? at.input<float>(2) : nullptr, out);
  };
}

// The kernel that has been chosen, unless a factor turns out to be mostly zeros.
Launch unless_sparse(const cpu::SparseProduct& sparse, const Product& sizes, Finish finish, KernelCall& call,
                     Launch dense) {
  if (sizes.batch > 1 || !sparse.may_pay()) return dense;
  call.scratch_bytes = std::max(call.scratch_bytes, sparse.scratch_bytes());
  return [=](const LaunchCall& at) {
    float* out = at.output<float>(0);
    if (!cpu::multiply_sparse(sparse, at.input<float>(0), at.input<float>(1), out, at.scratch)) return dense(at);
    finish_rows(sizes, finish, finish.bias ? at.input<float>(2) : nullptr, out);
  };
}

Launch prepare_wide_product(const Product& sizes, Finish finish, KernelCall& call) {
  const bool empty = sizes.batch * sizes.rows * sizes.columns == 0 || sizes.inner == 0;
  if (call.inputs[0].dtype != DType::Float32 || empty) return prepare_loops(sizes, finish, call.inputs[0].dtype);
  if (!call.input_layouts[1].row_major())
    return unless_sparse({tiled_sizes(sizes), true}, sizes, finish, call, prepare_panels(sizes, finish));
  const bool tiny = cpu::is_small_stack(sizes);
  if (tiny && sizes.batch > 1) return prepare_stack(sizes, finish, call);
  const bool few = sizes.batch == 1 && sizes.rows <= kFewRows;
  if (few && !sizes.transpose_a && sizes.transpose_b) return prepare_few_rows(sizes, finish);
  try {
    cpu::dnnl_engine(call.device);  // not on a device for real time
    if (few) return prepare_few_rows_across(sizes, finish);
    const bool small = flops_of(sizes) < kSmallFlops;
    if (small && sizes.batch == 1 && !sizes.transpose_b) return prepare_small(sizes, finish, call);
    if (small && has_few_columns(sizes)) return prepare_few_columns(sizes, finish);
    if (tiny) return prepare_stack(sizes, finish, call);
    if (small) return prepare_primitive_on_one_thread(sizes, finish, call);
    Launch dense = is_deep(sizes) ? prepare_deep(sizes, finish, call)
                   : turns(sizes) ? prepare_turned(sizes, finish, call)
                                  : prepare_primitive(sizes, finish, call);
    return unless_sparse({tiled_sizes(sizes)}, sizes, finish, call, std::move(dense));
  } catch (const dnnl::error&) {
    return prepare_loops(sizes, finish, DType::Float32);
  }
}

// What the factors are, or are rounded to: bfloat16 or float16, or nothing of the kind.
std::optional<DType> narrow_dtype(const KernelCall& call) {
  if (!call.attrs.string("mixed").empty()) return call.attrs.dtype("rounds_to");
  if (is_narrow(call.inputs[0].dtype)) return call.inputs[0].dtype;
  return std::nullopt;
}

// float16 has no kernel of its own here: it is widened.
Launch prepare_narrow_product(const Product& sizes, Finish finish, DType narrow, KernelCall& call) {
  if (narrow != DType::BFloat16 || !cpu::multiplies_bfloat16() || sizes.inner == 0) {
    const Kernel wide{[=](KernelCall& wide_call) { return prepare_wide_product(sizes, finish, wide_call); }};
    return cpu::widened(wide, {}).prepare(call);
  }
  const auto is_stored_narrow = [](const TensorType& type) { return type.dtype == DType::BFloat16; };
  const cpu::NarrowProduct product{sizes.batch,
                                   sizes.rows,
                                   sizes.columns,
                                   sizes.inner,
                                   sizes.transpose_a,
                                   sizes.transpose_b,
                                   is_stored_narrow(call.inputs[0]),
                                   is_stored_narrow(call.inputs[1]),
                                   is_stored_narrow(call.outputs[0])};
  const bool widens_bias = finish.bias && is_stored_narrow(call.inputs[2]);
  const int64_t product_bytes = (cpu::narrow_scratch_bytes(product) + kAlignment - 1) / kAlignment * kAlignment;
  call.scratch_bytes = product_bytes + (widens_bias ? sizes.columns * static_cast<int64_t>(sizeof(float)) : 0);
  return [=](const LaunchCall& at) {
    cpu::NarrowEnding ending;
    ending.relu = finish.relu;
    if (finish.bias) ending.bias = at.input<float>(2);
    if (widens_bias) {
      float* const bias = reinterpret_cast<float*>(static_cast<char*>(at.scratch) + product_bytes);
      cpu::widen(at.input<BFloat16>(2), bias, sizes.columns);
      ending.bias = bias;
    }
    cpu::multiply_narrow(product, at.inputs[0], at.inputs[1], ending, at.outputs[0], at.scratch);
  };
}

Launch prepare_product(const Product& sizes, Finish finish, KernelCall& call) {
  const std::optional<DType> narrow = narrow_dtype(call);
  return narrow ? prepare_narrow_product(sizes, finish, *narrow, call) : prepare_wide_product(sizes, finish, call);
}

// Packing and rounding must be little beside the product. Of a few rows they are not: there the gain is that half as
// much is read of a weight that has been rounded before.
bool narrow_pays(const Product& sizes, DType narrow, DType b) {
  constexpr double kLeastFlops = 4e6;
  constexpr int64_t kLeastWeights = 1 << 15;
  if (narrow != DType::BFloat16 || !cpu::multiplies_bfloat16()) return false;
  if (sizes.batch > 1 || sizes.rows > kFewRows) return flops_of(sizes) >= kLeastFlops;
  return b == narrow && sizes.transpose_b && !sizes.transpose_a && sizes.inner * sizes.columns >= kLeastWeights;
}

Launch prepare_matmul(KernelCall& call) {
  return prepare_product(matmul_product(call.attrs, call.inputs[0].shape, call.inputs[1].shape), {}, call);
}

Launch prepare_dense(KernelCall& call) {
  const bool bias = call.present.size() > 2 && call.present[2];
  return prepare_product(dense_product(call.inputs[0].shape, call.inputs[1].shape),
                         {bias, call.attrs.string("activation") == "relu"}, call);
}

double matmul_flops(const KernelCall& call) {
  return flops_of(matmul_product(call.attrs, call.inputs[0].shape, call.inputs[1].shape));
}

double dense_flops(const KernelCall& call) {
  return flops_of(dense_product(call.inputs[0].shape, call.inputs[1].shape));
}

// ---- fusion ----------------------------------------------------------------------------------------------------

// x W^T, bias_add and perhaps relu, when nobody else reads what is between them.
bool fuse_dense(Rewriter& graph, NodeId id) {
  const Node& matmul = graph.node(id);
  const bool fits = graph.type(matmul.outputs[0]).shape.rank() == 2 && !matmul.attrs.flag("transpose_a") &&
                    matmul.attrs.flag("transpose_b");
  const NodeId bias_id = fits ? graph.sole_reader(matmul.outputs[0]) : kNone;
  if (bias_id == kNone || graph.node(bias_id).op->name != "bias_add") return false;
  const Node& bias_add = graph.node(bias_id);
  if (bias_add.inputs[0] != matmul.outputs[0]) return false;
  const std::string& mixed = matmul.attrs.string("mixed");
  const DType rounds_to = matmul.attrs.dtype("rounds_to");
  const DType bias_dtype = mixed.empty() ? graph.type(matmul.outputs[0]).dtype : DType::Float32;
  if (graph.type(bias_add.inputs[1]).dtype != bias_dtype) return false;
  const std::vector<ValueId> inputs{matmul.inputs[0], matmul.inputs[1], bias_add.inputs[1]};

  const NodeId relu_id = graph.sole_reader(bias_add.outputs[0]);
  if (relu_id != kNone && graph.node(relu_id).op->name == "relu") {
    graph.fuse({id, bias_id, relu_id}, "dense", inputs,
               {{"activation", std::string("relu")}, {"mixed", mixed}, {"rounds_to", rounds_to}},
               graph.node(relu_id).outputs);
  } else {
    graph.fuse({id, bias_id}, "dense", inputs, {{"mixed", mixed}, {"rounds_to", rounds_to}}, bias_add.outputs);
  }
  return true;
}

// ---- the ops ---------------------------------------------------------------------------------------------------

Attrs transposes(bool a, bool b) { return {{"transpose_a", a}, {"transpose_b", b}}; }

}  // namespace

void add_matmul(Catalog& catalog) {
  OpDef matmul;
  matmul.name = "matmul";
  matmul.lua = "matmul";
  matmul.doc =
      "Matrix product, or the products of two stacks of matrices pair by pair.\n"
      "  out[..., i, j] = sum over k of a[..., i, k] * b[..., k, j]\n"
      "shapes: a (..., rows, inner), b (..., inner, columns) -> (..., rows, columns); leading axes equal; with\n"
      "  transpose_a a is (..., inner, rows), with transpose_b b is (..., columns, inner). In Lua b may be one matrix\n"
      "  for all of a stack: a (..., rows, inner), b (inner, columns).\n"
      "dtypes: float32, float64, bfloat16 or float16, both inputs alike; sums of the last two are float32\n"
      "errors: inner or leading sizes differ; a rank below 2";
  matmul.inputs = {{"a"}, {"b"}};
  matmul.attrs = {{"transpose_a", false, "take the transpose of a's last two axes"},
                  {"transpose_b", false, "take the transpose of b's last two axes"},
                  mixed_attr(),
                  rounds_to_attr()};
  matmul.narrow.role = NarrowUse::Computes;
  matmul.narrow.in_kernels = true;
  matmul.narrow.takes_either = {0, 1};
  matmul.narrow.pays = [](const OpCall& call, DType narrow) {
    return narrow_pays(matmul_product(call.attrs, call.shape(0), call.shape(1)), narrow, call.dtype(1));
  };
  matmul.infer = infer_matmul;
  matmul.grad = grad_matmul;
  matmul.cpu = {prepare_matmul, matmul_layouts};
  matmul.flops = matmul_flops;
  matmul.rewrites = {{"matmul + bias_add (+ relu)", {"dense"}, fuse_dense},
                     {"matmul + gradients of dropout and relu", {"dense_input_grad"}, fuse_way_back, true}};
  matmul.examples = {
      {{f32({3, 4}), f32({4, 5})}},
      {{f32({4, 3}), f32({4, 5})}, transposes(true, false)},
      {{f32({3, 4}), f32({5, 4})}, transposes(false, true)},
      {{f32({4, 3}), f32({5, 4})}, transposes(true, true)},
      {{f32({17, 9}), f32({9, 20})}},
      {{f32({2, 3, 4}), f32({2, 4, 5})}},
      {{f32({2, 2, 4, 3}), f32({2, 2, 5, 4})}, transposes(true, true)},
      {{f32({17, 9}), f32({9, 70})}, {{"mixed", std::string("bfloat16")}}},
      {{f32({9, 17}), bf16({9, 70})}, {{"transpose_a", true}, {"mixed", std::string("float32")}}},
      {{f32({3, 47}), bf16({37, 47})}, {{"transpose_b", true}, {"mixed", std::string("float32")}}},
      {{bf16({13, 48}), f32({37, 48})}, {{"transpose_b", true}, {"mixed", std::string("bfloat16")}}},
      {{f32({17, 9}), f32({9, 70})}, {{"mixed", std::string("float16")}, {"rounds_to", DType::Float16}}},
      {{f16({13, 48}), f32({37, 48})},
       {{"transpose_b", true}, {"mixed", std::string("float32")}, {"rounds_to", DType::Float16}}},
  };
  catalog.add(std::move(matmul));

  OpDef dense;
  dense.name = "dense";
  dense.doc =
      "A fully connected layer: out = activation(x weight^T + bias). Made by fusion, after gradients.\n"
      "shapes: x (rows, in), weight (units, in), bias (units) -> (rows, units)";
  dense.inputs = {{"x"}, {"weight"}, {"bias", InputDef::Optional}};
  dense.attrs = {{"activation", std::string("none"), "\"none\" or \"relu\""}, mixed_attr(), rounds_to_attr()};
  dense.narrow.in_kernels = true;
  dense.infer = infer_dense;
  dense.cpu = {prepare_dense, dense_layouts};
  dense.flops = dense_flops;
  dense.rewrites = {
      {"dense + sparse cross entropy, there and back", {"dense_softmax_cross_entropy"}, fuse_classifier_rows},
      {"dense + dense of few rows", {"dense_pair"}, fuse_dense_pair},
  };
  dense.examples = {
      {{f32({3, 7}), f32({5, 7}), f32({5})}},
      {{f32({20, 7}), f32({5, 7}), f32({5})}, {{"activation", std::string("relu")}}},
      {{f32({20, 7}), f32({5, 7})}},
      {{f32({20, 37}), bf16({70, 37}), f32({70})},
       {{"activation", std::string("relu")}, {"mixed", std::string("float32")}}},
      {{f32({2, 37}), bf16({9, 37}), f32({9})},
       {{"activation", std::string("relu")}, {"mixed", std::string("bfloat16")}}},
      {{f32({20, 37}), f16({70, 37}), f32({70})},
       {{"activation", std::string("relu")}, {"mixed", std::string("float16")}, {"rounds_to", DType::Float16}}},
  };
  catalog.add(std::move(dense));
}

}  // namespace moonflow
