// The door of libmoonflow_cuda.so.
#include "kernels/cuda/module.h"

#include "kernels/cuda/build.h"
#include "kernels/cuda/cards.h"

namespace moonflow::cuda {
namespace {

std::unique_ptr<Device> open(int) { fail(ErrorCode::Unsupported, "this module computes nothing yet"); }

constexpr Module kModule = {kModuleVersion, kModuleBuild, probe_cards, open};

}  // namespace
}  // namespace moonflow::cuda

const moonflow::cuda::Module* moonflow_cuda_module() { return &moonflow::cuda::kModule; }
