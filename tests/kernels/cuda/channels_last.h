// Launches of an op on the given card whose images lie with their channels last.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/cuda/layout.h"
#include "oracle.h"

namespace moonflow::oracle {

// An image (batch, channels, space...) with its channels last in memory, and back.
inline Tensor turned(const Tensor& image, bool forth) {
  const Shape& shape = image.shape();
  const int64_t channels = shape[1], places = shape.count(2, shape.rank()), size = size_of(image.dtype());
  Tensor result = Tensor::allocate(image.type());
  for (int64_t n = 0; n < shape[0]; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < places; ++p) {
        const int64_t rows = (n * channels + c) * places + p, last = (n * places + p) * channels + c;
        std::memcpy(result.data<char>() + size * (forth ? last : rows),
                    image.data<char>() + size * (forth ? rows : last), static_cast<size_t>(size));
      }
    }
  }
  return result;
}

// Whether channels last is another order of its elements than rows.
inline bool has_places(const TensorType& type) {
  return type.shape.rank() > 2 && type.shape.count(2, type.shape.rank()) > 1;
}

// The layouts that the kernel chooses when all images are offered with their channels last; none where it takes and
// gives rows alone.
inline std::optional<Layouts> channels_last_layouts(const Trial& trial, Device& card) {
  const Kernel& kernel = card.kernel(*trial.op);
  if (!kernel.layouts) return {};
  std::vector<TensorType> inputs;
  std::vector<bool> present;
  std::vector<Layout> offered;
  for (const Tensor& input : trial.inputs) {
    inputs.push_back(input ? input.type() : TensorType{});
    present.push_back(static_cast<bool>(input));
    offered.push_back(inputs.back().shape.rank() > 2 ? cuda::channels_last(inputs.back()) : Layout{});
  }
  const std::vector<TensorType> outputs = trial.infer();
  LayoutCall call{card, trial.attrs, inputs, present, outputs, offered, std::vector<Layout>(outputs.size())};
  kernel.layouts(call);
  const auto is_last = [](const Layout& layout) { return cuda::is_channels_last(layout); };
  if (std::none_of(call.inputs.begin(), call.inputs.end(), is_last) &&
      std::none_of(call.outputs.begin(), call.outputs.end(), is_last))
    return {};
  return Layouts{call.inputs, call.outputs};
}

// The trial's values are in rows, and so is what is given.
inline Launched launch_channels_last(const Trial& trial, Device& card, const Layouts& layouts,
                                     const Sharing* share = nullptr) {
  Trial lying = trial;
  for (size_t i = 0; i < lying.inputs.size(); ++i)
    if (cuda::is_channels_last(layouts.inputs[i])) lying.inputs[i] = turned(lying.inputs[i], true);
  Launched result = launch(lying, card, share, layouts);
  for (size_t i = 0; i < result.outputs.size(); ++i)
    if (cuda::is_channels_last(layouts.outputs[i])) result.outputs[i] = turned(result.outputs[i], false);
  for (size_t i = 0; i < result.inputs.size(); ++i)
    if (cuda::is_channels_last(layouts.inputs[i])) result.inputs[i] = turned(result.inputs[i], false);
  return result;
}

}  // namespace moonflow::oracle
