// Convolution with bias, relu and max pooling of 2x2 windows on CUDA: own kernels for images with few channels
// (kernels/cuda/few_channels.h), and the pooling by itself (kernels/cuda/pool_by_two.h) for images that the library
// convolves.
#include <algorithm>

#include "kernels/conv.h"
#include "kernels/conv_few_channels.h"
#include "kernels/cuda/channels.h"
#include "kernels/cuda/direct_convolution.h"
#include "kernels/cuda/few_channels.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/pool_by_two.h"
#include "kernels/row_major.h"

namespace moonflow::cuda {
namespace {

// Of shared memory, so that some blocks stay side by side, and so that with a filter beside it a tile fits the 64 KiB
// that the smallest cards have for a block.
constexpr int64_t kTileBytes = 40 << 10;

WindowsByTwo windows_of(const ImageSize& image, bool channels_last) {
  return {image.batch, image.channels, image.height / 2, image.width / 2, channels_last};
}

WindowSteps steps_of(const WindowsByTwo& windows) {
  const int channels = static_cast<int>(windows.channels), plane = static_cast<int>(windows.plane());
  const int width = static_cast<int>(windows.width);
  if (windows.channels_last) return {int64_t{channels} * plane, 1, width * channels, channels};
  return {int64_t{channels} * plane, plane, width, 1};
}

FilterSteps filter_steps(const Conv& conv) {
  const int taps = static_cast<int>(conv.windows[0].size * conv.windows[1].size);
  const int channels = static_cast<int>(conv.image.channels);
  return {taps * channels, conv.format.channels_last ? 1 : taps, conv.format.channels_last ? channels : 1};
}

template <class T, int kSize>
Stack<T, kSize> stack_of(const Conv& conv) {
  const ImagePlaces in_memory = places(conv.image, conv.format);
  const int high = static_cast<int>(conv.out.height / 2);
  return {high,
          static_cast<int>(conv.windows[0].before),
          static_cast<int>(conv.windows[1].before),
          static_cast<int>(conv.image.height),
          static_cast<int>(conv.image.width),
          in_memory.batch_step,
          static_cast<int>(in_memory.channel_step),
          static_cast<int>(in_memory.row_step),
          static_cast<int>(in_memory.column_step),
          Divisor(static_cast<uint32_t>(high)),
          Divisor(static_cast<uint32_t>(2 * high + kSize - 1))};
}

// A kernel of few_channels.h that knows its image and its windows.
template <template <class, int> class Kernel, class T, int kSize>
Kernel<T, kSize> over_windows(const Conv& conv, const WindowsByTwo& windows) {
  Kernel<T, kSize> kernel;
  kernel.stack = stack_of<T, kSize>(conv);
  kernel.channels = static_cast<int>(conv.image.channels);
  kernel.filters = static_cast<int>(conv.filters());
  kernel.all_rows = static_cast<int>(windows.batch * windows.height);
  kernel.windows_wide = static_cast<int>(windows.width);
  return kernel;
}

int round_up(int x, int to) { return (x + to - 1) / to * to; }

// ---- forward ---------------------------------------------------------------------------------------------------

// The tiles: as many rows of windows as a block has threads for, and filters in as many groups as fill the card.
template <class T, int kSize>
Launch convolve_pool(const Conv& conv, bool out_last) {
  using Kernel = ConvolvePool<T, kSize>;
  const WindowsByTwo windows = windows_of(conv.out, out_last);
  Kernel kernel = over_windows<ConvolvePool, T, kSize>(conv, windows);
  kernel.of_filter = filter_steps(conv);
  kernel.of_out = steps_of(windows);

  // Threads of a warp write neighbouring windows, or where channels are last neighbouring filters.
  const int all_chunks = (kernel.filters + Kernel::kFilters - 1) / Kernel::kFilters;
  kernel.chunk_lanes = 1;
  while (out_last && kernel.chunk_lanes < 8 && kernel.chunk_lanes < all_chunks) kernel.chunk_lanes *= 2;
  const int units = Kernel::kThreads / kernel.chunk_lanes, all_pairs = (kernel.windows_wide + 1) / 2;
  const auto cut = [&](int column_tiles) {
    kernel.pairs = (all_pairs + column_tiles - 1) / column_tiles;
    kernel.column_tiles = (all_pairs + kernel.pairs - 1) / kernel.pairs;
    const int reach = std::max(4 * kernel.pairs + kSize - 1, 4 * (kernel.pairs - 1) + Kernel::kReach);
    kernel.tile_rows.pitch = round_up(reach, 4);
    kernel.tile_rows.pair_step = 2 * kernel.tile_rows.pitch;
    while (kernel.tile_rows.pair_step % 32 != 4 * kernel.pairs % 32) kernel.tile_rows.pair_step += 4;
    kernel.rows = std::min(std::max(units / kernel.pairs, 1), kernel.all_rows);
  };
  const auto tile_of = [&] { return (kernel.stack.most_rows(kernel.rows) + 1) / 2 * kernel.tile_rows.pair_step; };
  const auto is_large = [&] { return kernel.channels * tile_of() * int64_t{sizeof(T)} > kTileBytes; };
  cut((all_pairs + units - 1) / units);
  while (kernel.rows > 1 && is_large()) kernel.rows /= 2;
  while (kernel.pairs > 1 && is_large()) {
    cut(2 * kernel.column_tiles);
    kernel.rows = 1;
  }
  kernel.channel_tile = tile_of();

  const int64_t tiles = int64_t{kernel.column_tiles} * ((kernel.all_rows + kernel.rows - 1) / kernel.rows);
  const int64_t chunk_bytes = int64_t{Kernel::kFilters} * kernel.channels * Kernel::kTaps * int64_t{sizeof(T)};
  const int64_t most_chunks = std::max<int64_t>(kTileBytes / 2 / chunk_bytes, 1);
  const int64_t wanted =
      std::min(std::max<int64_t>(tiles * all_chunks / (6 * kProcessors), kernel.chunk_lanes), most_chunks);
  kernel.chunks = static_cast<int>(std::min<int64_t>(wanted, all_chunks));
  kernel.groups = (all_chunks + kernel.chunks - 1) / kernel.chunks;
  const int64_t shared =
      int64_t{kernel.channels} * (kernel.channel_tile + Kernel::kTaps * kernel.tap_pitch()) * int64_t{sizeof(T)};
  return [=](const LaunchCall& at) {
    Kernel bound = kernel;
    bound.image = at.input<T>(0);
    bound.filter = at.input<T>(1);
    bound.bias = at.input<T>(2);
    bound.out = at.output<T>(0);
    bound.places = at.output<uint8_t>(1);
    launch(at.stream, tiles * bound.groups, bound, shared);
  };
}

// What fusion does not ask for: the convolution goes to scratch.
template <class T>
Launch convolve_then_pool(const Conv& conv, KernelCall& call) {
  call.scratch_bytes = checked_product(conv.out.shape(conv.format).count(), sizeof(T));
  ConvolutionCall wanted{conv, ConvKind::Forward, call.inputs[0].dtype, true, true};
  return [convolve = direct_convolution<T>(wanted),
          windows = windows_of(conv.out, conv.format.channels_last)](const LaunchCall& at) {
    convolve(at.stream, {at.inputs[0], at.inputs[1], at.scratch, at.inputs[2], nullptr});
    pool_by_two<T>(at.stream, windows, windows.channels_last, static_cast<const T*>(at.scratch), at.output<T>(0),
                   at.output<uint8_t>(1));
  };
}

// ---- gradients of filter and bias ------------------------------------------------------------------------------

template <class T, int kSize>
Launch pool_filter_grad(const Conv& conv, bool dy_last, bool places_last, KernelCall& call) {
  using Kernel = PoolFilterGrad<T, kSize>;
  using Passed = typename Kernel::Passed;
  const WindowsByTwo windows = windows_of(conv.out, dy_last);
  Kernel kernel = over_windows<PoolFilterGrad, T, kSize>(conv, windows);
  kernel.by_wide = Divisor(static_cast<uint32_t>(windows.width));
  kernel.of_dy = steps_of(windows);
  kernel.of_places = steps_of(windows_of(conv.out, places_last));
  kernel.width = kWarp;
  const auto row_bytes = [&] { return kernel.width * windows.width * int64_t{sizeof(Passed)}; };
  while (kernel.width > 8 && (kernel.width / 2 >= kernel.filters || row_bytes() > kTileBytes)) kernel.width /= 2;
  kernel.groups = (kernel.filters + kernel.width - 1) / kernel.width;
  kernel.outputs = kernel.filters * (kernel.channels * Kernel::kTaps + 1);

  // Two blocks on each processor, so that one sums while the other reads.
  const int64_t apart = int64_t{kernel.groups} * kernel.channels;
  const int64_t wanted = std::clamp<int64_t>(2 * kProcessors / apart, 1, kernel.all_rows);
  kernel.rows_per_part = static_cast<int>((kernel.all_rows + wanted - 1) / wanted);
  const int64_t parts = (kernel.all_rows + kernel.rows_per_part - 1) / kernel.rows_per_part;

  // The four places of a window are to be in four banks, also of the rows below.
  kernel.pitch = 2 * kernel.windows_wide + kSize - 1;
  while ((kernel.pitch + 1) % 32 < 3) ++kernel.pitch;
  kernel.rows = kernel.rows_per_part;
  const auto tile_bytes = [&] {
    return int64_t{kernel.width} * (kernel.rows * kernel.windows_wide | 1) * int64_t{sizeof(Passed)} +
           int64_t{kernel.stack.most_rows(kernel.rows)} * kernel.pitch * int64_t{sizeof(T)};
  };
  while (kernel.rows > 1 && tile_bytes() > kTileBytes) kernel.rows = (kernel.rows + 1) / 2;
  kernel.passed_pitch = kernel.rows * kernel.windows_wide | 1;
  const int64_t shared =
      std::max<int64_t>(tile_bytes(), int64_t{Kernel::kThreads} * Kernel::kSums * int64_t{sizeof(T)});

  using Add = AddFilterParts<T>;
  const FoldShape folded(reduce::Groups({parts, kernel.outputs}, {true, false}));
  const int64_t part_bytes = aligned(parts * kernel.outputs * int64_t{sizeof(T)});
  call.scratch_bytes = checked_sum(part_bytes, folded.scratch_bytes<Add>());
  Add add{kernel.filters, Kernel::kTaps, kernel.channels, filter_steps(conv), nullptr, nullptr, nullptr};
  return [=](const LaunchCall& at) {
    Kernel bound = kernel;
    bound.dy = at.input<T>(0);
    bound.places = at.input<uint8_t>(1);
    bound.image = at.input<T>(2);
    bound.parts = static_cast<T*>(at.scratch);
    launch(at.stream, parts * apart, bound, shared);
    Add sum = add;
    sum.parts = bound.parts;
    sum.filter = at.output<T>(0);
    sum.bias = at.output<T>(1);
    fold(at.stream, folded, sum, static_cast<char*>(at.scratch) + part_bytes);
  };
}

// What fusion does not ask for: the gradient is spread in scratch.
template <class T>
Launch spread_then_filter_grad(const Conv& conv, KernelCall& call) {
  const WindowsByTwo windows = windows_of(conv.out, conv.format.channels_last);
  const int64_t bytes = checked_aligned(checked_product(conv.out.shape(conv.format).count(), sizeof(T)));
  call.scratch_bytes = checked_sum(bytes, spread_scratch_bytes<T>(windows));
  const ConvolutionCall wanted{conv, ConvKind::FilterGrad, call.inputs[0].dtype};
  return [=, sum = direct_convolution<T>(wanted)](const LaunchCall& at) {
    spread_by_two<T>(at.stream, windows, windows.channels_last, at.input<T>(0), at.input<uint8_t>(1),
                     static_cast<T*>(at.scratch), at.output<T>(1), static_cast<char*>(at.scratch) + bytes);
    sum(at.stream, {at.inputs[2], at.outputs[0], at.scratch, nullptr, nullptr});
  };
}

// ---- launchers -------------------------------------------------------------------------------------------------

// Calls f with the size of the window as a constant.
template <class F>
Launch visit_size(const Conv& conv, const F& f) {
  const int64_t size = conv.windows[0].size;
  if (size == 3) return f(std::integral_constant<int, 3>());
  return size == 5 ? f(std::integral_constant<int, 5>()) : f(std::integral_constant<int, 7>());
}

Launch prepare_conv_pool(KernelCall& call) {
  const Conv conv = conv_of(call.attrs, call.inputs[0].shape, call.inputs[1].shape, 2);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    if (!card_sums_few_channels(conv, call.inputs[0].dtype)) return convolve_then_pool<T>(conv, call);
    const bool out_last = conv.format.channels_last || is_channels_last(call.output_layouts[0]);
    return visit_size(conv, [&](auto size) { return convolve_pool<T, decltype(size)::value>(conv, out_last); });
  });
}

