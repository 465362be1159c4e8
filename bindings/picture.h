// What files of pictures have in common: elements as bytes, and sizes that are checked before memory is taken.
#pragma once

#include <string>

#include "engine/tensor.h"

namespace moonflow {

constexpr int64_t kMostPictureBytes = int64_t{1} << 30;  // of the elements, and of a file

// A picture to be written: (height, width) is grey; (height, width, channels) is grey, grey and opacity, red green
// blue, or these and opacity. uint8 is taken as it is; of float32 and float64 the range from 0 to 1 becomes 0 to 255,
// what is outside of it the nearer end, a NaN 0.
class PictureBytes {
 public:
  explicit PictureBytes(const Tensor& picture, int64_t longest_side);

  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  int64_t channels() const { return channels_; }
  const unsigned char* elements() const;

 private:
  const Tensor picture_;
  int64_t height_ = 0, width_ = 0, channels_ = 1;
  std::string converted_;  // from floats
};

// A picture as it is kept in a file, or comes from somewhere else. `name` is for messages.
struct EncodedPicture {
  std::string name, bytes;

  // `kind` is "PNG" and the like.
  static EncodedPicture of_file(const std::string& path, const char* kind);
  static EncodedPicture of_bytes(std::string bytes, const char* kind);

  void check_size(int64_t height, int64_t width, int channels) const;
};

}  // namespace moonflow
