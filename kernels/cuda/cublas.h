// Matrix products through cuBLASLt. It thinks in columns where we think in rows, so it is asked for the transpose of
// everything: out^T = b'^T a'^T, whose columns are our rows, and whose bias, one per row there, is one per column here.
//
// Read only by the files that call cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/library.h"
#include "kernels/cuda/product.h"

namespace moonflow::cuda {

struct CublasLt {
  Library library{"libcublasLt.so.13"};
  MOONFLOW_SYMBOL(cublasLtCreate);
  MOONFLOW_SYMBOL(cublasLtGetStatusString);
  MOONFLOW_SYMBOL(cublasLtGetVersion);
  MOONFLOW_SYMBOL(cublasLtMatmul);
  MOONFLOW_SYMBOL(cublasLtMatmulAlgoConfigGetAttribute);
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

  void check(cublasStatus_t status, const char* what) const;
};

// What one launch is made of. The descriptor holds the address of the bias, so each launch has its own.
class Matmul {
 public:
  Matmul(std::shared_ptr<const CublasLt> table, const ProductCall& call);

  // At most so many algorithms that give the same bits in every run, best first as the library has them.
  std::vector<cublasLtMatmulHeuristicResult_t> algorithms(cublasLtHandle_t handle, int most) const;
  // Enqueues it by one of those.
  void launch(cublasLtHandle_t handle, const cublasLtMatmulHeuristicResult_t& by, const ProductBuffers& at,
              cudaStream_t stream);

 private:
  // Things of the library's, with its function that takes them back.
  template <class Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;
  using Description = Owned<cublasLtMatmulDescOpaque_t>;
  using Matrix = Owned<cublasLtMatrixLayoutOpaque_t>;
  using Preference = Owned<cublasLtMatmulPreferenceOpaque_t>;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, const T& value);
  Description make_description(const ProductCall& call) const;
  Matrix matrix(DType dtype, int64_t rows, int64_t columns, bool transpose, int64_t batch) const;

  const std::shared_ptr<const CublasLt> lt_;
  const bool wide_, bias_;
  const Description desc_;
  const Matrix first_, second_, out_;
};

// An algorithm in cuBLASLt's own numbers: "algo21_tile18_stages11_splits4_scheme2".
std::string describe(const CublasLt& lt, const cublasLtMatmulHeuristicResult_t& algorithm);

}  // namespace moonflow::cuda