// How the pooled values are taken: the layout of all who read them, where there is one.
std::optional<Layout> taken(const LayoutCall& call) { return call.taken.empty() ? std::nullopt : call.taken[0]; }

// The image lies in rows, where its few channels are as near as they can be; what comes out, as it is taken.
void give_as_taken(LayoutCall& call) {
  const Conv conv = conv_of(call.attrs, call.input_types[0].shape, call.input_types[1].shape, 2);
  const bool may = !conv.format.channels_last && card_sums_few_channels(conv, call.input_types[0].dtype);
  const bool last = may && is_channels_last(taken(call).value_or(Layout{}));
  lie_in_rows(call);
  for (size_t i = 0; i < call.outputs.size() && last; ++i) call.outputs[i] = channels_last(call.output_types[i]);
}

Launch prepare_conv_pool_filter_grad(KernelCall& call) {
  const Conv conv = conv_of(call.attrs, call.inputs[2].shape, Shape(call.attrs.ints("shape")), 2);
  const auto last = [&](int i) { return conv.format.channels_last || is_channels_last(call.input_layouts[i]); };
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    if (!card_sums_few_channels(conv, call.inputs[0].dtype)) return spread_then_filter_grad<T>(conv, call);
    return visit_size(
        conv, [&](auto size) { return pool_filter_grad<T, decltype(size)::value>(conv, last(0), last(1), call); });
  });
}

