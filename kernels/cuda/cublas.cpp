#include "kernels/cuda/cublas.h"

#include <utility>

namespace moonflow::cuda {
namespace {

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::Float64:
      return CUDA_R_64F;
    case DType::BFloat16:
      return CUDA_R_16BF;
    case DType::Float16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

}  // namespace

void CublasLt::check(cublasStatus_t status, const char* what) const {
  require(status == CUBLAS_STATUS_SUCCESS, ErrorCode::Internal, "cuBLASLt could not ", what, ": ",
          cublasLtGetStatusString(status));
}

// ---- the description of a product ----------------------------------------------------------------------------

Matmul::Matmul(std::shared_ptr<const CublasLt> table, const ProductCall& call)
    : lt_(std::move(table)),
      wide_(call.in == DType::Float64),
      bias_(call.bias),
      desc_(make_description(call)),
      first_(matrix(call.in, call.sizes.columns, call.sizes.inner, call.sizes.transpose_b, call.sizes.batch)),
      second_(matrix(call.in, call.sizes.inner, call.sizes.rows, call.sizes.transpose_a, call.sizes.batch)),
      out_(matrix(call.out, call.sizes.columns, call.sizes.rows, false, call.sizes.batch)) {
  const Product& sizes = call.sizes;
  const cublasOperation_t transpose_first = sizes.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                          transpose_second = sizes.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_first);
  set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_second);
  if (call.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.out));
    // Of the alignment that each launch's has, and read by nobody: without one the library may find no algorithm.
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{kAlignment}));
  }
}

template <class T>
void Matmul::set(cublasLtMatmulDescAttributes_t name, const T& value) {
  lt_->check(lt_->cublasLtMatmulDescSetAttribute(desc_.get(), name, &value, sizeof value), "describe a product");
}

Matmul::Description Matmul::make_description(const ProductCall& call) const {
  const cublasComputeType_t compute = wide_                               ? CUBLAS_COMPUTE_64F
                                      : call.precision == Precision::Tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                          : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t desc = nullptr;
  lt_->check(lt_->cublasLtMatmulDescCreate(&desc, compute, wide_ ? CUDA_R_64F : CUDA_R_32F), "describe a product");
  return {desc, lt_->cublasLtMatmulDescDestroy};
}

// Of (rows, columns) after the operation; as it is stored they are exchanged where it transposes.
Matmul::Matrix Matmul::matrix(DType dtype, int64_t rows, int64_t columns, bool transpose, int64_t batch) const {
  if (transpose) std::swap(rows, columns);
  cublasLtMatrixLayout_t layout = nullptr;
  lt_->check(lt_->cublasLtMatrixLayoutCreate(&layout, type_of(dtype), rows, columns, rows), "describe a matrix");
  Matrix owner(layout, lt_->cublasLtMatrixLayoutDestroy);
  const int32_t count = static_cast<int32_t>(batch);
  const int64_t step = rows * columns;
  lt_->check(lt_->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
             "describe a matrix");
  lt_->check(
      lt_->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
      "describe a matrix");
  return owner;
}

// ---- algorithms ----------------------------------------------------------------------------------------------

std::vector<cublasLtMatmulHeuristicResult_t> Matmul::algorithms(cublasLtHandle_t handle, int most) const {
  cublasLtMatmulPreference_t preference = nullptr;
  lt_->check(lt_->cublasLtMatmulPreferenceCreate(&preference), "choose an algorithm");
  const Preference owner(preference, lt_->cublasLtMatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    lt_->check(lt_->cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
               "choose an algorithm");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{32} << 20);  // what Hopper's kernels ask for
  // Parts of a sum are added in one order, and in the precision of the sums: two runs give the same bits.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(name, uint32_t{kAlignment});
  std::vector<cublasLtMatmulHeuristicResult_t> found(most), able;
  int count = 0;
  const cublasStatus_t status = lt_->cublasLtMatmulAlgoGetHeuristic(
      handle, desc_.get(), first_.get(), second_.get(), out_.get(), out_.get(), preference, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  lt_->check(status, "choose an algorithm");
  for (int i = 0; i < count; ++i)
    if (found[i].state == CUBLAS_STATUS_SUCCESS) able.push_back(found[i]);
  return able;
}

void Matmul::launch(cublasLtHandle_t handle, const cublasLtMatmulHeuristicResult_t& by, const ProductBuffers& at,
                    cudaStream_t stream) {
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  check_alignment(at);
  if (bias_) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
  const void* const alpha = wide_ ? static_cast<const void*>(&wide_one) : &one;
  const void* const beta = wide_ ? static_cast<const void*>(&wide_zero) : &zero;
  void* const scratch = by.workspaceSize > 0 ? aligned_workspace(at.scratch) : nullptr;
  lt_->check(lt_->cublasLtMatmul(handle, desc_.get(), alpha, at.b, first_.get(), at.a, second_.get(), beta, at.out,
                                 out_.get(), at.out, out_.get(), &by.algo, scratch, by.workspaceSize, stream),
             "multiply");
}

std::string describe(const CublasLt& lt, const cublasLtMatmulHeuristicResult_t& algorithm) {
  std::string words;
  const auto append = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
    size_t written = 0;
    if (lt.cublasLtMatmulAlgoConfigGetAttribute(&algorithm.algo, attribute, &value, sizeof value, &written) ==
        CUBLAS_STATUS_SUCCESS)
      words += text(words.empty() ? "" : "_", name, static_cast<int64_t>(value));
  };
  append("algo", CUBLASLT_ALGO_CONFIG_ID, int32_t());
  append("tile", CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t());
  append("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t());
  append("splits", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t());
  append("scheme", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t());
  append("swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t());
  append("custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t());
  append("inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t());
  append("cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t());
  return words;
}

}  // namespace moonflow::cuda
