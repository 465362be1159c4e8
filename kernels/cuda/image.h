// Images in the memory of a card, in rows or with their channels last, for kernels that go over them place by place.
// The steps between elements are data. Where channels come last a thread takes as many as fit one load of 16 bytes.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/axes.h"
#include "kernels/cuda/elements.h"
#include "kernels/image.h"

namespace moonflow::cuda {

struct Place {
  int64_t batch, channel, y, x;
};

// An image in memory, in packs of so many channels, numbered as they lie there.
struct Image {
  bool channels_last;
  int neighbours;
  LongDivisor channels, height, width;
  int64_t count, batch_step, channel_step, row_step, column_step;

  Image(const ImageSize& size, bool channels_last, int neighbours)
      : channels_last(channels_last),
        neighbours(neighbours),
        channels(size.channels / neighbours),
        height(size.height),
        width(size.width),
        count(size.count() / neighbours),
        batch_step(size.channels * size.height * size.width),
        channel_step(channels_last ? 1 : size.height * size.width),
        row_step(channels_last ? size.width * size.channels : size.width),
        column_step(channels_last ? size.channels : 1) {}

  MOONFLOW_DEVICE Place place_of(int64_t pack) const {
    Place place;
    if (channels_last) pack = channels.quotient(pack, place.channel);
    pack = width.quotient(pack, place.x);
    pack = height.quotient(pack, place.y);
    if (!channels_last) pack = channels.quotient(pack, place.channel);
    place.batch = pack;
    place.channel *= neighbours;
    return place;
  }
  MOONFLOW_DEVICE int64_t plane(const Place& place) const {
    return place.batch * batch_step + place.channel * channel_step;
  }
  MOONFLOW_DEVICE int64_t at(int64_t plane, int64_t y, int64_t x) const {
    return plane + y * row_step + x * column_step;
  }
};

template <class T, int N>
MOONFLOW_DEVICE const Pack<T, N>& pack_at(const T* data, int64_t at) {
  return *reinterpret_cast<const Pack<T, N>*>(data + at);
}

// The same work by packs of channels, where there are such, and one by one, for arrays at addresses of any kind. Over
// is made of the sizes, a layout and the number of neighbours, and has the `image` it works on.
template <class T, class Over>
struct Ways {
  static constexpr int kN = 16 / sizeof(T);
  Over packed, single;
  bool packs;

  template <class Sizes>
  Ways(const Sizes& sizes, const Layout& layout)
      : packed(sizes, layout, kN),
        single(sizes, layout, 1),
        packs(single.image.channels_last && sizes.image.channels % kN == 0) {}

  // Calls f(over, number of neighbours).
  template <class F>
  void choose(std::initializer_list<const void*> arrays, const F& f) const {
    const bool aligned = std::all_of(arrays.begin(), arrays.end(), is_aligned<T, kN>);
    if (packs && aligned)
      f(packed, std::integral_constant<int, kN>());
    else
      f(single, std::integral_constant<int, 1>());
  }
};

}  // namespace moonflow::cuda
