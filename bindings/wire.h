// The wire format of protobuf: a message is a row of fields, each a number and a value, and a value may be a message
// again. Reading trusts nothing: every length is checked against what is left before it is used, and no field makes
// anybody go deeper than the caller asks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace moonflow {

enum class WireType : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

// One field after the other: `while (reader.next()) switch (reader.number()) ...`. What is not asked for is skipped.
class WireReader {
 public:
  explicit WireReader(std::string_view file) : WireReader(file, file.data()) {}

  // Goes to the next field; false at the end of the message.
  bool next();

  uint32_t number() const { return number_; }
  // Bytes behind the field; of a message whose fields were not asked for yet, all.
  size_t left() const { return rest_.size(); }
  // The value, as what it must be; another wire type is an error.
  int64_t integer() const;
  float real() const;
  std::string_view bytes() const;
  WireReader message() const { return WireReader(bytes(), file_); }

  // Calls take(value) for the numbers of a repeated field: one by one, or packed in one field.
  template <class Take>
  void integers(const Take& take) const {
    if (type_ != WireType::Bytes) return take(integer());
    for (WireReader packed = message(); !packed.at_end();) take(static_cast<int64_t>(packed.varint()));
  }
  // The same for numbers of a fixed size, float or double: take(bits).
  template <class Bits, class Take>
  void fixed(const Take& take) const {
    constexpr WireType kSingle = sizeof(Bits) == 4 ? WireType::Fixed32 : WireType::Fixed64;
    if (type_ == kSingle) return take(static_cast<Bits>(value_));
    for (WireReader packed = message(); !packed.at_end();) take(static_cast<Bits>(packed.little_endian(sizeof(Bits))));
  }

  // An error that names the byte of the file where the field begins.
  [[noreturn]] void damaged(const std::string& what) const;

 private:
  WireReader(std::string_view message, const char* file) : rest_(message), file_(file), field_(message.data()) {}
  bool at_end() const { return rest_.empty(); }
  uint64_t varint();
  uint64_t little_endian(size_t bytes);
  std::string_view take(uint64_t bytes);

  std::string_view rest_;  // of the message, behind the field
  const char* file_;       // its first byte, for errors
  const char* field_;
  uint32_t number_ = 0;
  WireType type_ = WireType::Varint;
  uint64_t value_ = 0;      // unless it is bytes
  std::string_view bytes_;  // if it is
};

// Appends a number as seven bits a byte, the lowest first, each but the last with its eighth bit set.
void append_varint(std::string& text, uint64_t value);

// Appends fields to a message.
class WireWriter {
 public:
  void integer(uint32_t number, int64_t value);
  void real(uint32_t number, float value);
  void bytes(uint32_t number, std::string_view value);
  void message(uint32_t number, const WireWriter& value) { bytes(number, value.text_); }
  // What stands before a field of so many bytes, which the caller appends.
  void begin_bytes(uint32_t number, uint64_t size);
  void append(std::string_view bytes) { text_ += bytes; }

  const std::string& text() const { return text_; }

 private:
  void tag(uint32_t number, WireType type) { varint(uint64_t{number} << 3 | static_cast<uint64_t>(type)); }
  void varint(uint64_t value) { append_varint(text_, value); }

  std::string text_;
};

}  // namespace moonflow
