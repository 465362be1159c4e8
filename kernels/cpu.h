// The CPU device, and what its kernels share: a parallel loop, and the way between layouts and oneDNN descriptors.
#pragma once

#include <algorithm>
#include <cstdint>

#include <dnnl.hpp>

#include "engine/device.h"
#include "engine/op.h"

namespace moonflow::cpu {

// Threads that a loop may use now: those of the device whose launch is running.
int threads();

// Calls body(first, last) over [0, count) with static, contiguous parts, one per thread; on the calling thread alone
// when there is less than `grain` per thread. The parts depend on nothing but count and grain where `body` needs that.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t parts = std::min<int64_t>(threads(), grain > 0 ? count / grain : count);
  if (parts <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) body(count * part / parts, count * (part + 1) / parts);
}

// About as many elements of simple work as pay for waking a second thread.
constexpr int64_t kGrain = 1 << 14;

// ---- oneDNN --------------------------------------------------------------------------------------------------

const dnnl::engine& dnnl_engine(Device& device);
dnnl::stream& dnnl_stream(Stream& stream);

// The descriptor of a value in a layout; row-major gives plain strides. float32 only where oneDNN has no other.
dnnl::memory::desc describe(const TensorType& type, const Layout& layout);
// Row-major when the descriptor is just that, else the private layout that holds it.
Layout layout_of(const dnnl::memory::desc& desc, const TensorType& type);
dnnl::memory::desc row_major(const TensorType& type);
dnnl::memory::data_type dnnl_type(DType dtype);

}  // namespace moonflow::cpu
