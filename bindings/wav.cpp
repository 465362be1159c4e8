#include "bindings/wav.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace moonflow {
namespace {

constexpr int64_t kFormatInteger = 1, kFormatFloat = 3, kFormatExtensible = 0xFFFE;
constexpr int64_t kUnknownSize = 0xFFFFFFFF;  // whoever writes to a pipe cannot come back to say it
// Some then leave 0, as a recorder that was killed does, or the most that there can be, less the headers.
constexpr bool is_unfinished(int64_t size) { return size == 0 || size >= 0x7FFFF000; }
constexpr int64_t kMostChannels = 256;
constexpr int64_t kBlock = 4096;  // samples that are converted at once

// How samples lie in a file.
struct Encoding {
  std::string_view name;
  int64_t format, bytes;
  DType raw;
};

constexpr std::array<Encoding, 6> kEncodings{{{"uint8", kFormatInteger, 1, DType::UInt8},
                                              {"int16", kFormatInteger, 2, DType::Int32},
                                              {"int24", kFormatInteger, 3, DType::Int32},
                                              {"int32", kFormatInteger, 4, DType::Int32},
                                              {"float32", kFormatFloat, 4, DType::Float32},
                                              {"float64", kFormatFloat, 8, DType::Float64}}};

// ---- numbers as bytes, little-endian --------------------------------------------------------------------------

int64_t number_at(const unsigned char* bytes, int count) {
  int64_t number = 0;
  for (int i = 0; i < count; ++i) number |= static_cast<int64_t>(bytes[i]) << 8 * i;
  return number;
}

void append_number(std::string& bytes, int64_t number, int count) {
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(number >> 8 * i));
}

template <int kBytes>
int32_t integer_at(const unsigned char* bytes) {
  if constexpr (kBytes == 1) return bytes[0];
  uint32_t number = 0;  // at the upper end, so that its sign is in its place
  for (int i = 0; i < kBytes; ++i) number |= static_cast<uint32_t>(bytes[i]) << 8 * (4 - kBytes + i);
  return static_cast<int32_t>(number) >> 8 * (4 - kBytes);
}

// The integers from -limit to limit - 1; those of 8 bits lie above 0, with `silence` in the middle.
constexpr double limit_of(int64_t bytes) { return static_cast<double>(int64_t{1} << (8 * bytes - 1)); }
constexpr int32_t silence_of(int64_t bytes) { return bytes == 1 ? 128 : 0; }

// ---- reading --------------------------------------------------------------------------------------------------

template <int kBytes>
void integers_to(void* to, bool raw, const unsigned char* from, int64_t count) {
  constexpr auto kScale = static_cast<float>(1 / limit_of(kBytes));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t number = integer_at<kBytes>(from + i * kBytes);
    if (!raw)
      static_cast<float*>(to)[i] = static_cast<float>(number - silence_of(kBytes)) * kScale;
    else if (kBytes == 1)
      static_cast<unsigned char*>(to)[i] = static_cast<unsigned char>(number);
    else
      static_cast<int32_t*>(to)[i] = number;
  }
}

void samples_to(void* to, bool raw, const Encoding& encoding, const unsigned char* from, int64_t count) {
  if (encoding.name == "float64" && !raw) {
    for (int64_t i = 0; i < count; ++i) {
      double number;
      std::memcpy(&number, from + 8 * i, sizeof number);
      static_cast<float*>(to)[i] = static_cast<float>(number);
    }
  } else if (encoding.format == kFormatFloat) {
    std::memcpy(to, from, static_cast<size_t>(count * encoding.bytes));
  } else {
    constexpr decltype(&integers_to<1>) kConversions[] = {integers_to<1>, integers_to<2>, integers_to<3>,
                                                          integers_to<4>};
    kConversions[encoding.bytes - 1](to, raw, from, count);
  }
}

std::string printable(const unsigned char* bytes, int count) {
  std::string shown;
  for (int i = 0; i < count; ++i) shown += bytes[i] >= 32 && bytes[i] < 127 ? static_cast<char>(bytes[i]) : '?';
  return shown;
}

void skip(ByteSource& source, int64_t bytes) {
  std::array<char, 4096> passed;
  for (int64_t left = bytes; left > 0; left -= static_cast<int64_t>(passed.size()))
    source.read(passed.data(), std::min(left, static_cast<int64_t>(passed.size())));
}

struct Format {
  const Encoding* encoding = nullptr;
  int64_t channels = 0, rate = 0;
};

