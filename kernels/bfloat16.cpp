#include "kernels/bfloat16.h"

#include <memory>

#include "kernels/cpu.h"
#include "kernels/simd.h"

namespace moonflow::cpu {
namespace {

template <class From, class To>
void convert(const From* from, To* to, int64_t count) {
  parallel_for(count, kWideGrain, [=](int64_t first, int64_t last) {
    widest([=] {
#pragma GCC ivdep
      for (int64_t i = first; i < last; ++i) to[i] = To(from[i]);
    });
  });
}

bool any_bfloat16(const std::vector<TensorType>& types) {
  for (const TensorType& type : types)
    if (type.dtype == DType::BFloat16) return true;
  return false;
}

// A value of the op that has a float32 twin in the scratch.
struct Twin {
  int index;  // of the input or output
  int64_t count;
  int64_t offset;
};

struct Widened {
  Launch launch;
  std::vector<Twin> inputs, outputs, written;
  std::vector<void*> input_data, output_data;  // of the launch; here, since a launch allocates nothing
};

// Gives float32 to what is bfloat16, with a place for the twin behind `bytes`.
std::vector<Twin> widen_types(std::vector<TensorType>& types, int64_t& bytes) {
  std::vector<Twin> twins;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i].dtype != DType::BFloat16) continue;
    types[i].dtype = DType::Float32;
    twins.push_back({static_cast<int>(i), types[i].count(), bytes});
    bytes = checked_sum(bytes, (types[i].bytes() + kAlignment - 1) / kAlignment * kAlignment);
  }
  return twins;
}

Launch prepare_widened(KernelCall& call, const Kernel& kernel, const std::function<bool(size_t)>& is_written) {
  if (!any_bfloat16(call.inputs) && !any_bfloat16(call.outputs)) return kernel.prepare(call);
  auto state = std::make_shared<Widened>();  // shared: a std::function must be copyable
  KernelCall wide = call;
  int64_t twin_bytes = 0;
  state->inputs = widen_types(wide.inputs, twin_bytes);
  state->outputs = widen_types(wide.outputs, twin_bytes);
  for (const Twin& twin : state->inputs)
    if (is_written && is_written(static_cast<size_t>(twin.index))) state->written.push_back(twin);
  state->launch = kernel.prepare(wide);
  state->input_data.resize(wide.inputs.size());
  state->output_data.resize(wide.outputs.size());
  call.scratch_bytes = checked_sum(twin_bytes, wide.scratch_bytes);
  return [state, twin_bytes](const LaunchCall& at) {
    char* const scratch = static_cast<char*>(at.scratch);
    const auto twin_data = [&](const Twin& twin) { return reinterpret_cast<float*>(scratch + twin.offset); };
    std::copy(at.inputs, at.inputs + state->input_data.size(), state->input_data.begin());
    std::copy(at.outputs, at.outputs + state->output_data.size(), state->output_data.begin());
    for (const Twin& twin : state->inputs) {
      if (!at.inputs[twin.index]) continue;
      widen(at.input<BFloat16>(twin.index), twin_data(twin), twin.count);
      state->input_data[twin.index] = twin_data(twin);
    }
    for (const Twin& twin : state->outputs) state->output_data[twin.index] = twin_data(twin);
    state->launch(LaunchCall{at.stream, state->input_data.data(), state->output_data.data(), scratch + twin_bytes});
    for (const Twin& twin : state->outputs) round(twin_data(twin), at.output<BFloat16>(twin.index), twin.count);
    for (const Twin& twin : state->written)
      if (at.inputs[twin.index]) round(twin_data(twin), static_cast<BFloat16*>(at.inputs[twin.index]), twin.count);
  };
}

}  // namespace

void widen(const BFloat16* from, float* to, int64_t count) { convert(from, to, count); }
void round(const float* from, BFloat16* to, int64_t count) { convert(from, to, count); }

Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written) {
  Kernel result;
  if (kernel.layouts) {
    // The twins are dense and row-major.
    result.layouts = [layouts = kernel.layouts](LayoutCall& call) {
      if (!any_bfloat16(call.input_types) && !any_bfloat16(call.output_types)) return layouts(call);
      std::fill(call.inputs.begin(), call.inputs.end(), Layout{});
      std::fill(call.outputs.begin(), call.outputs.end(), Layout{});
    };
  }
  result.prepare = [kernel = std::move(kernel), is_written = std::move(is_written)](KernelCall& call) {
    return prepare_widened(call, kernel, is_written);
  };
  return result;
}

}  // namespace moonflow::cpu
