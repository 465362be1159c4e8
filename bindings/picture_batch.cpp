#include "bindings/picture_batch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "bindings/jpeg.h"
#include "bindings/png.h"
#include "kernels/cpu/simd.h"

namespace moonflow {
namespace {

// A part of one axis of a picture.
struct Stretch {
  int64_t begin, length;

  // So long a part of `whole`; its ends are as likely as what lies between.
  Stretch(double wanted, double place, int64_t whole) : length(std::clamp<int64_t>(std::llround(wanted), 1, whole)) {
    const int64_t rest = whole - length;
    begin = std::min(static_cast<int64_t>(place * static_cast<double>(rest + 1)), rest);
  }
};

struct Box {
  Stretch rows, columns;
};

Box box_of(const PictureCut& cut, int64_t rows, int64_t columns) {
  const auto high = static_cast<double>(rows), wide = static_cast<double>(columns);
  const double aspect = cut.aspect > 0 ? cut.aspect : wide / high;
  const double height = std::sqrt(cut.area * high * wide / aspect), width = height * aspect;
  const double part = std::min({1.0, high / height, wide / width}) * cut.side;
  return {Stretch(height * part, cut.top, rows), Stretch(width * part, cut.left, columns)};
}

// How a stretch of an axis becomes one of `to` places: around the centre of each new place a triangle of weights, as
// wide as what the place stands for. The picture may have been reduced: then it has `stored` pixels there, each of
// which stands for so many, but for so many that the first one lacks.
class Axis {
 public:
  Axis(const Stretch& of, int64_t missing, int reduced, int64_t stored, int64_t to) : seen_(to) {
    const double begin = static_cast<double>(of.begin + missing) / reduced,
                 length = static_cast<double>(of.length) / reduced;
    begin_ = static_cast<int64_t>(begin);
    const int64_t end = std::min(static_cast<int64_t>(std::ceil(begin + length)), stored);
    length_ = end - begin_;
    const double scale = length / static_cast<double>(to), spread = std::max(1.0, scale);
    for (int64_t at = 0; at < to; ++at) {
      const double centre = begin + (static_cast<double>(at) + 0.5) * scale - 0.5;
      const auto first = std::max(begin_, static_cast<int64_t>(std::floor(centre - spread)) + 1);
      const auto last = std::min(end - 1, static_cast<int64_t>(std::ceil(centre + spread)) - 1);
      seen_[at] = {first - begin_, last - first + 1, weights_.size()};
      double sum = 0;
      for (int64_t i = first; i <= last; ++i) sum += weight(static_cast<double>(i) - centre, spread);
      for (int64_t i = first; i <= last; ++i)
        weights_.push_back(static_cast<float>(weight(static_cast<double>(i) - centre, spread) / sum));
    }
  }

  // The pixels that are seen, as they are stored.
  int64_t begin() const { return begin_; }
  int64_t length() const { return length_; }
  // Those that a new place sees, the first one counted from there.
  int64_t first(int64_t at) const { return seen_[at].first; }
  int64_t count(int64_t at) const { return seen_[at].count; }
  const float* weights(int64_t at) const { return weights_.data() + seen_[at].at; }

 private:
  struct Seen {
    int64_t first, count;
    size_t at;
  };
  static double weight(double distance, double spread) { return std::max(0.0, 1 - std::abs(distance) / spread); }

  int64_t begin_ = 0, length_ = 0;
  std::vector<Seen> seen_;
  std::vector<float> weights_;
};

struct Decoded {
  Tensor pixels;
  int64_t whole_height, whole_width;  // of the picture as it was
  Box box;                            // in pixels of that
  int reduced = 1;  // so many of them each way are one now
  // So many more the first row and the first column would stand for, where these were the last before it was turned:
  // the whole is no multiple of what one stands for.
  int64_t missing_above = 0, missing_left = 0;

