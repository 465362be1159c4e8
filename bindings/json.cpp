// The grammar, numbers and strings are nlohmann's; its values are not used, since destroying an array or an object of
// them allocates: out of memory, that would end the process.
#include "bindings/json.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/error.h"

namespace moonflow {

static_assert(std::is_nothrow_move_constructible_v<Json> && std::is_nothrow_move_assignable_v<Json>);
static_assert(std::is_nothrow_destructible_v<Json>);

namespace {

using Library = nlohmann::json;

// Receives a text piece by piece and builds the value. Each method gives whether to go on.
class Reader {
 public:
  Reader(Json& root, JsonFault& fault) : root_(root), fault_(fault) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(int64_t value) { return put(value); }
  bool number_unsigned(uint64_t value) {
    const bool fits = value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    return fits ? put(value) : put(static_cast<double>(value));
  }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Library::binary_t&) { return false; }  // JSON has none

  bool start_array(size_t) { return open(Json::Array()); }
  bool start_object(size_t) { return open(Json::Object()); }
  bool key(std::string& name) {
    key_ = std::move(name);
    return true;
  }
  bool end_array() { return close(); }
  bool end_object() { return close(); }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    constexpr int kOutOfRange = 406;
    fault_ = {static_cast<int64_t>(position),
              error.id == kOutOfRange ? "not valid JSON: a number is too large" : "not valid JSON"};
    return false;
  }

 private:
  // Puts a value where the text is: the root, the end of an array, or under the last key of an object.
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    if (auto* array = open_.back()->as<Json::Array>()) return array->emplace_back(std::move(value));
    return (*open_.back()->as<Json::Object>())[key_] = std::move(value);
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == kJsonDepth) {
      fault_ = {0, text("nested more than ", kJsonDepth, " deep")};
      return false;
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  JsonFault& fault_;
  std::vector<Json*> open_;  // from the root to where the text is; none of them moves while it is open
  std::string key_;
};

class Writer {
 public:
  Writer(JsonStyle style, InvalidUtf8 invalid)
      : indented_(style == JsonStyle::Indented),
        invalid_(invalid == InvalidUtf8::Replace ? Library::error_handler_t::replace
                                                 : Library::error_handler_t::strict) {}

  void write(const Json& value) {
    if (const auto* array = value.as<Json::Array>()) {
      list('[', *array, ']', [this](const Json& element) { write(element); });
    } else if (const auto* object = value.as<Json::Object>()) {
      list('{', *object, '}', [this](const Json::Object::value_type& member) {
        write_string(member.first);
        text_ += indented_ ? ": " : ":";
        write(member.second);
      });
    } else if (const auto* string = value.as<std::string>()) {
      write_string(*string);
    } else if (const auto* integer = value.as<int64_t>()) {
      text_ += std::to_string(*integer);
    } else if (const auto* real = value.as<double>()) {
      text_ += Library(*real).dump();
    } else if (const auto* flag = value.as<bool>()) {
      text_ += *flag ? "true" : "false";
    } else {
      text_ += "null";
    }
  }

  std::string take() { return std::move(text_); }

 private:
  template <class Items, class WriteItem>
  void list(char begin, const Items& items, char end, const WriteItem& write_item) {
    text_ += begin;
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) text_ += ',';
      first = false;
      new_line();
      write_item(item);
    }
    --depth_;
    if (!first) new_line();
    text_ += end;
  }

  void new_line() {
    if (indented_) text_.append(1, '\n').append(2 * depth_, ' ');
  }

  // Most strings need no escape, and then no detour.
  void write_string(const std::string& string) {
    const bool plain =
        std::all_of(string.begin(), string.end(), [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
    if (plain)
      text_.append(1, '"').append(string).append(1, '"');
    else
      text_ += Library(string).dump(-1, ' ', false, invalid_);
  }

  bool indented_;
  Library::error_handler_t invalid_;
  size_t depth_ = 0;
  std::string text_;
};

}  // namespace

const Json* Json::find(const std::string& key) const {
  const Object* object = as<Object>();
  if (object == nullptr) return nullptr;
  const auto member = object->find(key);
  return member == object->end() ? nullptr : &member->second;
}

bool read_json(std::string_view text, Json& value, JsonFault& fault) {
  Reader reader(value, fault);
  return Library::sax_parse(text.begin(), text.end(), &reader);
}

std::string write_json(const Json& value, JsonStyle style, InvalidUtf8 invalid) {
  Writer writer(style, invalid);
  try {
    writer.write(value);
  } catch (const Library::type_error&) {
    fail(ErrorCode::InvalidArgument, "text that goes into JSON must be UTF-8");
  }
  return writer.take();
}

}  // namespace moonflow
