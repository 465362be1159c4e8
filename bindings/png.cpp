#include "bindings/png.h"

#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <new>
#include <vector>

#include "bindings/file.h"

namespace moonflow {
namespace {

constexpr int64_t kLongestSide = 1000000;  // libpng's own limit

constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};

// libpng reading a picture. What a file says of how it is to be shown, its gamma and colour profile, is not looked at:
// elements are numbers, such as classes of a mask.
class Reader {
 public:
  explicit Reader(const std::string& bytes)
      : bytes_(bytes), png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, give_up, pass_over)) {
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png_, this, give);
  }
  ~Reader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Reader(const Reader&) = delete;

  // Each is false where libpng gives up, and says why in problem(). The header comes first.
  bool read_header(bool raw) {
    return attempt([&] {
      png_read_info(png_, info_);
      if (raw) {
        png_set_packing(png_);
        if (is_deep()) png_set_swap(png_);
      } else {
        png_set_expand(png_);  // palettes, few bits, and a colour that stands for nothing, where there is one
        png_set_scale_16(png_);
      }
      png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
  }
  // `rows` has the first byte of each row.
  bool read_rows(png_bytepp rows) {
    return attempt([&] {
      png_read_image(png_, rows);
      png_read_end(png_, nullptr);
    });
  }

  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  int channels() const { return png_get_channels(png_, info_); }
  bool is_deep() const { return png_get_bit_depth(png_, info_) == 16; }
  int64_t row_bytes() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  const char* problem() const { return problem_.data(); }

 private:
  // libpng jumps out of `body`, in which nothing may have a destructor.
  template <class Body>
  bool attempt(const Body& body) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    body();
    return true;
  }

  [[noreturn]] static void give_up(png_structp png, png_const_charp text) {
    std::array<char, 200>& problem = static_cast<Reader*>(png_get_error_ptr(png))->problem_;
    std::strncpy(problem.data(), text, problem.size() - 1);
    png_longjmp(png, 1);
  }
  static void pass_over(png_structp, png_const_charp) {}
  static void give(png_structp png, png_bytep to, size_t count) {
    Reader* const self = static_cast<Reader*>(png_get_io_ptr(png));
    if (count > self->bytes_.size() - self->at_) png_error(png, "it ends too early");
    std::memcpy(to, self->bytes_.data() + self->at_, count);
    self->at_ += count;
  }

  const std::string& bytes_;
  size_t at_ = 0;
  std::array<char, 200> problem_{};
  png_structp png_;
  png_infop info_ = nullptr;
};

}  // namespace

std::string encode_png(const Tensor& picture) {
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
  return file;
}

Tensor decode_png(const EncodedPicture& picture, bool raw, const std::shared_ptr<HostMemory>& memory) {
  Reader reader(picture.bytes);
  require(reader.read_header(raw), ErrorCode::Io, picture.name, " is no PNG picture: ", reader.problem());
  const int64_t height = reader.height(), width = reader.width();
  const int channels = reader.channels();
  picture.check_size(height, width, channels);
  Shape shape{height, width};
  if (channels > 1) shape.push_back(channels);
  Tensor elements = Tensor::allocate({DType::UInt8, shape}, memory);
  std::vector<uint16_t> deep(reader.is_deep() ? elements.count() : 0);
  png_bytep const first = deep.empty() ? elements.data<uint8_t>() : reinterpret_cast<png_bytep>(deep.data());
  std::vector<png_bytep> rows(height);
  for (int64_t i = 0; i < height; ++i) rows[i] = first + i * reader.row_bytes();
  require(reader.read_rows(rows.data()), ErrorCode::Io, picture.name, " is a damaged picture: ", reader.problem());
  if (deep.empty()) return elements;
  Tensor numbers = Tensor::allocate({DType::Int32, shape}, memory);
  std::copy(deep.begin(), deep.end(), numbers.data<int32_t>());
  return numbers;
}

}  // namespace moonflow
