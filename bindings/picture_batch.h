// Pictures of any sizes as one array: read, decoded, cut, resized and mirrored, on several threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/picture.h"

namespace moonflow {

// Which part of a picture is wanted, whatever its size: a box of this share of its area and this ratio of width to
// height, shrunk until it fits, and of that box this share of the sides.
struct PictureCut {
  double area = 1;
  double aspect = 0;  // 0: the picture's own
  double side = 1;
  double top = 0.5, left = 0.5;  // how much of what is beside the box lies above it and to its left, from 0 to 1
  bool mirrored = false;         // left and right
};

struct PictureSize {
  int64_t height, width;
  int channels;  // 1: grey, 3: red, green and blue
};

// uint8 (sources, height, width, channels). Each source is the bytes of a JPEG or PNG picture, or the path of its file.
// What is cut out is resized as np.resize_picture does it when left to itself; where it is four times as high and wide
// as what is wanted, or more, a JPEG is decoded to a half of its sides before, a quarter or an eighth, so that it stays
// twice as high and wide. Opacity is left out. Without `cuts` whole pictures.
Tensor decode_pictures(const std::vector<std::string>& sources, bool are_files, const PictureSize& size,
                       const std::vector<PictureCut>& cuts, int threads, const std::shared_ptr<HostMemory>& memory);

}  // namespace moonflow