  int64_t rows() const { return pixels.shape()[0]; }
  int64_t columns() const { return pixels.shape()[1]; }
  int64_t channels() const { return pixels.shape().rank() == 3 ? pixels.shape()[2] : 1; }
};

bool is_png(const std::string& bytes) { return bytes.compare(0, 4, "\x89PNG") == 0; }
bool is_jpeg(const std::string& bytes) { return bytes.compare(0, 2, "\xFF\xD8") == 0; }

// By how much the sides of a JPEG may be divided before, where what is cut becomes so small.
int reduction(const Box& box, const PictureSize& size) {
  int by = 1;
  while (by < kMostJpegReduction && box.rows.length >= 4 * by * size.height &&
         box.columns.length >= 4 * by * size.width)
    by *= 2;
  return by;
}

Decoded decode_raw(const EncodedPicture& picture, const PictureCut& cut, bool upright,
                   const std::shared_ptr<HostMemory>& memory) {
  require(is_png(picture.bytes), ErrorCode::Io, picture.name, " is no PNG picture; in others numbers do not last");
  Tensor numbers = decode_png(picture, true, memory);
  require(numbers.dtype() == DType::UInt8 && numbers.shape().rank() == 2, ErrorCode::Io, picture.name, " has ",
          numbers.type(), ", wanted one number of up to 8 bits for each pixel, grey or of a palette");
  if (upright) numbers = Orientation::of_png(picture.bytes).upright(numbers, memory);
  const int64_t height = numbers.shape()[0], width = numbers.shape()[1];
  return {numbers, height, width, box_of(cut, height, width)};
}

Decoded decode(const EncodedPicture& picture, const PictureCut& cut, const PictureRequest& wanted,
               const std::shared_ptr<HostMemory>& memory) {
  if (wanted.raw) return decode_raw(picture, cut, wanted.upright, memory);
  if (is_png(picture.bytes)) {
    const Orientation orientation = wanted.upright ? Orientation::of_png(picture.bytes) : Orientation();
    const Tensor pixels = orientation.upright(decode_png(picture, false, memory), memory);
    const int64_t height = pixels.shape()[0], width = pixels.shape()[1];
    return {pixels, height, width, box_of(cut, height, width)};
  }
  require(is_jpeg(picture.bytes), ErrorCode::Io, picture.name, " is neither a JPEG nor a PNG picture");
  const Orientation orientation = wanted.upright ? Orientation::of_jpeg(picture.bytes) : Orientation();
  Box box = box_of(cut, 1, 1);
  int reduced = 1;
  int64_t rows = 0, columns = 0;
  const Tensor pixels = decode_jpeg(picture, orientation, memory, [&](int64_t height, int64_t width) {
    rows = height;
    columns = width;
    box = box_of(cut, height, width);
    return reduced = reduction(box, wanted.size);
  });
  Decoded decoded{pixels, rows, columns, box, reduced};
  if (orientation.begins_below()) decoded.missing_above = decoded.rows() * reduced - rows;
  if (orientation.begins_at_right()) decoded.missing_left = decoded.columns() * reduced - columns;
  return decoded;
}

// A pixel of 1 to 4 channels in so many: grey is the luma of ITU-R BT.601, as a JPEG's.
void convert(const uint8_t* pixel, int64_t channels, int wanted, uint8_t* out) {
  const bool is_grey = channels <= 2;
  if (wanted == 1)
    *out = is_grey ? *pixel : static_cast<uint8_t>((299 * pixel[0] + 587 * pixel[1] + 114 * pixel[2] + 500) / 1000);
  else
    for (int c = 0; c < 3; ++c) out[c] = pixel[is_grey ? 0 : c];
}

// What of a picture is seen, in the wanted channels, row after row.
std::vector<uint8_t> cut_out(const Decoded& picture, const Axis& down, const Axis& along, int wanted) {
  const int64_t channels = picture.channels();
  std::vector<uint8_t> rows(static_cast<size_t>(down.length() * along.length() * wanted));
  uint8_t* out = rows.data();
  for (int64_t y = down.begin(); y < down.begin() + down.length(); ++y) {
    const uint8_t* from = picture.pixels.data<uint8_t>() + (y * picture.columns() + along.begin()) * channels;
    if (channels == wanted) {
      out = std::copy_n(from, along.length() * channels, out);
      continue;
    }
    for (int64_t x = 0; x < along.length(); ++x, from += channels, out += wanted) convert(from, channels, wanted, out);
  }
  return rows;
}

// The nearest, of two the even one: to a float so large no fraction can be added.
uint8_t byte_of(float value) {
  constexpr float kWhole = 0x1.8p23f;
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f) + kWhole - kWhole);
}

// out[i] = the sum over k of weights[k] * rows[k * size + i]
void sum_rows(const uint8_t* rows, int64_t size, const float* weights, int64_t count, float* __restrict out) {
  std::fill_n(out, size, 0.0f);
  for (int64_t k = 0; k < count; ++k)
    for (int64_t i = 0; i < size; ++i) out[i] += weights[k] * static_cast<float>(rows[k * size + i]);
}

constexpr int kLanes = 4;  // of a pixel's channels, side by side in a register

