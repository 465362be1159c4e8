// CUDA devices. What we have for them lies in a module of its own, libmoonflow_cuda.so, which is opened when somebody
// first asks and never closed; without it, and on machines without a card, all else works and costs nothing. Any thread
// may call what is here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/device.h"

namespace moonflow {

struct CudaCard {
  std::string name;
  int64_t memory_bytes;
  int capability;  // 90 for 9.0
};

struct CudaProbe {
  std::vector<CudaCard> cards;  // their places are the indices of open_cuda_device
  std::string reason;           // why there is none, and what to do: one line without a full stop
};

// What cards there are. The module is MOONFLOW_CUDA_MODULE's where that is set, else the one beside this library, else
// one on the loader's path.
CudaProbe probe_cuda();

// Throws Unsupported with the reason where there is no card, OutOfRange where there is none of that index.
std::unique_ptr<Device> open_cuda_device(int index);

}  // namespace moonflow
