// What the CPU's kernels of a convolution share: how many threads pay, and how they see filters and images.
#include "kernels/cpu/conv.h"

#include "kernels/cpu/device.h"

namespace moonflow::cpu {

int conv_parts(const Conv& conv, double saving) {
  constexpr double kFlopsOfThread = 5e5;  // a few microseconds, in which a second thread is at work
  return threads_for(conv_flops(conv) / saving, kFlopsOfThread);
}

FilterSteps filter_steps(const Conv& conv, ConvKind kind) {
  const int64_t rows = conv.windows[0].size, columns = conv.windows[1].size, channels = conv.channels_per_group();
  const int64_t step = conv.format.channels_last ? channels : 1,
                of_channel = conv.format.channels_last ? 1 : rows * columns;
  const int64_t of_filter = rows * columns * channels;
  if (!is_input_grad(kind)) return {of_channel, of_filter, columns * step, step};
  return {of_filter, of_channel, -columns * step, -step, (rows * columns - 1) * step};
}

void block_layouts(const Conv& conv, ConvKind kind, LayoutCall& call) {
  // The first input is an image; of the others, x of the filter's gradient and the places of a pooled image.
  const int images = 1 + (is_filter_grad(kind) ? 1 : 0) + (is_pooled(kind) && !is_forward(kind) ? 1 : 0);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const bool image = static_cast<int>(i) < images;
    call.inputs[i] = image ? in_blocks(call.input_types[i], call.inputs[i], conv.format) : Layout{};
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] = is_filter_grad(kind) ? Layout{} : in_blocks(call.output_types[i], {}, conv.format);
  }
  if (kind == ConvKind::ForwardAdd) call.inputs[3] = call.outputs[0];
}

std::optional<ConvBlocks> conv_blocks(const Conv& conv, ConvKind kind, const KernelCall& call) {
  const bool filter = is_filter_grad(kind), turned = is_input_grad(kind), pooled = is_pooled(kind);
  const auto input = [&](int i) { return blocks_of(call.inputs[i], call.input_layouts[i], conv.format); };
  const auto output = [&](int i) { return blocks_of(call.outputs[i], call.output_layouts[i], conv.format); };
  const std::optional<Blocks> image = filter ? input(pooled ? 2 : 1) : input(0), out = filter ? input(0) : output(0);
  if (!image || !out) return std::nullopt;
  if (kind == ConvKind::ForwardAdd && call.input_layouts[3] != call.output_layouts[0]) return std::nullopt;
  ConvBlocks found{*image, *out};
  if (!pooled) return found;
  // Places are half as high and wide as what is computed.
  const std::optional<Blocks> places = is_forward(kind) ? output(1) : input(1);
  Blocks& about = turned ? found.image : found.out;
  if (!places || places->block != about.block || places->column != about.column) return std::nullopt;
  about.height = conv.out.height;
  about.width = conv.out.width;
  return found;
}

}  // namespace moonflow::cpu
