// Matrix products through cuBLASLt. It thinks in columns where we think in rows, so it is asked for the transpose of
// everything: out^T = b'^T a'^T, whose columns are our rows, and whose bias, one per row there, is one per column here.
#include "kernels/cuda/product.h"

#include <cublasLt.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/cuda/device.h"
#include "kernels/cuda/library.h"

namespace moonflow::cuda {
namespace {

struct CublasLt {
  Library library{"libcublasLt.so.13"};
  MOONFLOW_SYMBOL(cublasLtCreate);
  MOONFLOW_SYMBOL(cublasLtGetStatusString);
  MOONFLOW_SYMBOL(cublasLtMatmul);
  MOONFLOW_SYMBOL(cublasLtMatmulAlgoGetHeuristic);
  MOONFLOW_SYMBOL(cublasLtMatmulDescCreate);
  MOONFLOW_SYMBOL(cublasLtMatmulDescDestroy);
  MOONFLOW_SYMBOL(cublasLtMatmulDescSetAttribute);
  MOONFLOW_SYMBOL(cublasLtMatmulPreferenceCreate);
  MOONFLOW_SYMBOL(cublasLtMatmulPreferenceDestroy);
  MOONFLOW_SYMBOL(cublasLtMatmulPreferenceSetAttribute);
  MOONFLOW_SYMBOL(cublasLtMatrixLayoutCreate);
  MOONFLOW_SYMBOL(cublasLtMatrixLayoutDestroy);
  MOONFLOW_SYMBOL(cublasLtMatrixLayoutSetAttribute);

  void check(cublasStatus_t status, const char* what) const {
    require(status == CUBLAS_STATUS_SUCCESS, ErrorCode::Internal, "cuBLASLt could not ", what, ": ",
            cublasLtGetStatusString(status));
  }
};

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

// What one launch is made of. The descriptor holds the address of the bias, so each launch has its own.
class Matmul {
 public:
  Matmul(std::shared_ptr<const CublasLt> table, const ProductCall& call)
      : lt_(std::move(table)), wide_(call.in == DType::Float64) {
    const CublasLt& lt = *lt_;
    const Product& sizes = call.sizes;
    const cublasComputeType_t compute = wide_                               ? CUBLAS_COMPUTE_64F
                                        : call.precision == Precision::Tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                            : CUBLAS_COMPUTE_32F;
    lt.check(lt.cublasLtMatmulDescCreate(&desc, compute, wide_ ? CUDA_R_64F : CUDA_R_32F), "describe a product");
    const cublasOperation_t transpose_first = sizes.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            transpose_second = sizes.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_first);
    set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_second);
    if (call.bias || call.relu) {
      const cublasLtEpilogue_t epilogue = !call.relu  ? CUBLASLT_EPILOGUE_BIAS
                                          : call.bias ? CUBLASLT_EPILOGUE_RELU_BIAS
                                                      : CUBLASLT_EPILOGUE_RELU;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    }
    if (call.bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(call.out));
      // Of the alignment that each launch's has, and read by nobody: without one the library may find no algorithm.
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(uintptr_t{kAlignment}));
    }
    first = matrix(call.in, sizes.columns, sizes.inner, sizes.transpose_b, sizes.batch);
    second = matrix(call.in, sizes.inner, sizes.rows, sizes.transpose_a, sizes.batch);
    out = matrix(call.out, sizes.columns, sizes.rows, false, sizes.batch);
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  ~Matmul() {
    for (const cublasLtMatrixLayout_t layout : {first, second, out})
      if (layout) lt_->cublasLtMatrixLayoutDestroy(layout);
    if (desc) lt_->cublasLtMatmulDescDestroy(desc);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, const T& value) {
    lt_->check(lt_->cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value), "describe a product");
  }

  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;

 private:
  // Of (rows, columns) after the operation; as it is stored they are exchanged where it transposes.
  cublasLtMatrixLayout_t matrix(DType dtype, int64_t rows, int64_t columns, bool transpose, int64_t batch) {
    if (transpose) std::swap(rows, columns);
    cublasLtMatrixLayout_t layout = nullptr;
    lt_->check(lt_->cublasLtMatrixLayoutCreate(&layout, type_of(dtype), rows, columns, rows), "describe a matrix");
    const int32_t count = static_cast<int32_t>(batch);
    const int64_t step = rows * columns;
    lt_->check(lt_->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
               "describe a matrix");
    lt_->check(
        lt_->cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
        "describe a matrix");
    return layout;
  }

  const std::shared_ptr<const CublasLt> lt_;
  const bool wide_;
};

