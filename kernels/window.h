// Windows that slide over the spatial axes of an image: how a padding rule becomes numbers and how large the result is.
// Convolution and pooling share it, so both pad alike.
#pragma once

#include <algorithm>
#include <array>
#include <string>

#include "engine/op.h"
#include "kernels/image.h"

namespace moonflow {

// Along one axis. Output o reads the inputs o * stride - before + k * dilation for k in [0, size), those in [0, in).
struct Window {
  int64_t in = 1;
  int64_t size = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t before = 0;  // padding
  int64_t after = 0;
  int64_t out = 1;

  constexpr int64_t start(int64_t o) const { return o * stride - before; }
  // The k that read inside the image: [first(o), last(o)).
  constexpr int64_t first(int64_t o) const {
    const int64_t at = start(o);
    return at >= 0 ? 0 : std::min(size, (-at + dilation - 1) / dilation);
  }
  constexpr int64_t last(int64_t o) const {
    const int64_t at = start(o);
    if (at + (size - 1) * dilation < in) return size;
    return at >= in ? 0 : (in - at + dilation - 1) / dilation;
  }
};

using Windows = std::array<Window, 2>;  // height, width

// What the user may say about windows. A list has one value for all axes or one for each.
struct WindowRule {
  std::array<int64_t, 2> size;  // height, width
  Ints stride;
  Ints dilation = {1};
  std::string padding = "VALID";  // or SAME = SAME_LOWER, SAME_UPPER
  Ints pads = {};                 // when not empty it counts instead of `padding`
  bool ceil_mode = false;         // a last window that sticks out counts too
};

// Throws when the rule is not one, or when a window does not fit into the padded image.
Windows windows(const ImageSize& image, const ImageFormat& format, const WindowRule& rule);

// The values of a list for height and width; `what` names it in the message, `lowest` is the least value allowed.
std::array<int64_t, 2> per_axis(const Ints& values, const ImageFormat& format, const char* what, int64_t lowest);

// Attributes that all window ops have alike.
AttrDef padding_attr();  // takes its table form from `pads`
AttrDef pads_attr();
AttrDef data_format_attr(const ImageFormat& format);

}  // namespace moonflow
