// How the picture of a camera lies in its file, as EXIF has it. Reading trusts nothing.
#pragma once

#include <memory>
#include <string_view>

#include "engine/tensor.h"

namespace moonflow {

// The number that EXIF gives to one of the eight ways in which a picture may lie: 1 is upright.
class Orientation {
 public:
  Orientation() = default;
  // What a file says of it; upright where it says nothing, or nothing that makes sense.
  static Orientation of_jpeg(std::string_view bytes);
  static Orientation of_png(std::string_view bytes);

  bool is_upright() const { return number_ == 1; }
  bool exchanges_sides() const { return number_ >= 5; }
  // Is what is seen above, or at the left, stored after what is below, or at the right of it?
  bool begins_below() const { return number_ == 3 || number_ == 4 || number_ >= 7; }
  bool begins_at_right() const { return number_ == 2 || number_ == 3 || number_ == 6 || number_ == 7; }
  // The stored pixels, (height, width) or (height, width, channels) of uint8, as they are to be seen.
  Tensor upright(const Tensor& stored, const std::shared_ptr<HostMemory>& memory) const;

 private:
  explicit Orientation(int number) : number_(number) {}
  int number_ = 1;
};

}  // namespace moonflow
