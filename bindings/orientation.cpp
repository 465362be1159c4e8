// Source: CIPA DC-008, Exif 2.32: 4.5.4 where the block of a JPEG lies, 4.6.2 its directory, 4.6.4 the orientation; and
// the third edition of PNG, 11.3.4.5, where that of a PNG lies.
#include "bindings/orientation.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace moonflow {
namespace {

// Numbers at places of a block, which may be beyond its end: there they are 0.
class Block {
 public:
  Block(std::string_view bytes, bool is_little) : bytes_(bytes), is_little_(is_little) {}

  uint32_t u16(size_t at) const { return is_little_ ? byte(at) | byte(at + 1) << 8 : byte(at) << 8 | byte(at + 1); }
  uint32_t u32(size_t at) const { return is_little_ ? u16(at) | u16(at + 2) << 16 : u16(at) << 16 | u16(at + 2); }

 private:
  uint32_t byte(size_t at) const { return at < bytes_.size() ? static_cast<unsigned char>(bytes_[at]) : 0; }

  const std::string_view bytes_;
  const bool is_little_;
};

// The orientation in the first directory of a block of tags, or 1.
int number_in(std::string_view tags) {
  constexpr uint32_t kOrientation = 0x112, kShort = 3;
  constexpr size_t kEntry = 12;
  if (tags.substr(0, 2) != "II" && tags.substr(0, 2) != "MM") return 1;
  const Block block(tags, tags[0] == 'I');
  const size_t directory = block.u32(4), count = block.u16(directory);
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = directory + 2 + i * kEntry;
    if (block.u16(entry) != kOrientation || block.u16(entry + 2) != kShort) continue;
    const uint32_t number = block.u16(entry + 8);
    return number >= 1 && number <= 8 ? static_cast<int>(number) : 1;
  }
  return 1;
}

}  // namespace

Orientation Orientation::of_jpeg(std::string_view bytes) {
  using namespace std::string_view_literals;
  constexpr uint32_t kExif = 0xFFE1, kScan = 0xFFDA;
  constexpr std::string_view kName = "Exif\0\0"sv;
  const Block file(bytes, false);
  // A part is its mark, its length with these two bytes, and what it holds.
  for (size_t at = 2; at + 4 <= bytes.size();) {
    const uint32_t mark = file.u16(at), length = file.u16(at + 2);
    if (mark == 0xFFFF) {  // bytes may stand before a mark
      ++at;
      continue;
    }
    if (mark < 0xFF00 || mark == kScan || length < 2) break;
    const std::string_view held = bytes.substr(at + 4, length - 2);
    if (mark == kExif && held.substr(0, kName.size()) == kName)
      return Orientation(number_in(held.substr(kName.size())));
    at += 2 + length;
  }
  return Orientation();
}

Orientation Orientation::of_png(std::string_view bytes) {
  constexpr size_t kSignature = 8, kLengthAndType = 8, kChecksum = 4;
  const Block file(bytes, false);
  // A part is its length, its type, so many bytes, and their checksum. The one of EXIF may stand behind the pixels.
  for (size_t at = kSignature; at + kLengthAndType <= bytes.size();) {
    const size_t length = file.u32(at);
    if (bytes.substr(at + 4, 4) == "eXIf") return Orientation(number_in(bytes.substr(at + kLengthAndType, length)));
    at += kLengthAndType + length + kChecksum;
  }
  return Orientation();
}

Tensor Orientation::upright(const Tensor& stored, const std::shared_ptr<HostMemory>& memory) const {
  if (is_upright()) return stored;
  int64_t height = stored.shape()[0], width = stored.shape()[1];
  const int64_t channels = stored.shape().rank() == 3 ? stored.shape()[2] : 1;
  // How far it is in the stored picture from a pixel to the one that is seen below it, and to the one at its right.
  int64_t down = width * channels, along = channels;
  if (exchanges_sides()) {
    std::swap(height, width);
    std::swap(down, along);
  }
  const uint8_t* first = stored.data<uint8_t>();
  if (begins_below()) {
    first += (height - 1) * down;
    down = -down;
  }
  if (begins_at_right()) {
    first += (width - 1) * along;
    along = -along;
  }
  Shape shape{height, width};
  if (stored.shape().rank() == 3) shape.push_back(channels);
  Tensor seen = Tensor::allocate({DType::UInt8, shape}, memory);
  uint8_t* out = seen.data<uint8_t>();
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) out = std::copy_n(first + y * down + x * along, channels, out);
  return seen;
}

}  // namespace moonflow
