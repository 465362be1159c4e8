// JPEG pictures: grey or in colours, 8 bits each. Reading trusts nothing: sizes are checked before memory is taken.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bindings/orientation.h"
#include "bindings/picture.h"

namespace moonflow {

// The bytes of a file. Takes a picture as encode_png does, but of 1 or 3 channels. `quality` is from 1 to 100.
std::string encode_jpeg(const Tensor& picture, int quality);

constexpr int kMostJpegReduction = 8;

// uint8, (height, width) where it is grey, else (height, width, 3), as it is to be seen if it lies so in the file.
// A damaged picture is an error, and no grey half. Where `reduction` gives 2, 4 or 8 for the sides of the result, they
// are divided by that, rounded up, which takes less time than to decode all of it.
Tensor decode_jpeg(const EncodedPicture& picture, Orientation orientation, const std::shared_ptr<HostMemory>& memory,
                   const std::function<int(int64_t height, int64_t width)>& reduction = nullptr);

}  // namespace moonflow