// dy may lie as what comes after has it.
void take_channels_last(LayoutCall& call) {
  const Conv conv = conv_of(call.attrs, call.input_types[2].shape, Shape(call.attrs.ints("shape")), 2);
  for (int i = 0; i < 3; ++i) {
    const bool may = i < 2 && !conv.format.channels_last && card_sums_few_channels(conv, call.input_types[0].dtype);
    if (!may || !is_channels_last(call.inputs[i])) call.inputs[i] = Layout{};
  }
  std::fill(call.outputs.begin(), call.outputs.end(), Layout{});
}

bool says_channels_last(const Attrs& attrs) { return image_format(attrs.string("data_format"), 2).channels_last; }

Launch prepare_pool(KernelCall& call) {
  const ImageFormat format = image_format(call.attrs.string("data_format"), 2);
  const ImageSize image = image_size(call.inputs[0].shape, format, "x");
  const bool turned = is_channels_last(call.input_layouts[0]);
  const WindowsByTwo windows = windows_of(image, format.channels_last || turned);
  const bool out_last = format.channels_last || !call.output_layouts[0].row_major();
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    return [windows, out_last](const LaunchCall& at) {
      pool_by_two<T>(at.stream, windows, out_last, at.input<T>(0), at.output<T>(0), at.output<uint8_t>(1));
    };
  });
}

