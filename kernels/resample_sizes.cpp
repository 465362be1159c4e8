// The sizes of a resampling; see resample.h, resample_axis.h and grid_sample.h.
#include "kernels/grid_sample.h"
#include "kernels/resample.h"
#include "kernels/resample_axis.h"
#include "kernels/window.h"

namespace moonflow {
namespace {

// Above this an axis is a mistake, and below it products of two of them stay far from overflow.
constexpr int64_t kLongest = int64_t{1} << 24;

ResampledAxis stretch(int64_t in, int64_t factor, ResampledAxis::Kind kind, bool align_corners) {
  ResampledAxis axis;
  axis.kind = kind;
  axis.in = in;
  axis.out = checked_product(in, factor);
  require(axis.out < kLongest, ErrorCode::ShapeMismatch, "an axis of ", in, " becomes one of ", axis.out,
          ", wanted less than 2^24");
  axis.unit = factor;
  if (kind == ResampledAxis::Nearest) return axis;
  if (align_corners) {
    axis.slope = in - 1;
    axis.unit = std::max<int64_t>(axis.out - 1, 1);
  } else {
    // (o + 1/2) / factor - 1/2
    axis.slope = 2;
    axis.offset = 1 - factor;
    axis.unit = 2 * factor;
  }
  return axis;
}

ResampledAxis reflect(int64_t in, int64_t before, int64_t after, const char* name) {
  require(before >= 0 && after >= 0 && before < in && after < in, ErrorCode::InvalidArgument, "padding of ", before,
          " and ", after, " does not fit the ", name, " of x, which is ", in,
          ": a reflection leaves out the border itself, so wanted values in [0, ", in, ")");
  ResampledAxis axis;
  axis.kind = ResampledAxis::Reflect;
  axis.in = in;
  axis.out = checked_sum(in, before + after);
  axis.before = before;
  return axis;
}

Resampling along(const ImageFormat& format, const ImageSize& image, const ResampledAxis& rows,
                 const ResampledAxis& columns) {
  return {format, image, {image.batch, image.channels, rows.out, columns.out}, rows, columns};
}

}  // namespace

Resampling upsampling_of(const Attrs& attrs, const Shape& x) {
  const ImageFormat format = image_format(attrs.string("data_format"), 2);
  const ImageSize image = image_size(x, format, "x");
  const auto size = per_axis(attrs.ints("size"), format, "size", 1);
  const std::string& interpolation = attrs.string("interpolation");
  const bool aligned = attrs.flag("align_corners");
  require(interpolation == "nearest" || interpolation == "bilinear", ErrorCode::InvalidArgument, "interpolation is \"",
          interpolation, "\", wanted \"nearest\" or \"bilinear\"");
  require(!aligned || interpolation == "bilinear", ErrorCode::InvalidArgument,
          "align_corners is for interpolation \"bilinear\"");
  const ResampledAxis::Kind kind = interpolation == "nearest" ? ResampledAxis::Nearest : ResampledAxis::Blend;
  return along(format, image, stretch(image.height, size[0], kind, aligned),
               stretch(image.width, size[1], kind, aligned));
}

Resampling reflection_of(const Attrs& attrs, const Shape& x) {
  const ImageFormat format = image_format(attrs.string("data_format"), 2);
  const ImageSize image = image_size(x, format, "x");
  const Ints& padding = attrs.ints("padding");
  if (padding.size() != 1 && padding.size() != 4) {
    fail(ErrorCode::InvalidArgument, "padding is ", str(padding), ", wanted one number or {left, right, top, bottom}");
  }
  const auto side = [&](size_t i) { return padding[padding.size() == 1 ? 0 : i]; };
  return along(format, image, reflect(image.height, side(2), side(3), "height"),
               reflect(image.width, side(0), side(1), "width"));
}

AxisFilter axis_filter(const Attrs& attrs, int64_t in) {
  AxisFilter filter;
  filter.in = in;
  filter.out = attrs.integer("size");
  filter.slope = attrs.number("slope");
  filter.offset = attrs.number("offset");
  const std::string& kind = attrs.string("filter");
  filter.cubic = kind == "cubic";
  filter.coefficient = attrs.number("coefficient");
  filter.spread = attrs.number("spread");
  filter.extends = attrs.flag("extends");
  filter.stays_inside = attrs.flag("stays_inside");
  require(filter.cubic || kind == "linear", ErrorCode::InvalidArgument, "filter is \"", kind,
          "\", wanted \"linear\" or \"cubic\"");
  require(in >= 1 && filter.out >= 1, ErrorCode::ShapeMismatch, "an axis of ", in, " places cannot become one of ",
          filter.out, "; both need one at least");
  require(filter.out < kLongest, ErrorCode::ShapeMismatch, "an axis of ", in, " becomes one of ", filter.out,
          ", wanted less than 2^24");
  // Any point is then a whole number of places away from any other, which is counted in 64 bits.
  constexpr double kFurthest = static_cast<double>(int64_t{1} << 40);
  const double last = filter.slope * static_cast<double>(filter.out - 1) + filter.offset;
  require(std::fabs(filter.offset) <= kFurthest && std::fabs(last) <= kFurthest, ErrorCode::InvalidArgument,
          "the places lie from ", filter.offset, " to ", last, ", which is too far away");
  require(filter.spread >= 1 && filter.spread <= static_cast<double>(in) + 1, ErrorCode::InvalidArgument, "spread is ",
          filter.spread, ", wanted 1 to ", in + 1, " for an axis of ", in, " places");
  filter.narrowing = 1 / filter.spread;
  require(std::isfinite(filter.coefficient), ErrorCode::InvalidArgument, "coefficient is ", filter.coefficient);
  return filter;
}

GridSampling grid_sampling(const Attrs& attrs, const Shape& x, const Shape& grid) {
  require(x.rank() == 4, ErrorCode::ShapeMismatch, "x is ", x, ", wanted (batch, channels, height, width)");
  require(grid.rank() == 4 && grid[3] == 2 && grid[0] == x[0], ErrorCode::ShapeMismatch, "grid is ", grid, ", wanted (",
          x[0], ", rows, columns, 2) for x ", x);
  GridSampling of;
  of.batch = x[0];
  of.channels = x[1];
  of.height = x[2];
  of.width = x[3];
  of.rows = grid[1];
  of.columns = grid[2];
  require(x[2] >= 1 && x[3] >= 1, ErrorCode::ShapeMismatch, "x ", x, " has no pixels");
  require(x[2] < kLongest && x[3] < kLongest && of.plane() < int64_t{1} << 31, ErrorCode::ShapeMismatch, "x ", x,
          " has axes of 2^24 pixels, or planes of 2^31");
  const std::string &mode = attrs.string("mode"), &padding = attrs.string("padding_mode");
  require(mode == "nearest" || mode == "bilinear" || mode == "bicubic", ErrorCode::InvalidArgument, "mode is \"", mode,
          "\", wanted \"nearest\", \"bilinear\" or \"bicubic\"");
  of.mode = mode == "nearest"    ? GridSampling::Nearest
            : mode == "bilinear" ? GridSampling::Bilinear
                                 : GridSampling::Bicubic;
  require(padding == "zeros" || padding == "border" || padding == "reflection", ErrorCode::InvalidArgument,
          "padding_mode is \"", padding, "\", wanted \"zeros\", \"border\" or \"reflection\"");
  of.padding = padding == "zeros"    ? GridSampling::Zeros
               : padding == "border" ? GridSampling::Border
                                     : GridSampling::Reflection;
  of.align_corners = attrs.flag("align_corners");
  return of;
}

}  // namespace moonflow
