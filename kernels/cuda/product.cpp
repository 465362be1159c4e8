// Matrix products on the card: cuBLASLt's own choices.
#include "kernels/cuda/product.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

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
    return [handle = handle_, matmul, algorithm = *chosen](Stream& stream, const ProductBuffers& at) {
      matmul->launch(handle, algorithm, at, native(stream));
    };
  }

 private:
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lt_) return;
    auto lt = std::make_shared<CublasLt>();
    lt->check(lt->cublasLtCreate(&handle_), "begin");
    lt_ = std::move(lt);
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
    const std::vector<cublasLtMatmulHeuristicResult_t> best = matmul.algorithms(handle_, 1);
    if (!best.empty()) chosen_[key] = best[0];
    return chosen_[key];
  }

  using Key = std::array<int64_t, 11>;
  std::mutex mutex_;
  std::shared_ptr<const CublasLt> lt_;  // launches keep it alive, they may outlive the kernels
  cublasLtHandle_t handle_ = nullptr;   // never destroyed: the card may be gone by then
  std::map<Key, std::optional<cublasLtMatmulHeuristicResult_t>> chosen_;
};

}  // namespace

std::shared_ptr<Products> make_products() { return std::make_shared<CublasProducts>(); }

}  // namespace moonflow::cuda
