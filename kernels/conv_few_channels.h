// Which convolutions of images with few channels a card has kernels of its own for (kernels/cuda/few_channels.h), with
// relu and max pooling of 2x2 windows behind them: where there is too little to sum for the library's matrix products.
#pragma once

#include <limits>

#include "kernels/conv.h"

namespace moonflow {

inline bool card_sums_few_channels(const Conv& conv) {
  const int64_t size = conv.windows[0].size;
  if (conv.groups != 1 || conv.image.channels > 4 || (size != 3 && size != 5 && size != 7)) return false;
  for (const Window& window : conv.windows)
    if (window.size != size || window.stride != 1 || window.dilation != 1 || window.out == 0) return false;
  if (conv.out.width > 1024) return false;  // a row of windows is to fit shared memory
  // Places are counted in 32 bits.
  const auto few = [](const ImageSize& image, int64_t rows) {
    return image.batch * image.channels * (image.height + rows) * (image.width + 8) < std::numeric_limits<int>::max();
  };
  return conv.image.batch > 0 && few(conv.image, size) && few(conv.out, size);
}

}  // namespace moonflow
