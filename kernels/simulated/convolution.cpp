// Convolutions as plain loops: what the simulated device has in place of the library.
#include "kernels/cuda/convolution.h"

#include "kernels/cuda/direct_convolution.h"

namespace moonflow::cuda {
namespace {

class SimulatedConvolutions final : public Convolutions {
 public:
  // Engines of the library for this are wrong or slow: kernels/conv.cu asks for none.
  ConvolutionLaunch prepare(const ConvolutionCall& call, int64_t& scratch_bytes) override {
    require(!is_filter_grad(call.kind) || is_padded_evenly(call.conv) || call.may_use_tensor_cores(),
            ErrorCode::Internal, "a strict filter gradient was asked for with padding that differs before and after");
    scratch_bytes = 4096;  // as a library that wants some
    return visit_fractions(call.dtype, [&](auto zero) { return direct_convolution<decltype(zero)>(call); });
  }
};

}  // namespace

std::shared_ptr<Convolutions> make_convolutions() { return std::make_shared<SimulatedConvolutions>(); }

}  // namespace moonflow::cuda
