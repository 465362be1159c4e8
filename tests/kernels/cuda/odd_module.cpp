// CUDA modules for module_test.cpp, one per definition.
#include "kernels/build.h"
#include "kernels/cuda/module.h"

using namespace moonflow;

#ifndef WITHOUT_DOOR

namespace {

CudaProbe two_cards() { return {{{"first card", 1 << 20, 90}, {"second card", 1 << 21, 80}}, ""}; }

std::unique_ptr<Device> open(int index) { fail(ErrorCode::OutOfMemory, "card ", index, " is full"); }

}  // namespace

const cuda::Module* moonflow_cuda_module() {
#ifdef ANOTHER_VERSION
  static constexpr uint32_t kVersion = cuda::kModuleVersion + 1;
#else
  static constexpr uint32_t kVersion = cuda::kModuleVersion;
#endif
#ifdef ANOTHER_BUILD
  static constexpr const char* kModuleBuild = "0.0.9 of last year";
#else
  static constexpr const char* kModuleBuild = kBuild;
#endif
#ifdef WITH_UNDEFINED_SYMBOL
  extern void defined_by_nobody();
  defined_by_nobody();
#endif
  static constexpr cuda::Module kModule = {{kVersion, kModuleBuild}, two_cards, open};
  return &kModule;
}

#endif
