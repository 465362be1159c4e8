#include "bindings/png.h"

#include <png.h>

#include <algorithm>

#include "bindings/file.h"

namespace moonflow {
namespace {

constexpr int64_t kLongestSide = 1000000;         // libpng's own limit
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of the elements

template <class T>
unsigned char byte_of(T value) {
  const T inside = value > T(0) ? std::min(value, T(1)) : T(0);
  return static_cast<unsigned char>(inside * T(255) + T(0.5));
}

template <class T>
std::string bytes_of(const Tensor& picture) {
  std::string bytes(static_cast<size_t>(picture.count()), '\0');
  std::transform(picture.data<T>(), picture.data<T>() + picture.count(), bytes.begin(), byte_of<T>);
  return bytes;
}

}  // namespace

void write_png(const std::string& path, const Tensor& picture) {
  const Shape& shape = picture.shape();
  const DType dtype = picture.dtype();
  require(dtype == DType::UInt8 || dtype == DType::Float32 || dtype == DType::Float64, ErrorCode::DtypeMismatch,
          "the picture is ", dtype, ", wanted uint8, or float32 or float64 from 0 to 1");
  const int64_t channels = shape.rank() == 3 ? shape[2] : 1;
  require((shape.rank() == 2 || shape.rank() == 3) && channels >= 1 && channels <= 4, ErrorCode::ShapeMismatch,
          "the picture is ", shape, ", wanted (height, width) or (height, width, channels) with 1 to 4 channels");
  require(shape[0] >= 1 && shape[1] >= 1 && std::max(shape[0], shape[1]) <= kLongestSide && shape.count() < kMostBytes,
          ErrorCode::ShapeMismatch, "the picture is ", shape, ", wanted sides from 1 to ", kLongestSide,
          " and less than 2^30 elements in all");

  constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(shape[0]);
  image.width = static_cast<png_uint_32>(shape[1]);
  image.format = kFormats[channels - 1];

  std::string converted;
  if (dtype == DType::Float32) converted = bytes_of<float>(picture);
  if (dtype == DType::Float64) converted = bytes_of<double>(picture);
  const void* elements = converted.data();
  if (dtype == DType::UInt8) elements = picture.data<uint8_t>();
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(size, '\0');
  const int written = png_image_write_to_memory(&image, file.data(), &size, 0, elements, 0, nullptr);
  require(written != 0, ErrorCode::Internal, "libpng cannot write the picture: ", image.message);
  file.resize(size);
  replace_file(path, file, nullptr, 0);
}

}  // namespace moonflow