class CublasProducts final : public Products {
 public:
  ProductLaunch prepare(const ProductCall& call, int64_t& scratch_bytes) override {
    constexpr int64_t kMost = int64_t{1} << 31;  // sizes that some algorithms hold in 32 bits
    const Product& sizes = call.sizes;
    for (const int64_t size : {sizes.rows, sizes.columns, sizes.inner, sizes.batch})
      if (size < 1 || size >= kMost) return {};
    open();
    auto matmul = std::make_shared<Matmul>(lt_, call);
    const std::optional<cublasLtMatmulHeuristicResult_t> chosen = choose(call, *matmul);
    if (!chosen) return {};
    scratch_bytes = with_room_to_align(static_cast<int64_t>(chosen->workspaceSize));
    const bool wide = call.in == DType::Float64;
    return [self = opened_, matmul, algorithm = chosen->algo, workspace = chosen->workspaceSize, wide,
            bias = call.bias](Stream& stream, const ProductBuffers& at) {
      const float one = 1, zero = 0;
      const double wide_one = 1, wide_zero = 0;
      check_alignment(at);
      if (bias) matmul->set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias);
      const void* const alpha = wide ? static_cast<const void*>(&wide_one) : &one;
      const void* const beta = wide ? static_cast<const void*>(&wide_zero) : &zero;
      void* const scratch = workspace > 0 ? aligned_workspace(at.scratch) : nullptr;
      self->lt->check(self->lt->cublasLtMatmul(self->handle, matmul->desc, alpha, at.b, matmul->first, at.a,
                                               matmul->second, beta, at.out, matmul->out, at.out, matmul->out,
                                               &algorithm, scratch, workspace, native(stream)),
                      "multiply");
    };
  }

 private:
  // What launches keep alive: they may outlive the kernels.
  struct Opened {
    std::shared_ptr<const CublasLt> lt;
    cublasLtHandle_t handle;  // never destroyed: the card may be gone by then
  };

  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (opened_) return;
    lt_ = std::make_shared<CublasLt>();
    cublasLtHandle_t handle = nullptr;
    lt_->check(lt_->cublasLtCreate(&handle), "begin");
    opened_ = std::make_shared<Opened>(Opened{lt_, handle});
  }

  // The library's own choice, remembered by all that it depends on.
  std::optional<cublasLtMatmulHeuristicResult_t> choose(const ProductCall& call, const Matmul& matmul) {
    const Product& s = call.sizes;
    const Key key{s.batch,
                  s.rows,
                  s.columns,
                  s.inner,
                  s.transpose_a,
                  s.transpose_b,
                  static_cast<int64_t>(call.in),
                  static_cast<int64_t>(call.out),
                  call.bias,
                  call.relu,
                  static_cast<int64_t>(call.precision)};
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = chosen_.find(key);
    if (known != chosen_.end()) return known->second;
    return chosen_[key] = ask(matmul);
  }

  std::optional<cublasLtMatmulHeuristicResult_t> ask(const Matmul& matmul) const {
    cublasLtMatmulPreference_t preference = nullptr;
    lt_->check(lt_->cublasLtMatmulPreferenceCreate(&preference), "choose an algorithm");
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(lt_->cublasLtMatmulPreferenceDestroy)> owner(
        preference, lt_->cublasLtMatmulPreferenceDestroy);
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
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        lt_->cublasLtMatmulAlgoGetHeuristic(opened_->handle, matmul.desc, matmul.first, matmul.second, matmul.out,
                                            matmul.out, preference, 1, &result, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) return std::nullopt;
    lt_->check(status, "choose an algorithm");
    if (result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result;
  }

  using Key = std::array<int64_t, 11>;
  std::mutex mutex_;
  std::shared_ptr<const CublasLt> lt_;
  std::shared_ptr<const Opened> opened_;
  std::map<Key, std::optional<cublasLtMatmulHeuristicResult_t>> chosen_;
};

}  // namespace

std::shared_ptr<Products> make_products() { return std::make_shared<CublasProducts>(); }

}  // namespace moonflow::cuda
