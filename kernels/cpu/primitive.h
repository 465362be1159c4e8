// One oneDNN primitive as a launch. Where a value lies in another form than the primitive wants, it is reordered
// through scratch on the way in or out; the primitive's own scratch is there too, so a launch allocates nothing.
#pragma once

#include <memory>

#include "kernels/activation.h"
#include "kernels/cpu/onednn.h"

namespace moonflow::cpu {

// The attributes of a primitive whose scratch is ours to give, and which may apply an activation to its result. Where
// that meets a NaN, oneDNN makes it a number: PrimitiveLaunch::finish has the way out.
dnnl::primitive_attr attributes(Activation activation = Activation::None);

class PrimitiveLaunch {
 public:
  // `scratchpad` is the primitive's own, from its descriptor.
  PrimitiveLaunch(KernelCall& call, const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad);

  // The argument `arg` (DNNL_ARG_...) is input `index` of the op, which lies as `stored`; the primitive reads `wanted`.
  void read(int arg, int index, const dnnl::memory::desc& stored, const dnnl::memory::desc& wanted);
  // The primitive writes `wanted`; output `index` of the op lies as `stored`.
  void write(int arg, int index, const dnnl::memory::desc& stored, const dnnl::memory::desc& wanted);

  // Sets the scratch of the call. Last, and once.
  Launch finish();
  // The same for a primitive with an activation. Where a NaN was met, output 0 is made once more: by `without`, the
  // launch of the same primitive without its activation, made before, and then by the activation as our ops have it.
  Launch finish(Activation activation, Launch without);

 private:
  struct State;

  void add(int arg, int index, bool is_output, const dnnl::memory::desc& stored, const dnnl::memory::desc& wanted);
  int64_t reserve(const dnnl::memory::desc& desc);

  KernelCall& call_;
  std::shared_ptr<State> state_;  // shared: a Launch is copied, the memories it binds are not
  int64_t scratch_bytes_ = 0;
  int64_t output_bytes_ = 0;  // of output 0, as it lies
};

}  // namespace moonflow::cpu
