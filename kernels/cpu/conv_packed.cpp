// The convolution as a product of matrices, over row-major values of either data format: what the windows see is a
// factor that is never stored, but packed for the product straight from the image. Its result is what lies together in
// memory: with channels first, filters times places, with channels last, places times filters.
#include <algorithm>
#include <limits>
#include <optional>

#include "kernels/cpu/conv.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/packed_product.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {
namespace {

// Distances between neighbours along the axes of an image, in elements.
struct ImageStrides {
  int64_t batch, channel, row, column;
};

ImageStrides strides(const ImageSize& size, const ImageFormat& format) {
  const int64_t plane = size.height * size.width;
  if (format.channels_last) return {plane * size.channels, 1, size.width * size.channels, size.channels};
  return {plane * size.channels, plane, size.width, 1};
}

int64_t places(const ImageSize& size) { return size.height * size.width; }
int64_t taps(const Conv& conv) { return conv.channels_per_group() * conv.windows[0].size * conv.windows[1].size; }

// Where each window is one place.
bool is_flat(const Conv& conv) {
  return std::all_of(conv.windows.begin(), conv.windows.end(),
                     [](const Window& w) { return w.size == 1 && w.stride == 1 && w.before == 0 && w.after == 0; });
}

// Rows are of no account there.
Conv flattened(Conv conv) {
  if (!is_flat(conv)) return conv;
  Window all;
  all.in = all.out = places(conv.image);
  conv.windows = {Window(), all};
  for (ImageSize* size : {&conv.image, &conv.out}) *size = {size->batch, size->channels, 1, all.in};
  return conv;
}

template <class T>
struct PackedConv {
  Conv conv;
  bool last = conv.format.channels_last;
  ImageStrides image = strides(conv.image, conv.format), out = strides(conv.out, conv.format),
               filter = strides(conv.filter_size(), conv.format);
  int64_t filters = conv.filters_per_group(), channels = conv.channels_per_group();

  // The places of a window along two axes, for each of so many channels, which are (channels, y, x) or (y, x, channels)
  // as memory has them.
  Walk window(int64_t count, int64_t channel_step, int64_t y_step, int64_t x_step) const {
    Walk walk;
    walk.ys = conv.windows[0].size, walk.xs = conv.windows[1].size;
    walk.y_step = y_step, walk.x_step = x_step;
    if (last)
      walk.inners = count, walk.inner_step = channel_step;
    else
      walk.outer_step = channel_step;
    return walk;
  }
  // Where runs along channels would be short, those along places are better in either format.
  bool runs_along_places(int64_t count) const {
    constexpr int64_t kShort = 8;
    return !last || count < kShort;
  }

  // Of places in an image, or in dy, of which each group has so many channels.
  Factor<T> places_in(const T* data, const ImageSize& size, const ImageStrides& steps, int64_t count) const {
    Factor<T> factor;
    factor.data = data;
    factor.lanes.outer_step = steps.batch;
    factor.height = size.height, factor.width = size.width;
    factor.row = steps.row, factor.column = steps.column;
    factor.runs_along_lanes = runs_along_places(count);
    factor.group = count * steps.channel;
    return factor;
  }

  // (places of the result, taps): what each window sees. Where that is one place, an image is a matrix as it is.
  Factor<T> seen(const T* data) const {
    const Window &down = conv.windows[0], &across = conv.windows[1];
    if (conv.image.batch == 1 && is_flat(conv))
      return matrix_factor(data, image.column, image.channel, channels * image.channel);
    Factor<T> factor = places_in(data, conv.image, image, channels);
    Walk& lanes = factor.lanes;
    lanes.ys = conv.out.height, lanes.y = -down.before, lanes.y_step = down.stride;
    lanes.xs = conv.out.width, lanes.x = -across.before, lanes.x_step = across.stride;
    factor.terms = window(channels, image.channel, down.dilation, across.dilation);
    return factor;
  }

