// PNG pictures: grey or in colours, 8 bits each. Reading trusts nothing: sizes are checked before memory is taken.
#pragma once

#include <memory>
#include <string>

#include "engine/tensor.h"

namespace moonflow {

// Takes what PictureBytes does.
void write_png(const std::string& path, const Tensor& picture);

// uint8 in the shapes that are written. Palettes become colours, 16 bits become 8, and fewer bits as many.
Tensor read_png(const std::string& path, const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
