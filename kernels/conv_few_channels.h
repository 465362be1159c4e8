// Which convolutions of images with few channels a card has kernels of its own for (kernels/cuda/few_channels.h), with
// relu and max pooling of 2x2 windows behind them: where there is too little to sum for the library's matrix products.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/conv.h"

namespace moonflow {

inline bool card_sums_few_channels(const Conv& conv, DType dtype) {
  const int64_t size = conv.windows[0].size;
  if (conv.groups != 1 || conv.image.channels > 4 || (size != 3 && size != 5 && size != 7)) return false;
  if (!conv.slides_by_one() || conv.windows[1].size != size || conv.out.height * conv.out.width == 0) return false;
  // A row of windows of eight filters, with places, and its rows of the image are to fit what the smallest cards have
  // of shared memory for a block, and so are the sums of its threads.
  constexpr int64_t kShared = 63 << 10, kThreads = 256;
  const int64_t row = 16 * (conv.out.width / 2 + 1) + (size + 1) * (conv.out.width + size + 8);
  const int64_t sums = kThreads * (size * size + 1);
  if (std::max(row, sums) * (dtype == DType::Float64 ? 8 : 4) > kShared) return false;
  // Places are counted in 32 bits.
  const auto few = [](const ImageSize& image, int64_t rows) {
    return image.batch * image.channels * (image.height + rows) * (image.width + 8) < std::numeric_limits<int>::max();
  };
  return conv.image.batch > 0 && few(conv.image, size) && few(conv.out, size);
}

}  // namespace moonflow