  // (places of the image, taps of all filters): the dy of each window that has seen the place.
  Factor<T> seen_by(const T* dy) const {
    const Window &down = conv.windows[0], &across = conv.windows[1];
    Factor<T> factor = places_in(dy, conv.out, out, filters);
    Walk& lanes = factor.lanes;
    lanes.ys = conv.image.height, lanes.y = down.before, lanes.y_step = 1;
    lanes.xs = conv.image.width, lanes.x = across.before, lanes.x_step = 1;
    factor.terms = window(filters, out.channel, -down.dilation, -across.dilation);
    factor.y_apart = down.stride, factor.x_apart = across.stride;
    return factor;
  }

  // (filters, taps)
  Factor<T> weights(const T* data) const { return matrix_factor(data, taps(conv), 1, filters * taps(conv)); }

  // (channels, taps of all filters)
  Factor<T> turned_weights(const T* data) const {
    Factor<T> factor;
    factor.data = data;
    factor.lanes.inners = Walk::kEndless, factor.lanes.inner_step = filter.channel;
    factor.terms = window(filters, filter.batch, 1, 1);
    factor.height = conv.windows[0].size, factor.width = conv.windows[1].size;
    factor.row = filter.row, factor.column = filter.column;
    factor.runs_along_lanes = last;
    factor.group = filters * filter.batch;
    return factor;
  }

  // (filters, places)
  Factor<T> gradients(const T* dy) const {
    Factor<T> factor;
    factor.data = dy;
    factor.lanes.inners = Walk::kEndless, factor.lanes.inner_step = out.channel;
    factor.terms.xs = places(conv.out), factor.terms.x_step = 1;
    factor.terms.outer_step = out.batch;
    factor.width = places(conv.out), factor.column = out.column;
    factor.runs_along_lanes = last;
    factor.group = filters * out.channel;
    return factor;
  }

  static Factor<T> turned_over(Factor<T> factor) {
    std::swap(factor.lanes, factor.terms);
    factor.runs_along_lanes = !factor.runs_along_lanes;
    return factor;
  }

  // Of so many channels for each place of an image.
  PackedSizes sizes(const ImageSize& size, int64_t count, int64_t inner) const {
    const int64_t all = size.batch * places(size);
    return last ? PackedSizes{conv.groups, all, count, inner} : PackedSizes{conv.groups, count, all, inner};
  }
  PackedSizes sizes(ConvKind kind) const {
    if (is_filter_grad(kind)) return {conv.groups, filters, taps(conv), conv.out.batch * places(conv.out)};
    if (is_input_grad(kind)) return sizes(conv.image, channels, filters * conv.windows[0].size * conv.windows[1].size);
    return sizes(conv.out, filters, taps(conv));
  }

  // result = the product of what goes with places and what goes with channels.
  void multiply(const PackedSizes& sizes, const Factor<T>& of_places, const Factor<T>& of_channels, int64_t count,
                const ImageSize& size, const ImageStrides& steps, T* to, void* scratch) const {
    if (last) return multiply_packed(sizes, of_places, of_channels, {to, steps.column, count, 0, count}, scratch);
    const PackedResult<T> result{to, steps.channel, places(size), steps.batch, count * steps.channel};
    multiply_packed(sizes, of_channels, of_places, result, scratch);
  }
  void forward(const T* x, const T* weight, T* y, void* scratch) const {
    multiply(sizes(ConvKind::Forward), seen(x), weights(weight), filters, conv.out, out, y, scratch);
  }
  void input_grad(const T* dy, const T* weight, T* dx, void* scratch) const {
    multiply(sizes(ConvKind::InputGrad), seen_by(dy), turned_weights(weight), channels, conv.image, image, dx, scratch);
  }

  // ---- the gradient of x from the other side ----
  // What each dy adds to the places that its window has seen is a product too, of as many terms as there are filters.
  // Nothing in it is a zero that strides pass over, and of few channels less is added than would have to be packed.

