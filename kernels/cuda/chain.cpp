// The kernel of element_chain: made of its attributes when a plan is, compiled for the card, and loaded.
#include "kernels/cuda/chain.h"

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>

#include "kernels/cuda/chain_source.h"
#include "kernels/cuda/compiler.h"
#include "kernels/cuda/cudart.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/layout.h"

namespace moonflow::cuda {
namespace {

// The kernels of a card by their source.
class LoadedChains {
 public:
  cudaKernel_t get(const std::string& source, int capability) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = kernels_.find(source);
    if (known != kernels_.end()) return known->second;
    const std::string code = compile(source, chain_headers(), capability);
    cudaLibrary_t library = nullptr;
    cudaKernel_t kernel = nullptr;
    check(cudaLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    check(cudaLibraryGetKernel(&kernel, library, "chain"));
    return kernels_[source] = kernel;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, cudaKernel_t> kernels_;
};

Launch prepare(LoadedChains& loaded, int capability, KernelCall& call) {
  const TensorType& out = call.outputs[0];
  std::vector<TensorType> leaves;
  for (size_t i = 0; i < call.inputs.size() && call.present[i]; ++i) leaves.push_back(call.inputs[i]);
  const cudaKernel_t kernel = loaded.get(chain_source(call.attrs, leaves, out), capability);
  const long long count = out.count(), of_block = int64_t{kChainThreads} * elements_of_thread(out.dtype);
  const unsigned blocks = checked_blocks((count + of_block - 1) / of_block);
  return [kernel, count, blocks, leaf_count = leaves.size()](const LaunchCall& at) {
    if (count == 0) return;
    constexpr size_t kMostLeaves = 8;
    const void* arguments[kMostLeaves + 2];
    size_t next = 0;
    arguments[next++] = &count;
    for (size_t i = 0; i < leaf_count; ++i) arguments[next++] = &at.inputs[i];
    arguments[next++] = &at.outputs[0];
    check(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(kChainThreads),
                           const_cast<void**>(arguments), 0, native(at.stream)));
    check_launch(at.stream);
  };
}

}  // namespace

void add_chain(Kernels& kernels, int capability) {
  const std::shared_ptr<LoadedChains> loaded = kept_for_card<LoadedChains>();
  kernels["element_chain"] = {
      {[=](KernelCall& call) { return prepare(*loaded, capability, call); }, share_channels_last}, true};
}

}  // namespace moonflow::cuda
