#include "bindings/jpeg.h"

#include <turbojpeg.h>

#include <new>
#include <string_view>

#include "bindings/file.h"
#include "bindings/picture.h"

namespace moonflow {
namespace {

constexpr int64_t kLongestSide = 65500;  // the library's own limit

// The library's state, which also holds what went wrong.
class Codec {
 public:
  explicit Codec(tjhandle made) : handle_(made) {
    if (!handle_) throw std::bad_alloc();
  }
  ~Codec() { tjDestroy(handle_); }
  Codec(const Codec&) = delete;

  tjhandle get() const { return handle_; }
  const char* problem() const { return tjGetErrorStr2(handle_); }
  // Is the problem a warning that all who read pictures pass over, since it costs no element? Many a data set has bytes
  // between two parts, and the pictures of many a telephone have a header that is not quite the standard's.
  bool loses_nothing() const {
    if (tjGetErrorCode(handle_) != TJERR_WARNING) return false;
    const std::string_view said = problem();
    for (const char* part : {"extraneous bytes", "Invalid SOS parameters for sequential JPEG", "unknown JFIF revision",
                             "Unknown Adobe color transform", "ICC"}) {
      if (said.find(part) != std::string_view::npos) return true;
    }
    return false;
  }

 private:
  tjhandle handle_;
};

// Bytes that the library has allocated.
struct Bytes {
  unsigned char* data = nullptr;
  unsigned long size = 0;  // as the library has it

  Bytes() = default;
  ~Bytes() { tjFree(data); }
  Bytes(const Bytes&) = delete;
};

// The four inks of a press as red, green and blue. Such files say of each ink how much light it leaves, as Adobe's
// programs write them, which all who read them take for granted.
Tensor colours_of_inks(const Tensor& inks, const std::shared_ptr<HostMemory>& memory) {
  Tensor colours = Tensor::allocate({DType::UInt8, {inks.shape()[0], inks.shape()[1], 3}}, memory);
  const uint8_t* ink = inks.data<uint8_t>();
  uint8_t* colour = colours.data<uint8_t>();
  for (int64_t left = inks.shape()[0] * inks.shape()[1]; left > 0; --left, ink += 4, colour += 3)
    for (int c = 0; c < 3; ++c) colour[c] = static_cast<uint8_t>((ink[c] * ink[3] + 127) / 255);
  return colours;
}

}  // namespace

std::string encode_jpeg(const Tensor& picture, int quality) {
  const PictureBytes bytes(picture, kLongestSide);
  require(bytes.channels() == 1 || bytes.channels() == 3, ErrorCode::ShapeMismatch, "the picture has ",
          bytes.channels(), " channels, and a JPEG has 1 or 3; np.save_png keeps opacity");
  const bool grey = bytes.channels() == 1;
  const Codec codec(tjInitCompress());
  Bytes file;
  const int written = tjCompress2(codec.get(), bytes.elements(), static_cast<int>(bytes.width()), 0,
                                  static_cast<int>(bytes.height()), grey ? TJPF_GRAY : TJPF_RGB, &file.data, &file.size,
                                  grey ? TJSAMP_GRAY : TJSAMP_420, quality, TJFLAG_ACCURATEDCT);
  require(written == 0, ErrorCode::Internal, "libjpeg-turbo cannot write the picture: ", codec.problem());
  return {reinterpret_cast<const char*>(file.data), file.size};
}

Tensor decode_jpeg(const EncodedPicture& picture, Orientation orientation, const std::shared_ptr<HostMemory>& memory,
                   const std::function<int(int64_t height, int64_t width)>& reduction) {
  const auto* data = reinterpret_cast<const unsigned char*>(picture.bytes.data());
  const size_t bytes = picture.bytes.size();
  const Codec codec(tjInitDecompress());
  int width = 0, height = 0, subsampling = 0, colours = 0;
  const int begun = tjDecompressHeader3(codec.get(), data, bytes, &width, &height, &subsampling, &colours);
  require(begun == 0 || codec.loses_nothing(), ErrorCode::Io, picture.name, " is no JPEG picture: ", codec.problem());
  const bool grey = colours == TJCS_GRAY, is_of_inks = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const int channels = grey ? 1 : is_of_inks ? 4 : 3;
  picture.check_size(height, width, channels);
  if (reduction) {
    const bool lies = orientation.exchanges_sides();
    const tjscalingfactor scale = {1, reduction(lies ? width : height, lies ? height : width)};
    height = TJSCALED(height, scale);
    width = TJSCALED(width, scale);
  }
  Shape shape{height, width};
  if (!grey) shape.push_back(channels);
  Tensor elements = Tensor::allocate({DType::UInt8, shape}, memory);
  // A small file may ask for thousands of scans over a large picture, so these are limited.
  const auto read = [&](int flags) {
    return tjDecompress2(codec.get(), data, bytes, elements.data<uint8_t>(), width, 0, height,
                         grey         ? TJPF_GRAY
                         : is_of_inks ? TJPF_CMYK
                                      : TJPF_RGB,
                         TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS | flags) == 0;
  };
  const bool whole = read(TJFLAG_STOPONWARNING) || (codec.loses_nothing() && (read(0) || codec.loses_nothing()));
  require(whole, ErrorCode::Io, picture.name, " is a damaged picture: ", codec.problem());
  return orientation.upright(is_of_inks ? colours_of_inks(elements, memory) : elements, memory);
}

}  // namespace moonflow
