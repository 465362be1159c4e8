#include "bindings/png.h"

#include <png.h>

#include "bindings/file.h"
#include "bindings/picture.h"

namespace moonflow {
namespace {

constexpr int64_t kLongestSide = 1000000;  // libpng's own limit

constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};

// What libpng keeps of a picture that is being read.
struct Reading {
  png_image image{};

  Reading() { image.version = PNG_IMAGE_VERSION; }
  ~Reading() { png_image_free(&image); }
  Reading(const Reading&) = delete;
};

}  // namespace

void write_png(const std::string& path, const Tensor& picture) {
  const PictureBytes bytes(picture, kLongestSide);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(bytes.height());
  image.width = static_cast<png_uint_32>(bytes.width());
  image.format = kFormats[bytes.channels() - 1];
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string file(size, '\0');
  const int written = png_image_write_to_memory(&image, file.data(), &size, 0, bytes.elements(), 0, nullptr);
  require(written != 0, ErrorCode::Internal, "libpng cannot write the picture: ", image.message);
  file.resize(size);
  replace_file(path, file, nullptr, 0);
}

Tensor read_png(const std::string& path, const std::shared_ptr<HostMemory>& memory) {
  const std::string file = read_picture_file(path, "PNG");
  Reading reading;
  png_image& image = reading.image;
  const int begun = png_image_begin_read_from_memory(&image, file.data(), file.size());
  require(begun != 0, ErrorCode::Io, "file '", path, "' is no PNG picture: ", image.message);
  const int channels = (image.format & PNG_FORMAT_FLAG_COLOR ? 3 : 1) + (image.format & PNG_FORMAT_FLAG_ALPHA ? 1 : 0);
  const int64_t height = image.height, width = image.width;
  require(height * width < kMostPictureBytes / channels, ErrorCode::Io, "file '", path, "' is a picture of ", height,
          " by ", width, " with ", channels, " channels, wanted less than 2^30 elements in all");
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
