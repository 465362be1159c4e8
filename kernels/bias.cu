// Adding one number per channel, and its gradient, on CUDA. Channels are where the shape says, or last in memory.
#include <algorithm>

#include "kernels/cuda/channel_sums.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/parts.h"
#include "kernels/image.h"

namespace moonflow::cuda {
namespace {

// ---- the sum over all but the channels -----------------------------------------------------------------------
// A block has a few channels and a part of their elements; each thread adds up to kRun numbers in float before it goes
// on in double, as on the CPU. Parts depend on the sizes alone and are added in order, so the result never changes.

constexpr int64_t kRun = 64;

template <class T>
class RunningSum {
 public:
  MOONFLOW_DEVICE void add(T x) {
    run_ += x;
    if (++length_ < kRun) return;
    sum_ += run_;
    run_ = 0;
    length_ = 0;
  }
  MOONFLOW_DEVICE double sum() const { return sum_ + run_; }

 private:
  T run_ = 0;
  int64_t length_ = 0;
  double sum_ = 0;
};

// Sums go to `parts` in double, or where there is one part, to `out`.
template <class Out>
struct Sums {
  double* parts;
  Out* out;
  MOONFLOW_DEVICE void give(int64_t place, double sum) const {
    if (parts)
      parts[place] = sum;
    else
      out[place] = Out(static_cast<Computed<Out>>(sum));
  }
};

// Of rows of channels: `width` channels side by side, a power of two up to 32, in each row of threads.
template <class T, class Out>
struct SumRows {
  static constexpr int kThreads = 256;
  const T* x;
  Sums<Out> sums;
  int64_t rows, rows_per_part, channels, tiles;
  int width;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    double* const of_threads = block.template shared<double>();
    const int64_t part = block.index() / tiles, channel = block.index() % tiles * width + block.thread() % width;
    const int64_t first = part * rows_per_part, last = first + rows_per_part < rows ? first + rows_per_part : rows;
    RunningSum<Computed<T>> sum;
    if (channel < channels) {
      for (int64_t row = first + block.thread() / width; row < last; row += kThreads / width)
        sum.add(x[row * channels + channel]);
    }
    of_threads[block.thread()] = sum.sum();
    block.sync();
    if (block.thread() >= width || channel >= channels) return;
    double total = 0;
    for (int i = block.thread(); i < kThreads; i += width) total += of_threads[i];
    sums.give(part * channels + channel, total);
  }
};

// Of planes: each channel's elements lie side by side.
template <class T, class Out>
struct SumPlanes {
  static constexpr int kThreads = 256;
  const T* x;
  Sums<Out> sums;
  int64_t elements, elements_per_part, channels, plane;  // elements of a channel
  LongDivisor by_plane;
  template <class Block>
  MOONFLOW_DEVICE void operator()(const Block& block) const {
    const int64_t part = block.index() / channels, channel = block.index() % channels;
    const int64_t first = part * elements_per_part;
    const int64_t last = first + elements_per_part < elements ? first + elements_per_part : elements;
    RunningSum<Computed<T>> sum;
    for (int64_t i = first + block.thread(); i < last; i += kThreads) {
      int64_t place;
      const int64_t outer = by_plane.quotient(i, place);
      sum.add(x[(outer * channels + channel) * plane + place]);
    }
    const double total = over_block(block, sum.sum(), Sum());
    if (block.thread() == 0) sums.give(part * channels + channel, total);
  }
};

// ---- launchers -----------------------------------------------------------------------------------------------

ChannelPlanes planes_of(const KernelCall& call) {
  const Shape& shape = call.inputs[0].shape;
  const int axis = channel_axis(call.attrs.string("data_format"), shape.rank());
  ChannelPlanes planes{shape.count(0, axis), shape[axis], shape.count(axis + 1, shape.rank())};
  if (is_channels_last(call.input_layouts[0])) planes = {planes.outer * planes.plane, planes.channels, 1};
  return planes;
}

// Channels last are as good as rows, where axis 1 has the channels.
void keep_channels_last(LayoutCall& call) {
  const bool first = channel_axis(call.attrs.string("data_format"), call.input_types[0].shape.rank()) == 1;
  if (!first || !is_channels_last(call.inputs[0])) call.inputs[0] = Layout{};
  for (size_t i = 1; i < call.inputs.size(); ++i) call.inputs[i] = Layout{};
  if (call.output_types[0].shape.rank() > 1) call.outputs[0] = call.inputs[0];
}

Launch prepare_bias_add(KernelCall& call) {
  const ChannelPlanes planes = planes_of(call);
  const DType value = call.inputs[0].dtype, bias = call.inputs[1].dtype;
  const auto pieces = pieces_of<2>({Shape{planes.outer, planes.channels, planes.plane}, Shape{planes.channels, 1}},
                                   Shape{planes.outer, planes.channels, planes.plane});
  const auto adding = [&](auto x, auto y) -> Launch {
    return [pieces](const LaunchCall& at) {
      launch_broadcast<functor::Add, decltype(x), decltype(y)>(at.stream, {}, pieces, at.inputs[0], at.inputs[1],
                                                               at.outputs[0]);
    };
  };
  if (!is_narrow(value)) return visit_floating(value, [&](auto zero) { return adding(zero, zero); });
  return visit_narrow(value, [&](auto x) { return bias == value ? adding(x, x) : adding(x, float{}); });
}

// A part has so many elements of a channel that starting it pays, and all parts together fill the card.
int64_t part_of(int64_t elements, int64_t least, int64_t blocks) {
  constexpr int64_t kEnoughBlocks = kProcessors * 4;
  const int64_t parts = std::clamp(elements / least, int64_t{1}, std::max(kEnoughBlocks / blocks, int64_t{1}));
  return std::max((elements + parts - 1) / parts, int64_t{1});
}

template <class T, class Out>
ChannelSumLaunch sum_channels(ChannelPlanes planes, int64_t& scratch_bytes) {
  if (planes.plane == 0) planes = {0, planes.channels, 1};  // nothing is to be found in an empty plane
  scratch_bytes = 0;
  if (planes.channels == 0) return [](Stream&, const void*, void*, void*) {};
  const bool in_rows = planes.plane == 1;
  const int64_t elements = planes.outer * planes.plane;
  int width = 32;
  while (in_rows && width > 1 && width / 2 >= planes.channels) width /= 2;
  const int64_t tiles = in_rows ? (planes.channels + width - 1) / width : planes.channels;
  const int64_t per_part = part_of(elements, in_rows ? SumRows<T, Out>::kThreads / width * 16 : 2048, tiles);
  const int64_t parts = std::max((elements + per_part - 1) / per_part, int64_t{1});
  if (parts > 1) scratch_bytes = parts * planes.channels * static_cast<int64_t>(sizeof(double));
  return [=](Stream& stream, const void* from, void* to, void* scratch) {
    const T* const x = static_cast<const T*>(from);
    const Sums<Out> sums{parts == 1 ? nullptr : static_cast<double*>(scratch), static_cast<Out*>(to)};
    if (in_rows) {
      launch(stream, tiles * parts, SumRows<T, Out>{x, sums, elements, per_part, planes.channels, tiles, width},
             SumRows<T, Out>::kThreads * sizeof(double));
    } else {
      launch(stream, tiles * parts,
             SumPlanes<T, Out>{x, sums, elements, per_part, planes.channels, planes.plane, LongDivisor(planes.plane)});
    }
    if (parts > 1) add_parts(stream, AddParts<double, Out>{sums.parts, sums.out, parts, planes.channels});
  };
}

Launch prepare_bias_grad(KernelCall& call) {
  const ChannelSumLaunch sum =
      channel_sums(planes_of(call), call.inputs[0].dtype, call.outputs[0].dtype, call.scratch_bytes);
  return [sum](const LaunchCall& at) { sum(at.stream, at.inputs[0], at.outputs[0], at.scratch); };
}

}  // namespace

ChannelSumLaunch channel_sums(const ChannelPlanes& planes, DType dtype, DType result, int64_t& scratch_bytes) {
  if (dtype == DType::Float64) return sum_channels<double, double>(planes, scratch_bytes);
  if (dtype == DType::Float32) return sum_channels<float, float>(planes, scratch_bytes);
  return visit_narrow(dtype, [&](auto zero) {
    using T = decltype(zero);
    return result == dtype ? sum_channels<T, T>(planes, scratch_bytes) : sum_channels<T, float>(planes, scratch_bytes);
  });
}

void add_bias(Kernels& kernels) {
  kernels["bias_add"] = {{prepare_bias_add, keep_channels_last}, true};
  kernels["bias_grad"] = {{prepare_bias_grad, keep_channels_last}, true};
}

}  // namespace moonflow::cuda
