// Pictures of any sizes as one array: read, decoded, cut, resized and mirrored, on several threads.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bindings/picture.h"
#include "engine/error.h"

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

struct PictureRequest {
  std::vector<std::string> sources;  // each is the bytes of a JPEG or PNG picture, or the path of its file
  bool are_files = true;
  bool upright = true;  // else as they are stored
  // One number of each pixel, as a PNG has it, such as a class, in the place of colours; a new pixel takes that of the
  // old one which is nearest to its centre, as no mean is made of numbers.
  bool raw = false;
  // Paths of PNG pictures of such numbers, of the size of the picture each belongs to, cut and mirrored as that is; or
  // none.
  std::vector<std::string> masks;
  PictureSize size{};
  std::vector<PictureCut> cuts;     // of each picture; none for whole ones
  bool passes_over_broken = false;  // else one that cannot be read is an error
};

// Pictures that are being read, from the moment this is made, by threads of its own, or by none.
//
// What is cut out is resized as np.resize_picture does it when left to itself; where it is four times as high and wide
// as what is wanted, or more, a JPEG is decoded to a half of its sides before, a quarter or an eighth, so that it stays
// twice as high and wide. Opacity is left out.
class PictureReading {
 public:
  PictureReading(PictureRequest wanted, int threads, const std::shared_ptr<HostMemory>& memory);
  ~PictureReading();  // what is not begun is given up
  PictureReading(const PictureReading&) = delete;
  PictureReading& operator=(const PictureReading&) = delete;

  // uint8 (sources, height, width, channels), or (sources, height, width) of raw ones. The caller reads too until all
  // are done. Of those that cannot be read the first one is thrown, if they are not passed over.
  Tensor take();
  // After that: uint8 (sources, height, width) where there are masks, else of no elements.
  const Tensor& masks() const { return masks_; }
  // Why those of these numbers, from 0, could not be read: what take() gave of them means nothing.
  const std::map<int64_t, Error>& broken() const { return broken_; }

 private:
  void read_all();
  void read(int64_t i);

  const PictureRequest wanted_;
  const std::shared_ptr<HostMemory> memory_;
  const int64_t count_;
  Tensor batch_, masks_;
  std::atomic<int64_t> next_{0};
  std::vector<std::exception_ptr> faults_;  // of each picture
  std::map<int64_t, Error> broken_;
  std::vector<std::thread> threads_;
};

}  // namespace moonflow
