// How the factors of a convolution of bytes lie where they are multiplied: the filter once and for all, the image in
// each launch. Both are in groups of four bytes, which a lane of 32 bits multiplies and sums up: four neighbouring
// channels as bytes, or two as words of 16 bits where the processor has no instruction for the former.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd.h"
#include "kernels/quantized_conv.h"

namespace moonflow::cpu {

constexpr int64_t kGroupBytes = 4;

// What a filter has in its layout: of each filter the sum, then the numbers in the order in which they are multiplied,
// (blocks, taps, steps, lanes, terms). A block is of filters of one group, or of the channels that have a filter each.
// Zeros fill up what is no whole block and no whole step.
struct PackedFilter {
  static constexpr char kMark[] = "filter of bytes";
  int64_t filters, channels, taps, groups;  // channels of a group; one group where each channel has a filter
  int64_t channels_last;                    // in rows
  int64_t lanes, terms;                     // filters of a block; neighbouring channels in four bytes
  int64_t steps;                            // of so many channels

  int64_t group_filters() const { return filters / groups; }
  int64_t group_blocks() const { return divide_up(group_filters(), lanes); }
  int64_t blocks() const { return groups * group_blocks(); }
  int64_t padded_filters() const { return blocks() * lanes; }
  int64_t block_bytes() const { return taps * steps * lanes * kGroupBytes; }
  int64_t sums_bytes() const { return aligned(padded_filters() * static_cast<int64_t>(sizeof(int32_t))); }
  int64_t bytes() const { return sums_bytes() + blocks() * block_bytes(); }
  // Where a filter stands among those of whole blocks.
  int64_t padded(int64_t filter) const {
    return filter / group_filters() * group_blocks() * lanes + filter % group_filters();
  }
};

// For this processor.
PackedFilter packed_filter(const QuantizedConv& sizes);

// An image as its windows see it, with what is beyond its edges where they see that: channels last, those of each group
// filled up.
struct SeenImage {
  int64_t height, width;     // of what is there
  int64_t top, left;         // of the image in it
  int64_t channels, groups;  // channels of a group, filled up
  int64_t element;           // bytes of each: 1, or 2 of words
  bool is_given;             // x is that itself
  ChannelForm given;         // how x lies
  int64_t image_height, image_width;

  SeenImage(const QuantizedConv& sizes, const PackedFilter& filter, const ChannelForm& given);
  int64_t place_bytes() const { return groups * channels * element; }
  int64_t row_bytes() const { return width * place_bytes(); }
  int64_t image_bytes() const { return height * row_bytes(); }
};

// All images of x, unless they are given so. `zero` is the zero point of its bytes as uint8.
void see_images(const QuantizedConv& sizes, const SeenImage& image, int32_t zero, const uint8_t* x, void* to);

// ---- the product ---------------------------------------------------------------------------------------------------

struct ByteConv {
  QuantizedConv sizes;  // with images in one row where is_flat
  bool is_flat;         // windows are single places, side by side, so that any places in a row are a row
  PackedFilter filter;
  SeenImage image;
  // Bytes that are multiplied one after the other begin so far from the window's: those of a tap, or of a row of them.
  std::vector<int64_t> runs;
  int64_t run_bytes;
  // From a place of the result to the next, in bytes, from a channel and from an image.
  int64_t out_place, out_channel, out_image;
  bool in_tiles;  // byte_tiles_fit

  int64_t out_size() const { return size_of(sizes.dtype); }
  int64_t width() const { return sizes.conv.out.width; }
  int64_t places() const { return sizes.conv.out.height * width(); }
  int64_t window_sum(int64_t image, int64_t group, int64_t place) const {  // where it is
    return (image * filter.groups + group) * places() + place;
  }
  // The window of a place begins so many bytes behind an image.
  int64_t window(int64_t y, int64_t x) const {
    const Windows& windows = sizes.conv.windows;
    return (windows[0].start(y) + image.top) * image.row_bytes() +
           (windows[1].start(x) + image.left) * image.place_bytes();
  }
  int64_t window(int64_t place) const { return window(place / width(), place % width()); }
  // Of neighbouring places, with one division.
  template <int kPlaces>
  void windows(const char* from, int64_t place, const char* (&begin)[kPlaces]) const {
    const int64_t step = sizes.conv.windows[1].stride * image.place_bytes();
    int64_t y = place / width(), x = place % width();
    const char* next = from + window(y, x);
    for (int p = 0; p < kPlaces; ++p, next += step) {
      begin[p] = next;
      if (++x < width()) continue;
      x = 0;
      next = from + window(++y, 0) - step;
    }
  }
};

// By filter, of whole blocks: what its sums are short of, and how they become results.
struct ByteEnds {
  const int32_t* zeros;
  const float *scales, *biases;
  const int32_t* filter_zeros;  // or none
  // Of what the window of a place has, by (image, group, place), where there are zero points of filters.
  const int32_t* window_sums;
};

struct ByteFactors {
  const char *images, *filter;
  ByteEnds ends;
  char* out;
};

// Some places of an image, and some blocks.
struct ByteShare {
  int64_t image, first_place, last_place, first_block, last_block;
};

// Sums as the nearest bytes, halves to the even one.
template <class R>
struct Rounding {
  typename R::Vector least, most;
  typename R::Integers zero;

