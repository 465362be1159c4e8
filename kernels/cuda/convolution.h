// Convolutions by the library that the card's maker has for them: a kernel chooses at prepare, and launches. On the
// simulated device plain loops take the library's place.
#pragma once

#include <functional>
#include <memory>

#include "kernels/conv.h"
#include "kernels/cuda/product.h"

namespace moonflow::cuda {

struct ConvolutionCall {
  Conv conv;
  ConvKind kind;  // Forward, InputGrad or FilterGrad
  DType dtype = DType::Float32;
  bool bias = false;   // behind Forward
  bool exact = false;  // sums as the formula has them: neither Winograd's algorithm nor Fourier's
  Precision precision = Precision::Float32;
  // Where set, the engines are timed on this device when the call is first prepared, and the fastest is remembered, for
  // other processes too. Else it is what the library thinks best.
  Device* timed_on = nullptr;

  bool may_use_tensor_cores() const {
    return is_narrow(dtype) || (dtype == DType::Float32 && precision == Precision::Tf32);
  }
};

// Whether there is as much padding before an image as after it.
inline bool is_padded_evenly(const Conv& conv) {
  return conv.windows[0].before == conv.windows[0].after && conv.windows[1].before == conv.windows[1].after;
}

// The one that `kind` computes is written, the others are read.
struct ConvolutionBuffers {
  void *image, *filter, *out;
  void* bias;
  void* scratch;
};
using ConvolutionLaunch = std::function<void(Stream&, const ConvolutionBuffers&)>;

class Convolutions {
 public:
  virtual ~Convolutions() = default;
  // Says how much scratch a launch needs. An empty launch: the library has no engine for it.
  virtual ConvolutionLaunch prepare(const ConvolutionCall& call, int64_t& scratch_bytes) = 0;
};

// Of the current card.
std::shared_ptr<Convolutions> make_convolutions();

}  // namespace moonflow::cuda
