// What a convolution of bytes multiplies: filters in blocks, images with channels last.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/conv_quantized.h"
#include "kernels/cpu/conv_quantized_parts.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/marked_layout.h"
#include "kernels/cpu/simd.h"

namespace moonflow::cpu {

PackedFilter packed_filter(const QuantizedConv& sizes) {
  const Conv& conv = sizes.conv;
  PackedFilter filter{};
  widest_register([&](auto wide) { filter.lanes = decltype(wide)::kWidth; });
  filter.filters = conv.filters();
  filter.channels = conv.channels_per_group();
  filter.taps = conv.windows[0].size * conv.windows[1].size;
  filter.groups = sizes.is_depthwise() ? 1 : conv.groups;
  filter.channels_last = conv.format.channels_last;
  filter.terms = has_byte_products() ? 4 : 2;
  filter.steps = sizes.is_depthwise() ? 1 : round_up(filter.channels, 4) / filter.terms;
  return filter;
}

// ---- filters -------------------------------------------------------------------------------------------------------

namespace {

template <class T>
void pack(const PackedFilter& form, const int8_t* rows, void* out) {
  int32_t* const sums = static_cast<int32_t*>(out);
  T* const numbers = reinterpret_cast<T*>(static_cast<char*>(out) + form.sums_bytes());
  const int64_t of_filter = form.taps * form.channels;
  const int64_t of_channel = form.channels_last ? 1 : form.taps, of_tap = form.channels_last ? form.channels : 1;
  std::memset(out, 0, form.bytes());
  parallel_for(form.filters, kGrain / of_filter + 1, [&](int64_t first, int64_t last) {
    for (int64_t f = first; f < last; ++f) {
      const int64_t place = form.padded(f), block = place / form.lanes, lane = place % form.lanes;
      for (int64_t tap = 0; tap < form.taps; ++tap) {
        T* const to = numbers + ((block * form.taps + tap) * form.steps * form.lanes + lane) * form.terms;
        for (int64_t c = 0; c < form.channels; ++c) {
          const int8_t number = rows[f * of_filter + tap * of_tap + c * of_channel];
          to[c / form.terms * form.lanes * form.terms + c % form.terms] = number;
          sums[place] += number;
        }
      }
    }
  });
}

}  // namespace

bool is_quantized_filter(const Layout& layout) { return is_marked<PackedFilter>(layout); }

Launch quantized_filter(const Layout& layout) {
  return [form = marked_form<PackedFilter>(layout)](const LaunchCall& call) {
    const int8_t* const rows = call.input<int8_t>(0);
    form.terms == 4 ? pack<int8_t>(form, rows, call.outputs[0]) : pack<int16_t>(form, rows, call.outputs[0]);
  };
}

// ---- images --------------------------------------------------------------------------------------------------------

namespace {

// What is seen along an axis, and where the image begins in it.
struct Seen {
  int64_t size, before;
};

Seen seen(const Window& window) {
  const int64_t reach = (window.out - 1) * window.stride + (window.size - 1) * window.dilation + 1;
  const bool within = window.before <= 0 && reach - window.before <= window.in;
  return within ? Seen{window.in, 0} : Seen{reach, window.before};
}

}  // namespace

SeenImage::SeenImage(const QuantizedConv& sizes, const PackedFilter& filter, const ChannelForm& form) : given(form) {
  const Conv& conv = sizes.conv;
  const Seen down = seen(conv.windows[0]), across = seen(conv.windows[1]);
  height = down.size;
  top = down.before;
  width = across.size;
  left = across.before;
  image_height = conv.image.height;
  image_width = conv.image.width;
  groups = filter.groups;
  const int64_t of_group = conv.image.channels / groups;
  channels = sizes.is_depthwise() ? round_up(of_group, filter.lanes) : round_up(of_group, 4);
  element = kGroupBytes / filter.terms;
  const bool is_whole = height == image_height && width == image_width && channels == of_group;
  is_given = is_whole && element == 1 && !sizes.is_signed && form.lanes == form.channels;
}

namespace {

// One byte of x as it is multiplied.
template <class T>
struct Turned {
  uint8_t flip;
  T zero;
  T operator()(uint8_t x) const { return static_cast<T>(static_cast<T>(x ^ flip) - zero); }
};

// `count` neighbours of a row. What fills up a group is `nothing`.
template <class T>
void turn_places(const SeenImage& image, const uint8_t* from, int64_t count, const Turned<T>& turned, T nothing,
                 T* to) {
  const ChannelForm& given = image.given;
  const int64_t of_group = given.channels / image.groups, place = image.groups * image.channels;
  const int64_t block = given.positions * given.lanes;
  if (of_group == image.channels && given.lanes > 1) {
    for (int64_t b = 0; b < given.blocks; ++b, from += block, to += given.lanes) {
      const int64_t lanes = std::min(given.lanes, given.channels - b * given.lanes);
      if (given.lanes == given.channels) {
        for (int64_t i = 0; i < count * lanes; ++i) to[i] = turned(from[i]);
      } else {
        for (int64_t x = 0; x < count; ++x)
          for (int64_t i = 0; i < lanes; ++i) to[x * place + i] = turned(from[x * given.lanes + i]);
      }
    }
    return;
  }
  if (of_group != image.channels) std::fill_n(to, count * place, nothing);
  for (int64_t c = 0; c < given.channels; ++c) {
    const uint8_t* const plane = from + c / given.lanes * block + c % given.lanes;
    T* const column = to + c / of_group * image.channels + c % of_group;
    for (int64_t x = 0; x < count; ++x) column[x * place] = turned(plane[x * given.lanes]);
  }
}

template <class T>
void see_row(const QuantizedConv& sizes, const SeenImage& image, int32_t unsigned_zero, const uint8_t* x, int64_t n,
             int64_t row, T* to) {
  const T zero = static_cast<T>(unsigned_zero), none{};
  const bool in_bytes = sizeof(T) == 1;
  const T nothing = in_bytes ? zero : none;
  const Turned<T> turned{sizes.flip(), in_bytes ? none : zero};
  const int64_t place = image.groups * image.channels, y = row - image.top;
  if (y < 0 || y >= image.image_height) return void(std::fill_n(to, image.width * place, nothing));
  const int64_t first = std::clamp<int64_t>(image.left, 0, image.width), skipped = first - image.left;
  const int64_t count = std::clamp<int64_t>(image.image_width - skipped, 0, image.width - first);
  const int64_t of_image = image.given.count() / sizes.conv.image.batch;
  const uint8_t* const from = x + n * of_image + (y * image.image_width + skipped) * image.given.lanes;
  std::fill_n(to, first * place, nothing);
  turn_places(image, from, count, turned, nothing, to + first * place);
  std::fill_n(to + (first + count) * place, (image.width - first - count) * place, nothing);
}

template <class T>
void see(const QuantizedConv& sizes, const SeenImage& image, int32_t zero, const uint8_t* x, T* to) {
  const int64_t row = image.row_bytes() / static_cast<int64_t>(sizeof(T));
  parallel_for(sizes.conv.image.batch * image.height, kGrain / row + 1, [&](int64_t first, int64_t last) {
    widest([&] {
      for (int64_t i = first; i < last; ++i)
        see_row(sizes, image, zero, x, i / image.height, i % image.height, to + i * row);
    });
  });
}

}  // namespace

void see_images(const QuantizedConv& sizes, const SeenImage& image, int32_t zero, const uint8_t* x, void* to) {
  if (image.is_given) return;
  image.element == 1 ? see(sizes, image, zero, x, static_cast<uint8_t*>(to))
                     : see(sizes, image, zero, x, static_cast<int16_t*>(to));
}

}  // namespace moonflow::cpu