  explicit Rounding(const ByteConv& work)
      : least(typename R::Vector{} + static_cast<float>(work.sizes.least())),
        most(typename R::Vector{} + static_cast<float>(work.sizes.most())),
        zero(typename R::Integers{} + static_cast<int>(work.sizes.out_zero_point)) {}

  void operator()(typename R::Vector& sum, uint8_t* lanes) const {
    // A number of at most 22 bits, this added to it and taken away again, is the nearest whole one.
    constexpr float kOnesAreLast = 12582912;  // 1.5 * 2^23
    sum = sum > least ? sum : least;
    sum = sum < most ? sum : most;
    sum = (sum + kOnesAreLast) - kOnesAreLast;
    const typename R::Integers bytes = (__builtin_convertvector(sum, typename R::Integers) + zero) & 255;
    alignas(kAlignment) uint8_t packed[R::kWidth];  // narrow's place is an aligned one, that of a result may be any
    R::narrow(bytes, packed);
    std::memcpy(lanes, packed, sizeof packed);
  }
};

// What sums become, of some neighbouring places by the filters of blocks: (places, blocks, lanes), as they are stored
// aligned. In the first of these blocks there are `filters`, which may be more than in all. `first` is the place among
// all window sums.
template <class R>
inline void end_sums(const ByteConv& work, const ByteEnds& ends, const int32_t* sums, int64_t first, int64_t places,
                     int64_t blocks, int64_t block, int64_t filters, char* out) {
  constexpr int64_t kLanes = R::kWidth;
  const auto integers = [](const int32_t* place) { return reinterpret_cast<const typename R::StoredIntegers*>(place); };
  const Rounding<R> round(work);
  const bool in_bytes = work.sizes.gives_bytes(), in_sums = work.sizes.gives_sums();
  const auto end = [&](const typename R::Integers& whole, const typename R::Vector& scales,
                       const typename R::Vector& biases, char* to) {
    if (in_sums) return void(*reinterpret_cast<typename R::StoredIntegers*>(to) = whole);
    typename R::Vector sum = __builtin_convertvector(whole, typename R::Vector) * scales + biases;
    if (in_bytes)
      round(sum, reinterpret_cast<uint8_t*>(to));
    else
      R::at(reinterpret_cast<float*>(to)) = sum;
  };
  const int64_t size = work.out_size(), next = work.out_place, next_lane = work.out_channel;
  for (int64_t b = 0; b < blocks; ++b) {
    const typename R::Integers zeros = *integers(ends.zeros + (block + b) * kLanes);
    const typename R::Vector scales = R::at(ends.scales + (block + b) * kLanes),
                             biases = R::at(ends.biases + (block + b) * kLanes);
    const int64_t count = std::min(kLanes, filters - b * kLanes);
    const bool is_whole = count == kLanes && next_lane == size;
    char* to = out + b * kLanes * next_lane;
    for (int64_t p = 0; p < places; ++p, to += next) {
      const typename R::Integers each = *integers(sums + (p * blocks + b) * kLanes);
      typename R::Integers whole = each - zeros;
      if (ends.filter_zeros) {
        const typename R::Integers filter_zeros = *integers(ends.filter_zeros + (block + b) * kLanes);
        whole = whole - filter_zeros * ends.window_sums[first + p];
      }
      if (is_whole) {
        end(whole, scales, biases, to);
        continue;
      }
      alignas(kAlignment) char lanes[sizeof whole];
      end(whole, scales, biases, lanes);
      if (in_bytes)
        for (int64_t lane = 0; lane < count; ++lane) to[lane * next_lane] = lanes[lane];
      else
        for (int64_t lane = 0; lane < count; ++lane)
          std::memcpy(to + lane * next_lane, lanes + lane * sizeof(float), sizeof(float));
    }
  }
}

// In the tile registers of AMX, where they fit: whole rows.
bool byte_tiles_fit(const ByteConv& work);
void multiply_tiles(const ByteConv& work, const ByteFactors& factors, const ByteShare& share);

}  // namespace moonflow::cpu
