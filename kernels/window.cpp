// Padding rules and window arithmetic; see window.h.
#include "kernels/window.h"

namespace moonflow {
namespace {

// Above this a size is a mistake, and below it sums and products of a few sizes stay far from overflow.
constexpr int64_t kLargest = int64_t{1} << 24;

struct Pads {
  int64_t before = 0;
  int64_t after = 0;
};

// Explicit pads: a pair per axis of the image, or one number per axis (both sides alike), or one per spatial axis.
std::array<Pads, 2> explicit_pads(const Ints& pads, const ImageFormat& format) {
  for (int64_t pad : pads) {
    if (pad < 0 || pad >= kLargest) {
      fail(ErrorCode::InvalidArgument, "padding ", str(pads), " has ", pad, ", wanted values in [0, ", kLargest, ")");
    }
  }
  const int count = static_cast<int>(pads.size());
  const int rank = format.rank();
  std::array<Pads, 2> result;
  const int lift = 2 - format.spatial_axes;  // one spatial axis is the width
  if (count == format.spatial_axes || count == 1) {
    for (int i = 0; i < format.spatial_axes; ++i) {
      const int64_t pad = pads[count == 1 ? 0 : i];
      result[i + lift] = {pad, pad};
    }
    return result;
  }
  if (count != rank && count != 2 * rank) {
    fail(ErrorCode::InvalidArgument, "padding ", str(pads), " has ", count,
         " numbers, wanted a pair {before, after} for each axis of ", format.axes());
  }
  const int sides = count / rank;
  for (int side = 0; side < sides; ++side) {
    if (pads[side] != 0 || pads[format.channel_axis() * sides + side] != 0) {
      fail(ErrorCode::InvalidArgument, "padding ", str(pads), " pads the batch or the channels, wanted zeros there in ",
           format.axes());
    }
  }
  for (int i = 0; i < format.spatial_axes; ++i) {
    const int axis = format.spatial_axis(i);
    result[i + lift] = {pads[axis * sides], pads[axis * sides + sides - 1]};
  }
  return result;
}

int64_t reach(const Window& window) { return (window.size - 1) * window.dilation + 1; }

// SAME: as many outputs as strides fit; what is missing is split, and the odd one goes where the rule says.
void pad_same(Window& window, bool lower) {
  window.out = (window.in + window.stride - 1) / window.stride;
  const int64_t missing = std::max<int64_t>(0, (window.out - 1) * window.stride + reach(window) - window.in);
  window.before = lower ? missing - missing / 2 : missing / 2;
  window.after = missing - window.before;
}

void count_outputs(Window& window, bool ceil_mode) {
  const int64_t room = window.in + window.before + window.after - reach(window);
  require(room >= 0, ErrorCode::ShapeMismatch, "a window of ", window.size, " with dilation ", window.dilation,
          " covers ", reach(window), ", the padded image has only ", window.in, " + ", window.before, " + ",
          window.after);
  window.out = room / window.stride + 1;
  if (!ceil_mode || room % window.stride == 0) return;
  // The window that sticks out counts when it starts inside the image or its leading padding.
  if (window.out * window.stride >= window.in + window.before) return;
  window.after = window.out * window.stride + reach(window) - window.in - window.before;
  ++window.out;
}

}  // namespace

std::array<int64_t, 2> per_axis(const Ints& values, const ImageFormat& format, const char* what, int64_t lowest) {
  const size_t wanted = static_cast<size_t>(format.spatial_axes);
  if (values.size() != 1 && values.size() != wanted) {
    fail(ErrorCode::InvalidArgument, what, " is ", str(values), ", wanted one number or ",
         wanted == 1 ? "a list of one" : "one each for height and width");
  }
  for (int64_t value : values) {
    if (value < lowest || value >= kLargest) {
      fail(ErrorCode::InvalidArgument, what, " is ", str(values), ", wanted values in [", lowest, ", ", kLargest, ")");
    }
  }
  if (format.spatial_axes == 1) return {1, values[0]};
  return {values.front(), values.back()};
}

Windows windows(const ImageSize& image, const ImageFormat& format, const WindowRule& rule) {
  const auto stride = per_axis(rule.stride, format, "strides", 1);
  const auto dilation = per_axis(rule.dilation, format, "dilations", 1);
  const int64_t in[2] = {image.height, image.width};
  require(image.height < kLargest && image.width < kLargest, ErrorCode::ShapeMismatch,
          "the image is larger than 2^24 along one axis");
  require(rule.size[0] < kLargest && rule.size[1] < kLargest, ErrorCode::ShapeMismatch,
          "the window is larger than 2^24 along one axis");
  std::array<Pads, 2> pads;
  if (!rule.pads.empty()) pads = explicit_pads(rule.pads, format);
  const bool same = rule.pads.empty() && rule.padding != "VALID";
  require(!same || rule.padding == "SAME" || rule.padding == "SAME_LOWER" || rule.padding == "SAME_UPPER",
          ErrorCode::InvalidArgument, "padding is \"", rule.padding,
          "\", wanted \"VALID\", \"SAME\", \"SAME_LOWER\", \"SAME_UPPER\" or a pair {before, after} for each axis");

  Windows result;
  for (int i = 2 - format.spatial_axes; i < 2; ++i) {
    Window& window = result[i];
    window = {in[i], rule.size[i], stride[i], dilation[i], pads[i].before, pads[i].after};
    if (same) {
      pad_same(window, rule.padding != "SAME_UPPER");
    } else {
      count_outputs(window, rule.ceil_mode);
    }
  }
  return result;
}

AttrDef padding_attr() {
  return {"padding", std::string("VALID"),
          "\"VALID\" (none); \"SAME\" = \"SAME_LOWER\" (out = ceil(in / stride), an odd pad goes to the top and left); "
          "\"SAME_UPPER\" (to the bottom and right); or a list with {before, after} for each spatial axis or for each "
          "axis, or with one number for each of them",
          false, "pads"};
}

AttrDef pads_attr() { return {"pads", Ints{}, "the numbers of `padding` when it is a list"}; }

AttrDef data_format_attr(const ImageFormat& format) {
  if (format.spatial_axes == 1) return {"data_format", std::string("NCW"), "\"NCW\" or \"NWC\""};
  return {"data_format", std::string("NCHW"), "\"NCHW\" or \"NHWC\""};
}

}  // namespace moonflow
