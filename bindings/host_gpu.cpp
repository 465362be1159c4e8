// The GPUs of the C ABI.
#include <algorithm>
#include <cstring>

#include "bindings/status.h"
#include "kernels/cuda.h"

using namespace moonflow;
using namespace moonflow::host;

extern "C" {

mf_status* mf_gpu_count(int32_t* count) {
  return guarded([&] {
    require_out(count, "count");
    *count = 0;
    const CudaProbe probe = probe_cuda();
    if (probe.cards.empty()) refuse(MF_UNSUPPORTED, probe.reason);
    *count = static_cast<int32_t>(probe.cards.size());
  });
}

mf_status* mf_gpu_info(int32_t index, mf_gpu* gpu) {
  return guarded([&] {
    require_out(gpu, "gpu");
    require_size(*gpu, [] { return "gpu"; });
    const CudaProbe probe = probe_cuda();
    if (probe.cards.empty()) refuse(MF_UNSUPPORTED, probe.reason);
    if (index < 0 || index >= static_cast<int32_t>(probe.cards.size()))
      refuse(MF_OUT_OF_RANGE, "this machine has ", probe.cards.size(), " GPUs, none at index ", index);
    const CudaCard& card = probe.cards[index];
    gpu->capability = card.capability;
    gpu->memory_bytes = static_cast<uint64_t>(card.memory_bytes);
    const size_t length = std::min(card.name.size(), sizeof gpu->name - 1);
    std::memcpy(gpu->name, card.name.data(), length);
    gpu->name[length] = '\0';
  });
}

}  // extern "C"
