#include "kernels/widened.h"

#include <algorithm>
#include <memory>

#include "kernels/row_major.h"

namespace moonflow {
namespace {

bool any_narrow(const std::vector<TensorType>& types) {
  return std::any_of(types.begin(), types.end(), [](const TensorType& type) { return is_narrow(type.dtype); });
}

// A value of the op that has a float32 twin in the scratch.
struct Twin {
  int index;  // of the input or output
  DType dtype;
  int64_t count;
  int64_t offset;
};

struct Widened {
  Launch launch;
  std::vector<Twin> inputs, outputs, written;
  // Of the launch; here, since a launch allocates nothing.
  std::vector<void*> input_data, output_data;
  std::vector<Conversion> arrays;
};

// Gives float32 to what is narrow, with a place for the twin behind `bytes`.
std::vector<Twin> widen_types(std::vector<TensorType>& types, int64_t& bytes) {
  std::vector<Twin> twins;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!is_narrow(types[i].dtype)) continue;
    twins.push_back({static_cast<int>(i), types[i].dtype, types[i].count(), bytes});
    types[i].dtype = DType::Float32;
    bytes = checked_sum(bytes, aligned(types[i].bytes()));
  }
  return twins;
}

Launch prepare_widened(KernelCall& call, const Kernel& kernel, const std::function<bool(size_t)>& is_written,
                       ConversionsOf conversions) {
  if (!any_narrow(call.inputs) && !any_narrow(call.outputs)) return kernel.prepare(call);
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
  state->arrays.resize(state->inputs.size() + state->outputs.size());
  call.scratch_bytes = checked_sum(twin_bytes, wide.scratch_bytes);
  call.explain = wide.explain;
  return [state, twin_bytes, conversions](const LaunchCall& at) {
    char* const scratch = static_cast<char*>(at.scratch);
    std::copy(at.inputs, at.inputs + state->input_data.size(), state->input_data.begin());
    std::copy(at.outputs, at.outputs + state->output_data.size(), state->output_data.begin());
    // Those of one dtype go together.
    constexpr DType kNarrowDTypes[] = {DType::BFloat16, DType::Float16};
    int count = 0;
    const auto convert = [&](Conversions::Convert by) {
      if (count > 0) by(at.stream, state->arrays.data(), count);
      count = 0;
    };
    for (const DType dtype : kNarrowDTypes) {
      for (const Twin& twin : state->inputs) {
        if (twin.dtype != dtype || !at.inputs[twin.index]) continue;
        state->input_data[twin.index] = scratch + twin.offset;
        state->arrays[count++] = {at.inputs[twin.index], scratch + twin.offset, twin.count};
      }
      convert(conversions(dtype).widen);
    }
    for (const Twin& twin : state->outputs) state->output_data[twin.index] = scratch + twin.offset;
    state->launch(
        LaunchCall{at.stream, state->input_data.data(), state->output_data.data(), scratch + twin_bytes, at.step});
    for (const DType dtype : kNarrowDTypes) {
      for (const Twin& twin : state->outputs)
        if (twin.dtype == dtype) state->arrays[count++] = {scratch + twin.offset, at.outputs[twin.index], twin.count};
      for (const Twin& twin : state->written)
        if (twin.dtype == dtype && at.inputs[twin.index])
          state->arrays[count++] = {scratch + twin.offset, at.inputs[twin.index], twin.count};
      convert(conversions(dtype).round);
    }
  };
}

}  // namespace

Kernel widened(Kernel kernel, std::function<bool(size_t)> is_written, ConversionsOf conversions) {
  Kernel result;
  result.heeds_readers = kernel.heeds_readers;
  if (kernel.layouts) {
    // The twins are dense and row-major.
    result.layouts = [layouts = kernel.layouts](LayoutCall& call) {
      if (!any_narrow(call.input_types) && !any_narrow(call.output_types)) return layouts(call);
      lie_in_rows(call);
    };
  }
  result.prepare = [kernel = std::move(kernel), is_written = std::move(is_written), conversions](KernelCall& call) {
    return prepare_widened(call, kernel, is_written, conversions);
  };
  return result;
}

}  // namespace moonflow
