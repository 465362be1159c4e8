// The door of the CUDA module: the one symbol it shows, and the table behind it.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda.h"
#include "kernels/run_time_module.h"

namespace moonflow::cuda {

constexpr uint32_t kModuleVersion = 1;  // of the table below

struct Module : ModuleHead {
  // Never throws for want of a driver or a card.
  CudaProbe (*probe)();
  // `index` is that of a card that probe has given.
  std::unique_ptr<Device> (*open)(int index);
};

}  // namespace moonflow::cuda

// The name that the core looks for.
extern "C" __attribute__((visibility("default"))) const moonflow::cuda::Module* moonflow_cuda_module();
