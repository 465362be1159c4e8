// Matrix products on the card: cuBLASLt's algorithms, of which we choose by the clock.
#include "kernels/cuda/product.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/cuda/code_cache.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cudart.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/timing.h"

namespace moonflow::cuda {
namespace {

using Algorithm = cublasLtMatmulHeuristicResult_t;  // with the workspace it wants, and no address

// All that the choice of an algorithm depends on, beside the library and the card.
std::string key_of(const ProductCall& call) {
  const Product& s = call.sizes;
  return text("product ", s.batch, ' ', s.rows, ' ', s.columns, ' ', s.inner, ' ', s.transpose_a, s.transpose_b, ' ',
              name(call.in), ' ', name(call.out), ' ', call.bias, call.timed_on != nullptr,
              static_cast<int>(call.precision));
}

class CublasProducts final : public Products {
 public:
  ProductLaunch prepare(const ProductCall& call, int64_t& scratch_bytes) override {
    constexpr int64_t kMost = int64_t{1} << 31;  // sizes that some algorithms hold in 32 bits
    const Product& sizes = call.sizes;
    for (const int64_t size : {sizes.rows, sizes.columns, sizes.inner, sizes.batch})
      if (size < 1 || size >= kMost) return {};
    open();
    auto matmul = std::make_shared<Matmul>(lt_, call);
    const std::optional<Algorithm> chosen = choose(call, *matmul);
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

  // Remembered by all that it depends on.
  std::optional<Algorithm> choose(const ProductCall& call, Matmul& matmul) {
    const std::string key = key_of(call);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = chosen_.find(key);
    if (known != chosen_.end()) return known->second;
    std::optional<Algorithm> chosen;
    if (call.timed_on && may_time()) chosen = fastest_algorithm(call, key, matmul);
    if (!chosen) {
      const std::vector<Algorithm> first = matmul.algorithms(handle_, 1);
      if (!first.empty()) chosen = first[0];
    }
    return chosen_[key] = chosen;
  }

  // That another process has found for this card and library, or the fastest of the first few; nothing where there is
  // no room to try them.
  std::optional<Algorithm> fastest_algorithm(const ProductCall& call, const std::string& key, Matmul& matmul) const {
    constexpr int kTried = 8;
    Device& device = *call.timed_on;
    const std::string folder = cache_folder(),
                      question = text("cuBLASLt ", lt_->cublasLtGetVersion(), " on ", card_of(device), ": ", key);
    Algorithm kept;
    if (const std::string bytes = read_cached(folder, question); bytes.size() == sizeof kept) {
      std::memcpy(&kept, bytes.data(), sizeof kept);
      return kept;
    }
    const std::vector<Algorithm> algorithms = matmul.algorithms(handle_, kTried);
    try {
      const Product& s = call.sizes;
      size_t workspace = 0;
      for (const Algorithm& algorithm : algorithms) workspace = std::max(workspace, algorithm.workspaceSize);
      const Buffer a = drawn_values(device, call.in, s.batch * s.rows * s.inner),
                   b = drawn_values(device, call.in, s.batch * s.inner * s.columns),
                   bias = drawn_values(device, call.out, s.columns),
                   out(device, s.batch * s.rows * s.columns * size_of(call.out)),
                   scratch(device, with_room_to_align(static_cast<int64_t>(workspace)));
      const ProductBuffers at{a.data(), b.data(), bias.data(), out.data(), scratch.data()};
      std::vector<TimedLaunch> launches;
      for (const Algorithm& algorithm : algorithms)
        launches.push_back([&](Stream& stream) { matmul.launch(handle_, algorithm, at, native(stream)); });
      const std::optional<size_t> place = fastest(device, launches);
      if (!place) return std::nullopt;
      kept = algorithms[*place];
    } catch (const Error&) {
      return std::nullopt;
    }
    write_cached(folder, question, std::string(reinterpret_cast<const char*>(&kept), sizeof kept));
    return kept;
  }

  std::mutex mutex_;
  std::shared_ptr<const CublasLt> lt_;  // launches keep it alive, they may outlive the kernels
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::string, std::optional<Algorithm>> chosen_;
};

}  // namespace

// One for a card: whoever computes a product there, each run computes it alike.
std::shared_ptr<Products> make_products() { return kept_for_card<CublasProducts>(); }

}  // namespace moonflow::cuda
