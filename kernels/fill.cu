// Constants and ranges on CUDA.
#include "kernels/cuda/fill.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/units.h"

namespace moonflow::cuda {
namespace {

// Takes elements by their size alone.
template <class T>
struct Fill {
  static constexpr int kN = 16 / static_cast<int>(sizeof(T));
  T value;
  T* out;
  MOONFLOW_DEVICE void operator()(const Neighbours<kN>& own) const {
    Pack<T, kN> pack;
    for (int i = 0; i < kN; ++i) pack.values[i] = value;
    own.put(pack, out);
  }
};

template <class T>
struct Range {
  double start, step;
  T* out;
  // In float64, whatever T: so it is on the CPU, where neighbours of a long range differ.
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    out[i] = functor::convert<T>(start + static_cast<double>(i) * step);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

Launch launch_fill(const TensorType& type, double value) {
  return [dtype = type.dtype, count = type.count(), value](const LaunchCall& at) {
    fill(at.stream, dtype, at.outputs[0], count, value);
  };
}

Launch prepare_constant(KernelCall& call) { return launch_fill(call.outputs[0], call.attrs.number("value")); }

template <int value>
Launch prepare_like(KernelCall& call) {
  return launch_fill(call.outputs[0], value);
}

Launch prepare_range(KernelCall& call) {
  return visit_stored(call.outputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [count = call.outputs[0].count(), start = call.attrs.number("start"),
            step = call.attrs.number("step")](const LaunchCall& at) {
      for_each(at.stream, count, Range<T>{start, step, at.output<T>(0)});
    };
  });
}

}  // namespace

void fill(Stream& stream, DType dtype, void* to, int64_t count, double value) {
  visit_stored(dtype, [&](auto zero) {
    using T = decltype(zero);
    using Bits = Unit<sizeof(T)>;
    Bits* const out = static_cast<Bits*>(to);
    for_each_pack(stream, count, Fill<Bits>{__builtin_bit_cast(Bits, functor::convert<T>(value)), out}, out);
  });
}

void add_fill(Kernels& kernels) {
  kernels["constant"] = {{prepare_constant}, true};
  kernels["zeros_like"] = {{prepare_like<0>}, true};
  kernels["ones_like"] = {{prepare_like<1>}, true};
  kernels["range"] = {{prepare_range}, true};
}

}  // namespace moonflow::cuda
