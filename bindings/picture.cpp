#include "bindings/picture.h"

#include <algorithm>
#include <utility>

#include "bindings/file.h"

namespace moonflow {
namespace {

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

PictureBytes::PictureBytes(const Tensor& picture, int64_t longest_side) : picture_(picture) {
  const Shape& shape = picture.shape();
  const DType dtype = picture.dtype();
  require(dtype == DType::UInt8 || dtype == DType::Float32 || dtype == DType::Float64, ErrorCode::DtypeMismatch,
          "the picture is ", dtype, ", wanted uint8, or float32 or float64 from 0 to 1");
  channels_ = shape.rank() == 3 ? shape[2] : 1;
  const bool channels_first = shape.rank() == 3 && shape[0] >= 1 && shape[0] <= 4;  // as convolutions have it
  require((shape.rank() == 2 || shape.rank() == 3) && channels_ >= 1 && channels_ <= 4, ErrorCode::ShapeMismatch,
          "the picture is ", shape, ", wanted (height, width) or (height, width, channels) with 1 to 4 channels",
          channels_first      ? "; a:transpose({ 1, 2, 0 }) puts them last"
          : shape.rank() >= 3 ? "; np.join_pictures(a) puts many side by side"
                              : "");
  require(shape[0] >= 1 && shape[1] >= 1 && std::max(shape[0], shape[1]) <= longest_side &&
              shape.count() < kMostPictureBytes,
          ErrorCode::ShapeMismatch, "the picture is ", shape, ", wanted sides from 1 to ", longest_side,
          " and less than 2^30 elements in all");
  height_ = shape[0];
  width_ = shape[1];
  if (dtype == DType::Float32) converted_ = bytes_of<float>(picture);
  if (dtype == DType::Float64) converted_ = bytes_of<double>(picture);
}

const unsigned char* PictureBytes::elements() const {
  if (picture_.dtype() == DType::UInt8) return picture_.data<uint8_t>();
  return reinterpret_cast<const unsigned char*>(converted_.data());
}

EncodedPicture EncodedPicture::of_file(const std::string& path, const char* kind) {
  FileSource source(path);
  const int64_t size = source.size();
  require(size < kMostPictureBytes, ErrorCode::Io, "file '", path, "' has ", size,
          " bytes, which is too large for a picture");
  // The libraries blame their caller.
  require(size > 0, ErrorCode::Io, "file '", path, "' is no ", kind, " picture: it is empty");
  return {text("file '", path, "'"), source.read_rest()};
}

EncodedPicture EncodedPicture::of_bytes(std::string bytes, const char* kind) {
  EncodedPicture picture{text("the string of ", bytes.size(), " bytes"), std::move(bytes)};
  require(!picture.bytes.empty(), ErrorCode::InvalidArgument, picture.name, " is no ", kind, " picture");
  return picture;
}

void EncodedPicture::check_size(int64_t height, int64_t width, int channels) const {
  require(height * width < kMostPictureBytes / channels, ErrorCode::Io, name, " is a picture of ", height, " by ",
          width, " with ", channels, " channels, wanted less than 2^30 elements in all");
}

}  // namespace moonflow