Launch prepare_pool_grad(KernelCall& call) {
  const ImageFormat format = image_format(call.attrs.string("data_format"), 2);
  const ImageSize image = image_size(call.outputs[0].shape, format, "dx");
  const WindowsByTwo windows = windows_of(image, format.channels_last || is_channels_last(call.input_layouts[1]));
  const bool dy_last = format.channels_last || is_channels_last(call.input_layouts[0]);
  return visit_floating(call.inputs[0].dtype, [&](auto zero) -> Launch {
    using T = decltype(zero);
    call.scratch_bytes = spread_scratch_bytes<T>(windows);
    return [windows, dy_last](const LaunchCall& at) {
      spread_by_two<T>(at.stream, windows, dy_last, at.input<T>(0), at.input<uint8_t>(1), at.output<T>(0),
                       at.output<T>(1), at.scratch);
    };
  });
}

// What is pooled stays as it lies, but comes out in rows where it is taken so; the gradient takes the order of
// `places`, and dy in rows in any case. What comes after the last pooling is a matrix, and turning that would take a
// step of its own.
void follow_image(LayoutCall& call) {
  if (says_channels_last(call.attrs)) return keep_channels_last(call, -1);
  const bool is_grad = call.inputs.size() > 1;
  const bool last = is_channels_last(call.inputs[is_grad ? 1 : 0]);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool stays = last && is_channels_last(call.inputs[i]);
    call.inputs[i] = stays ? channels_last(call.input_types[i]) : Layout{};
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const bool image = last && call.output_types[i].shape.rank() > 2;
    call.outputs[i] = image ? channels_last(call.output_types[i]) : Layout{};
  }
  if (!is_grad && taken(call) == Layout{}) call.outputs[0] = Layout{};
}

}  // namespace

void add_conv_pool(Kernels& kernels) {
  kernels["conv2d_relu_pool"] = {{prepare_conv_pool, give_as_taken, true}};
  kernels["conv2d_relu_pool_filter_grad"] = {{prepare_conv_pool_filter_grad, take_channels_last}};
  kernels["relu_max_pool2d"] = {{prepare_pool, follow_image, true}};
  kernels["relu_max_pool2d_grad"] = {{prepare_pool_grad, follow_image}};
}

}  // namespace moonflow::cuda
