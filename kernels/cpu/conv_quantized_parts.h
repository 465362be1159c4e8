// How the factors of a convolution of bytes lie where they are multiplied: the filter once and for all, the image in
// each launch. Both are in groups of four bytes, which a lane of 32 bits multiplies and sums up: four neighbouring
// channels as bytes, or two as words of 16 bits where the processor has no instruction for the former.
#pragma once

#include "kernels/cpu/image_layouts.h"
#include "kernels/cpu/rounding.h"
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

// Whether each channel has one filter of its own.
bool is_depthwise(const Conv& conv);
// For this processor.
PackedFilter packed_filter(const Conv& conv);

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

// All images of x, unless they are given so.
void see_images(const QuantizedConv& sizes, const SeenImage& image, const uint8_t* x, void* to);

}  // namespace moonflow::cpu
