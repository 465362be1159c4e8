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

constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};

// What libpng keeps of a picture that is being read.
struct Reading {
  png_image image{};

  Reading() { image.version = PNG_IMAGE_VERSION; }
  ~Reading() { png_image_free(&image); }
  Reading(const Reading&) = delete;
};

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
  const bool channels_first = shape.rank() == 3 && shape[0] >= 1 && shape[0] <= 4;  // as convolutions have it
  require((shape.rank() == 2 || shape.rank() == 3) && channels >= 1 && channels <= 4, ErrorCode::ShapeMismatch,
          "the picture is ", shape, ", wanted (height, width) or (height, width, channels) with 1 to 4 channels",
          channels_first ? "; a:transpose({ 1, 2, 0 }) puts them last" : "");
  require(shape[0] >= 1 && shape[1] >= 1 && std::max(shape[0], shape[1]) <= kLongestSide && shape.count() < kMostBytes,
          ErrorCode::ShapeMismatch, "the picture is ", shape, ", wanted sides from 1 to ", kLongestSide,
          " and less than 2^30 elements in all");

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

Tensor read_png(const std::string& path, const std::shared_ptr<HostMemory>& memory) {
  int64_t size = 0;
  Descriptor descriptor = open_for_reading(path, size);
  FileSource source(std::move(descriptor), path, size);
  require(size < kMostBytes, ErrorCode::Io, "file '", path, "' has ", size, " bytes, which is too large for a picture");
  require(size > 0, ErrorCode::Io, "file '", path, "' is no PNG picture: it is empty");  // libpng blames its caller
  const std::string file = source.read_rest();

  Reading reading;
  png_image& image = reading.image;
  const int begun = png_image_begin_read_from_memory(&image, file.data(), file.size());
  require(begun != 0, ErrorCode::Io, "file '", path, "' is no PNG picture: ", image.message);
  const int channels = (image.format & PNG_FORMAT_FLAG_COLOR ? 3 : 1) + (image.format & PNG_FORMAT_FLAG_ALPHA ? 1 : 0);
  const int64_t height = image.height, width = image.width;
  require(height * width < kMostBytes / channels, ErrorCode::Io, "file '", path, "' is a picture of ", height, " by ",
          width, " with ", channels, " channels, wanted less than 2^30 elements in all");
  image.format = kFormats[channels - 1];
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // 16 bits that say nothing else mean what 8 bits do
  Shape shape{height, width};
  if (channels > 1) shape.push_back(channels);
  Tensor picture = Tensor::allocate({DType::UInt8, shape}, memory);
  const int read = png_image_finish_read(&image, nullptr, picture.data(), 0, nullptr);
  require(read != 0, ErrorCode::Io, "file '", path, "' is a damaged picture: ", image.message);
  return picture;
}

}  // namespace moonflow
