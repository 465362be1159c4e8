// Images between rows and channels last: per image a matrix of channels by places, which is turned over as a box is
// copied. Few channels are padded, or freed of padding, place by place.
#include "kernels/cuda/layout.h"

#include "kernels/cuda/axes.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/box.h"
#include "kernels/cuda/device.h"

namespace moonflow::cuda {
namespace {

// A place with its padding.
template <class T, int kChannels>
struct alignas(16) Place {
  T channels[kChannels];
};

// Where the channels of an image lie that is not padded: channel c of place p of image n at
// (n * channels * places) + c * channel_step + p * place_step.
struct Unpadded {
  int64_t channels, places, channel_step, place_step;
  LongDivisor by_places = LongDivisor(places);
  MOONFLOW_DEVICE int64_t first(int64_t i) const {
    int64_t place;
    const int64_t image = by_places.quotient(i, place);
    return image * channels * places + place * place_step;
  }
};

template <class T, int kChannels>
struct Pad {
  Unpadded from;
  const T* x;
  Place<T, kChannels>* y;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const int64_t first = from.first(i);
    Place<T, kChannels> place{};
    for (int c = 0; c < kChannels; ++c)
      if (c < from.channels) place.channels[c] = x[first + c * from.channel_step];
    y[i] = place;
  }
};

template <class T, int kChannels>
struct Unpad {
  Unpadded to;
  const Place<T, kChannels>* x;
  T* y;
  MOONFLOW_DEVICE void operator()(int64_t i) const {
    const int64_t first = to.first(i);
    const Place<T, kChannels> place = x[i];
    for (int c = 0; c < kChannels; ++c)
      if (c < to.channels) y[first + c * to.channel_step] = place.channels[c];
  }
};

template <class T, int kChannels>
Launch pad_or_unpad(int64_t images, const Unpadded& unpadded, bool pads) {
  return [=](const LaunchCall& call) {
    const int64_t count = images * unpadded.places;
    if (pads)
      for_each(call.stream, count,
               Pad<T, kChannels>{unpadded, call.input<T>(0), call.output<Place<T, kChannels>>(0)});
    else
      for_each(call.stream, count,
               Unpad<T, kChannels>{unpadded, call.input<Place<T, kChannels>>(0), call.output<T>(0)});
  };
}

// Between a padded layout and one that is not.
Launch reorder_padded(const TensorType& type, const Layout& padded, const Layout& other, bool pads) {
  const Shape& shape = type.shape;
  const bool last = name_of(padded).front() == 'C';  // in the type too
  const int axis = last ? shape.rank() - 1 : 1;
  const int64_t images = shape[0], channels = shape[axis], size = size_of(type.dtype);
  const int64_t places = shape.count(1, axis) * shape.count(axis + 1, shape.rank());
  const int stored = name_of(padded).back() - '0';
  const bool as_rows = !last && other.row_major();
  const Unpadded unpadded{channels, places, as_rows ? places : 1, as_rows ? 1 : channels};
  if (size == 2 && stored == 8) return pad_or_unpad<uint16_t, 8>(images, unpadded, pads);
  if (size == 4 && stored == 8) return pad_or_unpad<uint32_t, 8>(images, unpadded, pads);
  if (size == 4 && stored == 4) return pad_or_unpad<uint32_t, 4>(images, unpadded, pads);
  fail(ErrorCode::Unsupported, "no padding of ", type, " to ", stored, " channels on the gpu");
}

}  // namespace

Launch reorder(const TensorType& type, const Layout& from, const Layout& to) {
  const auto is_plain = [](const Layout& layout) { return layout.row_major() || is_channels_last(layout); };
  // Where channels come last in the type, rows are what a padded form is of, and channels last in memory another order.
  const auto fits = [](const Layout& padded, const Layout& other) {
    return is_padded(padded) && (other.row_major() || (is_channels_last(other) && name_of(padded).front() != 'C'));
  };
  const bool pads = fits(to, from), unpads = fits(from, to);
  require(type.shape.rank() >= 3 && from != to && (pads || unpads || (is_plain(from) && is_plain(to))),
          ErrorCode::Unsupported, "no such change of layout of ", type, " on the gpu");
  if (pads || unpads) return reorder_padded(type, pads ? to : from, pads ? from : to, pads);
  const int64_t count = type.shape[0], channels = type.shape[1], places = type.shape.count(2, type.shape.rank());
  const bool forth = from.row_major();
  const int64_t rows = forth ? channels : places, columns = forth ? places : channels;
  const BoxCopy turn(size_of(type.dtype),
                     {{{count, rows * columns, rows * columns}, {columns, rows, 1}, {rows, 1, columns}}});
  return [turn](const LaunchCall& call) { turn.run(call.stream, call.outputs[0], call.inputs[0]); };
}

}  // namespace moonflow::cuda
