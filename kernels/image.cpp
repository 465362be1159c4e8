// The axes of images; see image.h.
#include "kernels/image.h"

namespace moonflow {

const char* ImageFormat::axes() const {
  if (spatial_axes == 1) return channels_last ? "(batch, width, channels)" : "(batch, channels, width)";
  return channels_last ? "(batch, height, width, channels)" : "(batch, channels, height, width)";
}

ImageFormat image_format(const std::string& data_format, int spatial_axes) {
  const char* first = spatial_axes == 1 ? "NCW" : "NCHW";
  const char* last = spatial_axes == 1 ? "NWC" : "NHWC";
  require(data_format == first || data_format == last, ErrorCode::InvalidArgument, "data_format is \"", data_format,
          "\", wanted \"", first, "\" or \"", last, "\"");
  return {spatial_axes, data_format == last};
}

int channel_axis(const std::string& data_format, int rank) {
  const bool named = data_format.size() > 1 && data_format[0] == 'N';
  require(data_format.empty() || (named && (data_format[1] == 'C' || data_format.back() == 'C')),
          ErrorCode::InvalidArgument, "data_format is \"", data_format, "\", wanted \"NC...\", \"N...C\" or nothing");
  return named && data_format[1] != 'C' ? rank - 1 : 1;
}

Shape ImageSize::shape(const ImageFormat& format) const {
  Shape shape{batch};
  if (!format.channels_last) shape.push_back(channels);
  if (format.spatial_axes == 2) shape.push_back(height);
  shape.push_back(width);
  if (format.channels_last) shape.push_back(channels);
  return shape;
}

ImageSize image_size(const Shape& shape, const ImageFormat& format, const char* what) {
  require(shape.rank() == format.rank(), ErrorCode::ShapeMismatch, what, " is ", shape, ", wanted rank ", format.rank(),
          ": ", format.axes());
  const int last = format.spatial_axes - 1;
  return {shape[0], shape[format.channel_axis()], last == 1 ? shape[format.spatial_axis(0)] : 1,
          shape[format.spatial_axis(last)]};
}

}  // namespace moonflow
