// The PNG specification (third edition, W3C 2025): a signature, then chunks of length, type, content and CRC-32. The
// content of IDAT is zlib's, of rows that each begin with the number of a filter, 0 for none.
#include "bindings/png.h"

#include <zlib.h>

#include <algorithm>

#include "bindings/file.h"

namespace moonflow {
namespace {

constexpr int64_t kLongestSide = int64_t{1} << 24;
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of the elements: a chunk has a 31-bit length

void append_big_endian(std::string& to, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(number >> shift);
}

void append_chunk(std::string& to, const char* type, const std::string& content) {
  append_big_endian(to, static_cast<uint32_t>(content.size()));
  const size_t start = to.size();
  to += type;
  to += content;
  const uLong crc = crc32_z(0, reinterpret_cast<const Bytef*>(to.data()) + start, to.size() - start);
  append_big_endian(to, static_cast<uint32_t>(crc));
}

template <class T>
unsigned char byte_of(T value) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return value;
  } else {
    const T inside = value > T(0) ? std::min(value, T(1)) : T(0);
    return static_cast<unsigned char>(inside * T(255) + T(0.5));
  }
}

// The rows, each with the number of its filter before it.
template <class T>
std::string filtered_rows(const T* elements, int64_t height, int64_t row_elements) {
  std::string rows;
  rows.reserve(static_cast<size_t>(height * (row_elements + 1)));
  for (int64_t y = 0; y < height; ++y) {
    rows += '\0';
    for (int64_t i = 0; i < row_elements; ++i) rows += static_cast<char>(byte_of(elements[y * row_elements + i]));
  }
  return rows;
}

std::string compressed(const std::string& bytes) {
  uLongf size = compressBound(bytes.size());
  std::string result(size, '\0');
  const int status = compress2(reinterpret_cast<Bytef*>(result.data()), &size,
                               reinterpret_cast<const Bytef*>(bytes.data()), bytes.size(), Z_DEFAULT_COMPRESSION);
  require(status == Z_OK, ErrorCode::OutOfMemory, "zlib cannot compress ", bytes.size(), " bytes");
  result.resize(size);
  return result;
}

}  // namespace

void write_png(const std::string& path, const Tensor& picture) {
  const Shape& shape = picture.shape();
  const DType dtype = picture.dtype();
  require(dtype == DType::UInt8 || dtype == DType::Float32 || dtype == DType::Float64, ErrorCode::DtypeMismatch,
          "the picture is ", dtype, ", wanted uint8, or float32 or float64 from 0 to 1");
  const int64_t channels = shape.rank() == 3 ? shape[2] : 1;
  require((shape.rank() == 2 || shape.rank() == 3) && channels >= 1 && channels <= 4, ErrorCode::ShapeMismatch,
          "the picture is ", shape, ", wanted (height, width) or (height, width, channels) with 1 to 4 channels");
  const int64_t height = shape[0], width = shape[1];
  require(height >= 1 && width >= 1 && height < kLongestSide && width < kLongestSide && shape.count() < kMostBytes,
          ErrorCode::ShapeMismatch, "the picture is ", shape,
          ", wanted sides from 1 to 2^24 and less than 2^30 elements in all");

  constexpr char kColourTypes[] = {0, 4, 2, 6};  // by the number of channels
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(width));
  append_big_endian(header, static_cast<uint32_t>(height));
  header += char{8};  // bits of a channel
  header += kColourTypes[channels - 1];
  header.append(3, '\0');  // deflate, the five filters, not interlaced

  std::string file = "\x89PNG\r\n\x1a\n";
  append_chunk(file, "IHDR", header);
  const auto rows = [&](auto zero) { return filtered_rows(picture.data<decltype(zero)>(), height, width * channels); };
  append_chunk(file, "IDAT",
               compressed(dtype == DType::UInt8     ? rows(uint8_t{})
                          : dtype == DType::Float32 ? rows(float{})
                                                    : rows(double{})));
  append_chunk(file, "IEND", {});
  replace_file(path, file, nullptr, 0);
}

}  // namespace moonflow
