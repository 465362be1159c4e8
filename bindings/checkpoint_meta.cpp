#include "bindings/checkpoint_meta.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/error.h"

namespace moonflow {

namespace {

class MetaReader {
 public:
  MetaReader(std::string_view text, const std::string& where) : rest_(text), where_(where) {}

  TensorType read() {
    TensorType type;
    bool has_dtype = false;
    while (!(next_ = token()).empty()) {
      if (next_ == "shape") {
        take_shape(type.shape);
      } else if (next_ == "data_type") {
        expect(":");
        type.dtype = dtype_called(token());
        has_dtype = true;
      } else {
        fail_here();
      }
    }
    require(has_dtype, ErrorCode::Io, where_, ": no data_type");
    return type;
  }

 private:
  // A word, a number or a sign; empty at the end.
  std::string_view token() {
    const size_t start = rest_.find_first_not_of(" \t\r\n,;");
    if (start == std::string_view::npos) return {};
    rest_.remove_prefix(start);
    constexpr std::string_view kSigns = ":{}[]";
    size_t length = 1;
    if (kSigns.find(rest_[0]) == std::string_view::npos)
      length = std::min(rest_.find_first_of(" \t\r\n,;:{}[]"), rest_.size());
    const std::string_view found = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return found;
  }

  void expect(std::string_view sign) {
    next_ = token();
    if (next_ != sign) fail_here();
  }

  void take_shape(Shape& shape) {
    next_ = token();
    if (next_ == ":") next_ = token();
    if (next_ != "{") fail_here();
    while ((next_ = token()) == "dim") {
      expect(":");
      next_ = token();
      const bool is_list = next_ == "[";
      if (is_list) next_ = token();
      do {
        shape.push_back(size());
      } while (is_list && (next_ = token()) != "]");
    }
    if (next_ != "}") fail_here();
  }

  int64_t size() const {
    int64_t value = 0;
    const auto [end, fault] = std::from_chars(next_.data(), next_.data() + next_.size(), value);
    if (fault != std::errc() || end != next_.data() + next_.size() || value < 0) fail_here();
    return value;
  }

  DType dtype_called(std::string_view name) const {
    constexpr std::pair<std::string_view, DType> kNames[] = {
        {"kFloat", DType::Float32}, {"kDouble", DType::Float64},    {"kInt8", DType::Int8},
        {"kUInt8", DType::UInt8},   {"kInt32", DType::Int32},       {"kInt64", DType::Int64},
        {"kChar", DType::Int8},     {"kBFloat16", DType::BFloat16}, {"kFloat16", DType::Float16}};
    for (const auto& [known, dtype] : kNames)
      if (name == known) return dtype;
    fail(ErrorCode::Unsupported, where_, ": data_type ", name, " is not known here");
  }

  [[noreturn]] void fail_here() const {
    fail(ErrorCode::Io, where_, ": not a shape and a data_type, at '", next_.substr(0, 40), "'");
  }

  std::string_view rest_, next_;
  const std::string& where_;
};

}  // namespace

TensorType type_in_meta(std::string_view text, const std::string& where) { return MetaReader(text, where).read(); }

}  // namespace moonflow
