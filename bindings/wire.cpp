#include "bindings/wire.h"

#include <cstring>

#include "engine/error.h"

namespace moonflow {

namespace {

constexpr uint64_t kMostNumber = (uint64_t{1} << 29) - 1;  // of a field

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fixed numbers are taken as they lie in memory");

}  // namespace

void WireReader::damaged(const std::string& what) const { fail(ErrorCode::Io, "byte ", field_ - file_, ": ", what); }

std::string_view WireReader::take(uint64_t bytes) {
  if (bytes > rest_.size())
    damaged(text("a field of ", bytes, " bytes stands where ", rest_.size(),
                 " are left of its message; the file is cut short or damaged"));
  const std::string_view taken = rest_.substr(0, static_cast<size_t>(bytes));
  rest_.remove_prefix(static_cast<size_t>(bytes));
  return taken;
}

uint64_t WireReader::little_endian(size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, take(bytes).data(), bytes);
  return value;
}

// Seven bits in each byte, the lowest first; all but the last have the eighth bit.
uint64_t WireReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1)[0]);
    if (shift == 63 && byte > 1) break;
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  damaged("a number has more than 64 bits");
}

bool WireReader::next() {
  if (rest_.empty()) return false;
  field_ = rest_.data();
  const uint64_t tag = varint();
  if (tag >> 3 == 0 || tag >> 3 > kMostNumber) damaged(text("a field has the number ", tag >> 3));
  number_ = static_cast<uint32_t>(tag >> 3);
  switch (tag & 7) {
    case static_cast<uint64_t>(WireType::Varint):
      type_ = WireType::Varint;
      value_ = varint();
      return true;
    case static_cast<uint64_t>(WireType::Fixed64):
      type_ = WireType::Fixed64;
      value_ = little_endian(8);
      return true;
    case static_cast<uint64_t>(WireType::Bytes):
      type_ = WireType::Bytes;
      bytes_ = take(varint());
      return true;
    case static_cast<uint64_t>(WireType::Fixed32):
      type_ = WireType::Fixed32;
      value_ = little_endian(4);
      return true;
    default:
      damaged(text("field ", number_, " has the wire type ", tag & 7, ", which is not in use"));
  }
}

int64_t WireReader::integer() const {
  if (type_ != WireType::Varint) damaged(text("field ", number_, " is no whole number"));
  return static_cast<int64_t>(value_);
}

float WireReader::real() const {
  if (type_ != WireType::Fixed32) damaged(text("field ", number_, " is no float"));
  const auto bits = static_cast<uint32_t>(value_);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::string_view WireReader::bytes() const {
  if (type_ != WireType::Bytes) damaged(text("field ", number_, " is neither text nor a message"));
  return bytes_;
}

void append_varint(std::string& text, uint64_t value) {
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  text += static_cast<char>(value);
}

void WireWriter::integer(uint32_t number, int64_t value) {
  tag(number, WireType::Varint);
  varint(static_cast<uint64_t>(value));
}

void WireWriter::real(uint32_t number, float value) {
  tag(number, WireType::Fixed32);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  text_.append(bytes, sizeof value);
}

void WireWriter::begin_bytes(uint32_t number, uint64_t size) {
  tag(number, WireType::Bytes);
  varint(size);
}

void WireWriter::bytes(uint32_t number, std::string_view value) {
  begin_bytes(number, value.size());
  append(value);
}

}  // namespace moonflow