// What the chunk "fmt " says, of which `size` bytes come.
Format read_format(ByteSource& source, int64_t size) {
  const int64_t begin = source.position();
  if (size < 16) source.fail_at(begin, "the chunk 'fmt ' has ", size, " bytes, wanted 16 or more");
  std::array<unsigned char, 26> bytes{};
  const int64_t taken = std::min(size, static_cast<int64_t>(bytes.size()));
  source.read(bytes.data(), taken);
  skip(source, size - taken);

  int64_t format = number_at(bytes.data(), 2);
  if (format == kFormatExtensible && taken == 26) format = number_at(bytes.data() + 24, 2);
  const int64_t channels = number_at(bytes.data() + 2, 2), rate = number_at(bytes.data() + 4, 4);
  const int64_t frame_bytes = number_at(bytes.data() + 12, 2), bits = number_at(bytes.data() + 14, 2);
  const auto* encoding = std::find_if(kEncodings.begin(), kEncodings.end(), [&](const Encoding& known) {
    return known.format == format && 8 * known.bytes == bits;
  });
  if (encoding == kEncodings.end())
    source.fail_at(begin, "samples of format ", format, " with ", bits,
                   " bits are not supported, only format 1, integers, with 8, 16, 24 or 32 bits, and format 3, floats, "
                   "with 32 or 64; other programs convert them");
  if (channels < 1 || channels > kMostChannels || frame_bytes != channels * encoding->bytes)
    source.fail_at(begin + 2, channels, " channels in ", frame_bytes, " bytes are wrong for samples of ", bits,
                   " bits; wanted are 1 to ", kMostChannels, " channels without a gap");
  if (rate < 1) source.fail_at(begin + 4, "a rate of 0 samples in a second");
  return {encoding, channels, rate};
}

// ---- writing --------------------------------------------------------------------------------------------------

template <class T>
int64_t integer_of(T value, int64_t bytes) {
  const double limit = limit_of(bytes), scaled = std::nearbyint(static_cast<double>(value) * limit);
  const double inside = std::isnan(scaled) ? 0 : std::clamp(scaled, -limit, limit - 1);
  return static_cast<int64_t>(inside) + silence_of(bytes);
}

template <class T>
void append_floats(std::string& bytes, const Tensor& samples, const Encoding& encoding) {
  const T* from = samples.data<T>();
  for (int64_t i = 0; i < samples.count(); ++i) {
    const auto narrow = static_cast<float>(from[i]);
    const auto wide = static_cast<double>(from[i]);
    if (encoding.format == kFormatInteger)
      append_number(bytes, integer_of(from[i], encoding.bytes), static_cast<int>(encoding.bytes));
    else if (encoding.bytes == 4)
      bytes.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
    else
      bytes.append(reinterpret_cast<const char*>(&wide), sizeof wide);
  }
}

void append_integers(std::string& bytes, const Tensor& samples, const Encoding& encoding) {
  const auto limit = static_cast<int64_t>(limit_of(encoding.bytes));
  const int64_t least = silence_of(encoding.bytes) - limit, most = silence_of(encoding.bytes) + limit - 1;
  const auto* from = samples.data<int32_t>();
  for (int64_t i = 0; i < samples.count(); ++i) {
    require(from[i] >= least && from[i] <= most, ErrorCode::InvalidArgument, "sample ", i, " is ", from[i],
            ", wanted for ", encoding.name, " are integers from ", least, " to ", most);
    append_number(bytes, from[i], static_cast<int>(encoding.bytes));
  }
}

void append_samples(std::string& bytes, const Tensor& samples, const Encoding& encoding) {
  const DType dtype = samples.dtype();
  if (dtype == DType::Float32) return append_floats<float>(bytes, samples, encoding);
  if (dtype == DType::Float64) return append_floats<double>(bytes, samples, encoding);
  require(dtype == DType::UInt8 || dtype == DType::Int32, ErrorCode::DtypeMismatch, "the samples are ", dtype,
          ", wanted floats from -1 to 1, int32 or uint8");
  require(encoding.format == kFormatInteger && (dtype == DType::Int32 || encoding.bytes == 1), ErrorCode::DtypeMismatch,
          "the samples are ", dtype, ", which do not go into ", encoding.name, " as they are");
  if (dtype == DType::Int32) return append_integers(bytes, samples, encoding);
  bytes.append(samples.data<char>(), static_cast<size_t>(samples.count()));
}

}  // namespace

