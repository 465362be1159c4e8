// JSON as a value of its own: made, read from text and written as text.
//
// Memory that runs out is std::bad_alloc and nothing else, whatever a value holds: no destructor and no move allocates.
// Values are trees of bounded depth, since they are destroyed by recursion: read_json keeps to kJsonDepth.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace moonflow {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json>;  // sorted, so that equal values have equal texts

  Json() = default;  // null
  template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  Json(Number value) {
    if constexpr (std::is_same_v<Number, bool>)
      value_ = value;
    else if constexpr (std::is_integral_v<Number>)
      value_ = static_cast<int64_t>(value);
    else
      value_ = static_cast<double>(value);
  }
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  // What it holds as one of bool, int64_t, double, std::string, Array, Object; null when it holds another kind.
  template <class Kind>
  const Kind* as() const {
    return std::get_if<Kind>(&value_);
  }
  template <class Kind>
  Kind* as() {
    return std::get_if<Kind>(&value_);
  }
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  // The member of an object; null when there is none, or this is no object.
  const Json* find(const std::string& key) const;
  // The same, of one kind only.
  template <class Kind>
  const Kind* find(const std::string& key) const {
    const Json* member = find(key);
    return member ? member->as<Kind>() : nullptr;
  }

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

constexpr int kJsonDepth = 64;  // most arrays and objects inside one another that are read

// What keeps a text from being JSON, and how many bytes were read until that was seen (0 for its depth).
struct JsonFault {
  int64_t position = 0;
  std::string what;
};

// The value of the whole `text`; false and `fault` when it is not valid JSON in UTF-8, holds a number beyond double's
// range or is nested too deep. A whole number within int64_t stays one exactly, any other number becomes a double. Of
// members with one name the last counts.
bool read_json(std::string_view text, Json& value, JsonFault& fault);

enum class JsonStyle { Line, Indented };
enum class InvalidUtf8 { Refuse, Replace };
// Numbers read back exactly; NaN and the infinities become null. Text that is not UTF-8 is an InvalidArgument error, or
// its bad bytes become U+FFFD.
std::string write_json(const Json& value, JsonStyle style, InvalidUtf8 invalid = InvalidUtf8::Refuse);

}  // namespace moonflow