  bool scatters() const {
    const bool strides_over = conv.windows[0].stride * conv.windows[1].stride > 1;
    return !is_flat(conv) && (strides_over || 2 * channels <= filters);
  }
  // Images at a time, whose products fit into the second cache, and those.
  int64_t images_together() const {
    constexpr int64_t kElements = 1 << 17;
    return std::clamp<int64_t>(kElements / std::max<int64_t>(1, taps(conv) * places(conv.out)), 1, conv.out.batch);
  }
  PackedSizes added_sizes(int64_t images) const { return {1, taps(conv), images * places(conv.out), filters}; }
  int64_t added_count() const { return taps(conv) * images_together() * places(conv.out); }

  void scatter(const T* dy, const T* weight, T* dx, T* added, void* scratch) const {
    for (int64_t first = 0, count; first < conv.out.batch; first += count) {
      count = std::min(images_together(), conv.out.batch - first);
      for (int64_t group = 0; group < conv.groups; ++group) {
        const int64_t columns = count * places(conv.out);
        const Factor<T> of_places = turned_over(gradients(dy + first * out.batch + group * filters * out.channel));
        multiply_packed(added_sizes(count), matrix_factor(weight + group * filters * taps(conv), 1, taps(conv)),
                        of_places, {added, columns, columns, 0}, scratch);
        T* const to = dx + first * image.batch + group * channels * image.channel;
        parallel_for(count * channels, kGrain / std::max<int64_t>(1, columns) + 1, [&](int64_t from, int64_t end) {
          widest([&] {
            for (int64_t i = from; i < end; ++i)
              add_plane(added, columns, i / channels, i % channels,
                        to + i / channels * image.batch + i % channels * image.channel);
          });
        });
      }
    }
  }

  // Of one channel of an image, from `columns` places of each tap.
  void add_plane(const T* added, int64_t columns, int64_t of_image, int64_t channel, T* plane) const {
    const Window &down = conv.windows[0], &across = conv.windows[1];
    const int64_t width = conv.out.width, tap_step = last ? channels : 1;
    for (int64_t y = 0; y < conv.image.height; ++y)
      for (int64_t x = 0; x < conv.image.width; ++x) plane[y * image.row + x * image.column] = 0;
    for (int64_t i = 0; i < down.size; ++i) {
      for (int64_t j = 0; j < across.size; ++j) {
        const int64_t tap = (last ? channel : channel * down.size * across.size) + (i * across.size + j) * tap_step;
        const T* from = added + tap * columns + of_image * places(conv.out);
        const int64_t left = j * across.dilation - across.before;  // where the first window has this tap
        const int64_t begin = left < 0 ? divide_up(-left, across.stride) : 0;
        const int64_t end = std::min(width, divide_up(conv.image.width - left, across.stride));
        for (int64_t y = 0; y < conv.out.height; ++y, from += width) {
          const int64_t row = y * down.stride + i * down.dilation - down.before;
          if (row < 0 || row >= conv.image.height) continue;
          T* const to = plane + row * image.row + left * image.column;
          const int64_t step = across.stride * image.column;
          if (step == 1)
            for (int64_t x = begin; x < end; ++x) to[x] += from[x];
          else
            for (int64_t x = begin; x < end; ++x) to[x * step] += from[x];
        }
      }
    }
  }