// Columns first, which lie side by side. Of a pixel as many channels are summed as a register has, the next pixel's
// too.
void resize(const Decoded& picture, const PictureSize& size, bool mirrored, uint8_t* out) {
  const Axis down(picture.box.rows, picture.missing_above, picture.reduced, picture.rows(), size.height),
      along(picture.box.columns, picture.missing_left, picture.reduced, picture.columns(), size.width);
  const int channels = size.channels;
  const std::vector<uint8_t> rows = cut_out(picture, down, along, channels);
  const int64_t row_size = along.length() * channels;
  std::vector<float> row(static_cast<size_t>(row_size + kLanes - 1));
  cpu::widest([&] {
    for (int64_t y = 0; y < size.height; ++y) {
      sum_rows(rows.data() + down.first(y) * row_size, row_size, down.weights(y), down.count(y), row.data());
      for (int64_t x = 0; x < size.width; ++x) {
        const float* const from = row.data() + along.first(x) * channels;
        const float* const weights = along.weights(x);
        float sums[kLanes] = {};
        for (int64_t k = 0; k < along.count(x); ++k)
          for (int c = 0; c < kLanes; ++c) sums[c] += weights[k] * from[k * channels + c];
        uint8_t* const pixel = out + (y * size.width + (mirrored ? size.width - 1 - x : x)) * channels;
        for (int c = 0; c < channels; ++c) pixel[c] = byte_of(sums[c]);
      }
    }
  });
}

// Each new pixel is the old one at its centre.
void pick(const Decoded& picture, const PictureSize& size, bool mirrored, uint8_t* out) {
  const Stretch &rows = picture.box.rows, &columns = picture.box.columns;
  for (int64_t y = 0; y < size.height; ++y) {
    const int64_t row = rows.begin + (2 * y + 1) * rows.length / (2 * size.height);
    const uint8_t* const from = picture.pixels.data<uint8_t>() + row * picture.columns() + columns.begin;
    for (int64_t x = 0; x < size.width; ++x) {
      const int64_t place = mirrored ? size.width - 1 - x : x;
      out[y * size.width + x] = from[(2 * place + 1) * columns.length / (2 * size.width)];
    }
  }
}

}  // namespace

PictureReading::PictureReading(PictureRequest wanted, int threads, const std::shared_ptr<HostMemory>& memory)
    : wanted_(std::move(wanted)),
      memory_(memory),
      count_(static_cast<int64_t>(wanted_.sources.size())),
      faults_(count_) {
  const PictureSize& size = wanted_.size;
  const Shape numbers{count_, size.height, size.width};
  batch_ = Tensor::allocate(
      {DType::UInt8, wanted_.raw ? numbers : Shape{count_, size.height, size.width, size.channels}}, memory);
  if (!wanted_.masks.empty()) masks_ = Tensor::allocate({DType::UInt8, numbers}, memory);
  try {
    for (int64_t i = 0; i < std::min<int64_t>(threads, count_); ++i) threads_.emplace_back([this] { read_all(); });
  } catch (const std::system_error&) {  // then it takes longer
  } catch (const std::bad_alloc&) {
  }
}

PictureReading::~PictureReading() {
  next_ = count_;
  for (std::thread& thread : threads_) thread.join();
}

Tensor PictureReading::take() {
  read_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (int64_t i = 0; i < count_; ++i) {
    if (!faults_[i]) continue;
    try {
      std::rethrow_exception(faults_[i]);
    } catch (const Error& error) {
      if (!wanted_.passes_over_broken) fail(error.code, "picture ", i + 1, ": ", error.what());
      broken_.emplace(i, error);
    }
  }
  return batch_;
}

void PictureReading::read_all() {
  for (int64_t i = next_++; i < count_; i = next_++) {
    try {
      read(i);
    } catch (...) {
      faults_[i] = std::current_exception();
      if (!wanted_.passes_over_broken) next_ = count_;
    }
  }
}

void PictureReading::read(int64_t i) {
  const char* const kind = "JPEG or PNG";
  const std::string& source = wanted_.sources[i];
  const PictureSize& size = wanted_.size;
  const EncodedPicture encoded =
      wanted_.are_files ? EncodedPicture::of_file(source, kind) : EncodedPicture::of_bytes(source, kind);
  const PictureCut cut = wanted_.cuts.empty() ? PictureCut() : wanted_.cuts[i];
  const int64_t pixels = size.height * size.width;
  const Decoded picture = decode(encoded, cut, wanted_, memory_);
  if (wanted_.raw)
    pick(picture, size, cut.mirrored, batch_.data<uint8_t>() + i * pixels);
  else
    resize(picture, size, cut.mirrored, batch_.data<uint8_t>() + i * pixels * size.channels);
  if (wanted_.masks.empty()) return;
  const EncodedPicture encoded_mask = EncodedPicture::of_file(wanted_.masks[i], "PNG");
  const Decoded mask = decode_raw(encoded_mask, cut, wanted_.upright, memory_);
  require(mask.whole_height == picture.whole_height && mask.whole_width == picture.whole_width,
          ErrorCode::ShapeMismatch, encoded_mask.name, " is ", mask.pixels.shape(), ", and the picture '", source,
          "' that it belongs to ", Shape{picture.whole_height, picture.whole_width});
  pick(mask, size, cut.mirrored, masks_.data<uint8_t>() + i * pixels);
}

}  // namespace moonflow
