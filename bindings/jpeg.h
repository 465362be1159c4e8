// JPEG pictures: grey or in colours, 8 bits each. Reading trusts nothing: sizes are checked before memory is taken.
#pragma once

#include <memory>
#include <string>

#include "bindings/picture.h"

namespace moonflow {

// Takes a picture as write_png does, but of 1 or 3 channels. `quality` is from 1 to 100.
void write_jpeg(const std::string& path, const Tensor& picture, int quality);

// uint8, (height, width) where it is grey, else (height, width, 3). A damaged picture is an error, and no grey half.
Tensor decode_jpeg(const EncodedPicture& picture, const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
