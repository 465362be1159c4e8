// What a kernel of the given card makes of images that lie with their channels last.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/cuda/layout.h"
#include "oracle.h"

namespace moonflow::oracle {

// Whether channels last is another order of its elements than rows.
inline bool has_places(const TensorType& type) {
  return type.shape.rank() > 2 && type.shape.count(2, type.shape.rank()) > 1;
}

// The layouts that the kernel chooses when all images are offered with their channels last; none where it takes and
// gives rows alone.
inline std::optional<Layouts> channels_last_layouts(const Trial& trial, Device& card) {
  const Layouts wanted = layouts_of(
      trial, card, [](const TensorType& type) { return type.shape.rank() > 2 ? cuda::channels_last(type) : Layout{}; });
  const auto is_last = [](const Layout& layout) { return cuda::is_channels_last(layout); };
  if (std::none_of(wanted.inputs.begin(), wanted.inputs.end(), is_last) &&
      std::none_of(wanted.outputs.begin(), wanted.outputs.end(), is_last))
    return {};
  return wanted;
}

}  // namespace moonflow::oracle
