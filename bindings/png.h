// PNG pictures: grey or in colours, 8 bits each. Reading trusts nothing: sizes are checked before memory is taken.
#pragma once

#include <memory>
#include <string>

#include "engine/tensor.h"

namespace moonflow {

// (height, width) is grey; (height, width, channels) is grey, grey and opacity, red green blue, or these and opacity.
// uint8 is taken as it is; of float32 and float64 the range from 0 to 1 becomes 0 to 255, what is outside of it the
// nearer end, a NaN 0.
void write_png(const std::string& path, const Tensor& picture);

// uint8 in the shapes that are written. Palettes become colours, 16 bits become 8, and fewer bits as many.
Tensor read_png(const std::string& path, const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