  void filter_grad(const T* dy, const T* x, T* dfilter, void* scratch) const {
    const Factor<T> turned = turned_over(seen(x));
    const PackedResult<T> result{dfilter, taps(conv), taps(conv), 0, filters * taps(conv)};
    multiply_packed(sizes(ConvKind::FilterGrad), gradients(dy), turned, result, scratch);
  }
};

// Bias and activation, over what lies together: one filter's plane, or all filters of one place.
template <class T>
void finish(const Conv& conv, const T* bias, Activation activation, T* out) {
  if (bias == nullptr && activation == Activation::None) return;
  const bool last = conv.format.channels_last;
  const int64_t filters = conv.filters(), plane = places(conv.out);
  const int64_t size = last ? filters : plane, count = conv.out.batch * (last ? plane : filters);
  // One loop for every activation, which a choice among them within the loop would keep from the registers.
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const T low = activation == Activation::None ? -kInfinity : T(0);
  const T high = activation == Activation::Relu6 ? T(6) : kInfinity;
  const auto activated = [low, high](T y) { return y < low ? low : y > high ? high : y; };
  parallel_for(count, kGrain / std::max<int64_t>(1, size) + 1, [=](int64_t from, int64_t to) {
    widest([=] {
      for (int64_t i = from; i < to; ++i) {
        T* const piece = out + i * size;
        if (bias != nullptr && last) {
          for (int64_t j = 0; j < size; ++j) piece[j] = activated(piece[j] + bias[j]);
        } else {
          const T own = bias != nullptr ? bias[i % filters] : T(0);
          for (int64_t j = 0; j < size; ++j) piece[j] = activated(piece[j] + own);
        }
      }
    });
  });
}

template <class T>
void bias_grad(const Conv& conv, const T* dy, T* dbias) {
  const ImageStrides from = strides(conv.out, conv.format);
  const int64_t count = places(conv.out);
  parallel_for(conv.filters(), kGrain / std::max<int64_t>(1, conv.out.batch * count) + 1,
               [&](int64_t first, int64_t last) {
                 for (int64_t f = first; f < last; ++f) {
                   double sum = 0;
                   for (int64_t n = 0; n < conv.out.batch; ++n)
                     for (int64_t i = 0; i < count; ++i) sum += dy[n * from.batch + f * from.channel + i * from.column];
                   dbias[f] = static_cast<T>(sum);
                 }
               });
}

template <class T>
Launch prepare(const Conv& original, ConvKind kind, Activation activation, KernelCall& call) {
  const PackedConv<T> packed{flattened(original)};
  std::optional<DepthwiseConv> depthwise;
  const bool may_be_depthwise = is_forward(kind) || (is_filter_grad(kind) && !original.format.channels_last);
  if (may_be_depthwise && DepthwiseConv::fits(original)) depthwise.emplace(original);
  const bool scatters = is_input_grad(kind) && packed.scatters();
  const int64_t added_bytes = scatters ? aligned(packed.added_count() * static_cast<int64_t>(sizeof(T))) : 0;
  if (depthwise)
    call.scratch_bytes = depthwise->scratch_bytes<T>();
  else if (scatters)
    call.scratch_bytes = added_bytes + packed_scratch_bytes<T>(packed.added_sizes(packed.images_together()));
  else
    call.scratch_bytes = packed_scratch_bytes<T>(packed.sizes(kind));
  return [=](const LaunchCall& launch) {
    const T *first = launch.input<T>(0), *second = launch.input<T>(1);
    T* out = launch.output<T>(0);
    if (scatters) {
      char* const scratch = static_cast<char*>(launch.scratch);
      return packed.scatter(first, second, out, reinterpret_cast<T*>(scratch), scratch + added_bytes);
    }
    if (is_input_grad(kind)) return packed.input_grad(first, second, out, launch.scratch);
    if (is_filter_grad(kind)) {
      if (depthwise)
        depthwise->filter_grad(first, second, out, static_cast<T*>(launch.scratch));
      else
        packed.filter_grad(first, second, out, launch.scratch);
      if (kind == ConvKind::FilterBiasGrad) bias_grad(original, first, launch.output<T>(1));
      return;
    }
    if (depthwise)
      depthwise->run(first, second, out, static_cast<T*>(launch.scratch));
    else
      packed.forward(first, second, out, launch.scratch);
    finish(original, kind == ConvKind::ForwardBias ? launch.input<T>(2) : nullptr, activation, out);
  };
}

}  // namespace

Launch conv_packed(const Conv& conv, ConvKind kind, DType dtype, Activation activation, KernelCall& call) {
  return visit_floating(dtype, [&](auto zero) { return prepare<decltype(zero)>(conv, kind, activation, call); });
}

}  // namespace moonflow::cpu
