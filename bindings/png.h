// PNG pictures: grey or in colours, 8 bits each. Reading trusts nothing: sizes are checked before memory is taken.
#pragma once

#include <memory>
#include <string>

#include "bindings/picture.h"

namespace moonflow {

// The bytes of a file. Takes what PictureBytes does.
std::string encode_png(const Tensor& picture);

// uint8 in the shapes that are written. Palettes become colours, 16 bits become 8, and fewer bits as many; or all of
// them stay as they are, `raw`: a palette's numbers, and 16 bits in int32.
Tensor decode_png(const EncodedPicture& picture, bool raw, const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
