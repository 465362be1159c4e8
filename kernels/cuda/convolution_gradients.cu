#include "kernels/cuda/convolution_gradients.h"

#include <algorithm>

#include "kernels/cuda/block.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/filter_gradient_tile.h"
#include "kernels/cuda/input_gradient_tile.h"

namespace moonflow::cuda {
namespace {

constexpr int64_t kMostShared = 220 << 10;

// Whether the kernels compute this at all, and whether it is so little work that the library's large tiles do not pay.
bool suits(Device& device, const ConvolutionCall& call) {
  const Conv& conv = call.conv;
  constexpr int64_t kMostPlaces = 256 * kProcessors, kMostChannels = 128, kMostTaps = 7;
  if (call.dtype != DType::Float32 || call.precision != Precision::Tf32 || !has_tensor_cores(device)) return false;
  if (!conv.format.channels_last || conv.groups != 1) return false;
  if (conv.image.channels % 32 != 0 || conv.image.channels > kMostChannels) return false;
  if (conv.filters() % 32 != 0 || conv.filters() > kMostChannels) return false;
  if (!conv.slides_by_one()) return false;
  for (const Window& window : conv.windows)
    if (window.size > kMostTaps || window.before >= window.size) return false;
  const auto places = [](const ImageSize& size) { return size.batch * size.height * size.width; };
  return std::min(places(conv.image), places(conv.out)) > 0 &&
         std::max(places(conv.image), places(conv.out)) <= kMostPlaces;
}

template <int kColumns>
ConvolutionLaunch input_gradient_in_tiles(const Conv& conv) {
  const InputGradientTile<kColumns> tile(conv);
  if (tile.shared_bytes() > kMostShared) return {};
  return [tile](Stream& stream, const ConvolutionBuffers& at) {
    InputGradientTile<kColumns> bound = tile;
    bound.dy = static_cast<const float*>(at.out);
    bound.filter = static_cast<const float*>(at.filter);
    bound.dx = static_cast<float*>(at.image);
    launch(stream, bound.blocks(), bound, bound.shared_bytes());
  };
}

template <int kWide>
ConvolutionLaunch filter_gradient_in_tiles(const Conv& conv, bool in_rows, int64_t& scratch_bytes) {
  FilterGradientTile<kWide> tile(conv);
  if (tile.shared_bytes() > kMostShared) return {};
  const int parts = std::max(kProcessors / tile.tiles(), 1);
  tile.stages_of_part = (tile.stages() + parts - 1) / parts;
  const int taps = tile.high * kWide;
  const AddFilterGradients add{int64_t{tile.filters} * taps * tile.channels,
                               tile.part_count(),
                               tile.channels,
                               taps,
                               in_rows,
                               Divisor(static_cast<uint32_t>(tile.channels)),
                               Divisor(static_cast<uint32_t>(taps)),
                               nullptr,
                               nullptr};
  scratch_bytes = add.parts * add.count * static_cast<int64_t>(sizeof(float));
  return [tile, add](Stream& stream, const ConvolutionBuffers& at) {
    FilterGradientTile<kWide> bound = tile;
    bound.image = static_cast<const float*>(at.image);
    bound.dy = static_cast<const float*>(at.out);
    bound.parts = static_cast<float*>(at.scratch);
    launch(stream, bound.blocks(), bound, bound.shared_bytes());
    AddFilterGradients sum = add;
    sum.from = bound.parts;
    sum.to = static_cast<float*>(at.filter);
    for_each(stream, sum.count, sum);
  };
}

}  // namespace

// The library is as fast for 3x3 windows.
ConvolutionLaunch input_gradient(Device& device, const ConvolutionCall& call) {
  constexpr int64_t kLeastTaps = 25;
  if (!suits(device, call) || call.conv.windows[0].size * call.conv.windows[1].size < kLeastTaps) return {};
  return call.conv.image.channels % 64 == 0 ? input_gradient_in_tiles<64>(call.conv)
                                            : input_gradient_in_tiles<32>(call.conv);
}

ConvolutionLaunch filter_gradient(Device& device, const ConvolutionCall& call, bool in_rows, int64_t& scratch_bytes) {
  const int64_t wide = call.conv.windows[1].size;
  if (!suits(device, call) || call.conv.filters() % 64 != 0) return {};
  if (wide == 3) return filter_gradient_in_tiles<3>(call.conv, in_rows, scratch_bytes);
  if (wide == 5) return filter_gradient_in_tiles<5>(call.conv, in_rows, scratch_bytes);
  return {};
}

}  // namespace moonflow::cuda