Sound read_wav(ByteSource& source, bool raw, const std::shared_ptr<HostMemory>& memory) {
  std::array<unsigned char, 12> head;
  if (source.remaining() < static_cast<int64_t>(head.size()))
    source.fail_at(0, "no WAV file: it has ", source.remaining(), " bytes");
  source.read(head.data(), head.size());
  if (std::memcmp(head.data(), "RIFF", 4) != 0 || std::memcmp(head.data() + 8, "WAVE", 4) != 0)
    source.fail_at(0, "no WAV file: it begins with '", printable(head.data(), 4), "....", printable(head.data() + 8, 4),
                   "', wanted 'RIFF....WAVE'");

  const int64_t whole = number_at(head.data() + 4, 4);
  Format format;
  for (;;) {
    std::array<unsigned char, 8> chunk;
    const int64_t begin = source.position();
    if (source.remaining() < static_cast<int64_t>(chunk.size())) source.fail_at(begin, "it has no chunk 'data'");
    source.read(chunk.data(), chunk.size());
    const std::string name = printable(chunk.data(), 4);
    int64_t size = number_at(chunk.data() + 4, 4);
    const bool is_data = name == "data";
    if (is_data && !format.encoding) source.fail_at(begin, "the chunk 'data' comes before 'fmt '");
    const int64_t frame_bytes = is_data ? format.channels * format.encoding->bytes : 1;
    const bool is_guess = is_unfinished(whole) && is_unfinished(size) && (size == 0 || size > source.remaining());
    if (is_data && (size == kUnknownSize || is_guess)) size = source.remaining() / frame_bytes * frame_bytes;
    if (size > source.remaining())
      source.fail_at(begin + 4, "the chunk '", name, "' announces ", size, " bytes, the file has ", source.remaining(),
                     " more");
    if (size % frame_bytes != 0)
      source.fail_at(begin + 4, "the chunk 'data' has ", size, " bytes, which are no samples of ", frame_bytes);
    if (is_data) {
      Shape shape{size / frame_bytes};
      if (format.channels > 1) shape.push_back(format.channels);
      const DType dtype = raw ? format.encoding->raw : DType::Float32;
      Sound sound{Tensor::allocate({dtype, shape}, memory), format.rate};
      std::vector<unsigned char> block(static_cast<size_t>(kBlock * format.encoding->bytes));
      for (int64_t done = 0, count; done < sound.samples.count(); done += count) {
        count = std::min(kBlock, sound.samples.count() - done);
        source.read(block.data(), count * format.encoding->bytes);
        samples_to(sound.samples.data<char>() + done * size_of(dtype), raw, *format.encoding, block.data(), count);
      }
      return sound;
    }
    if (name == "fmt ")
      format = read_format(source, size);
    else
      skip(source, size);
    skip(source, std::min(size % 2, source.remaining()));  // chunks begin at even places
  }
}

Sound read_wav(const std::string& path, bool raw, const std::shared_ptr<HostMemory>& memory) {
  FileSource source(path);
  return read_wav(source, raw, memory);
}

std::string encode_wav(const Sound& sound, std::string_view encoding_name) {
  const auto* encoding = std::find_if(kEncodings.begin(), kEncodings.end(),
                                      [&](const Encoding& known) { return known.name == encoding_name; });
  require(encoding != kEncodings.end(), ErrorCode::InvalidArgument, "the encoding is '", encoding_name,
          "', wanted 'uint8', 'int16', 'int24', 'int32', 'float32' or 'float64'");
  const Shape& shape = sound.samples.shape();
  const int64_t channels = shape.rank() == 2 ? shape[1] : 1;
  require((shape.rank() == 1 || shape.rank() == 2) && channels >= 1 && channels <= kMostChannels,
          ErrorCode::ShapeMismatch, "the samples are ", shape, ", wanted (samples) or (samples, channels) with 1 to ",
          kMostChannels, " channels",
          shape.rank() == 2 && shape[0] <= kMostChannels ? "; a:transpose() puts channels last" : "");
  require(sound.rate >= 1 && sound.rate < kUnknownSize, ErrorCode::InvalidArgument, "the rate is ", sound.rate,
          ", wanted how many samples there are in a second");

  const bool is_float = encoding->format == kFormatFloat;
  const int64_t frame_bytes = channels * encoding->bytes, size = shape.count() * encoding->bytes;
  const int64_t head_bytes = is_float ? 50 : 36;  // between the sizes of the file and of the samples
  require(shape.count() < (kUnknownSize - head_bytes - 1) / encoding->bytes, ErrorCode::InvalidArgument,
          "the samples are ", shape, ", which as ", encoding->name, " are more than the 4 GiB of a WAV file");
  std::string bytes = "RIFF";
  bytes.reserve(static_cast<size_t>(size + head_bytes + 10));
  append_number(bytes, head_bytes + size + size % 2, 4);
  bytes += "WAVEfmt ";
  append_number(bytes, is_float ? 18 : 16, 4);
  append_number(bytes, encoding->format, 2);
  append_number(bytes, channels, 2);
  append_number(bytes, sound.rate, 4);
  append_number(bytes, std::min(sound.rate * frame_bytes, kUnknownSize), 4);
  append_number(bytes, frame_bytes, 2);
  append_number(bytes, 8 * encoding->bytes, 2);
  if (is_float) {  // nothing more of the format; and how many samples of each channel
    append_number(bytes, 0, 2);
    bytes += "fact";
    append_number(bytes, 4, 4);
    append_number(bytes, shape.rank() == 2 ? shape[0] : shape.count(), 4);
  }
  bytes += "data";
  append_number(bytes, size, 4);
  append_samples(bytes, sound.samples, *encoding);
  if (size % 2 != 0) bytes.push_back('\0');
  return bytes;
}

}  // namespace moonflow
