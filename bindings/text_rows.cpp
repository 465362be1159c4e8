#include "bindings/text_rows.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace moonflow {

namespace {

// Up to two digits.
int number_at(std::string_view format, size_t& at) {
  int number = 0;
  for (int i = 0; i < 2 && at < format.size() && std::isdigit(static_cast<unsigned char>(format[at])); ++i)
    number = 10 * number + (format[at++] - '0');
  return number;
}

}  // namespace

NumberFormat::NumberFormat(std::string_view format) {
  const auto refuse = [&] {
    fail(ErrorCode::InvalidArgument, "fmt writes one number, as \"%.6g\" does, got '", format, "'");
  };
  for (size_t at = 0; at < format.size(); ++at) {
    std::string& around = form_ == 0 ? before_ : after_;
    if (format[at] != '%') {
      around += format[at];
    } else if (format.substr(at, 2) == "%%") {
      around += format[at++];
    } else {
      if (form_ != 0) refuse();
      ++at;
      for (bool more = true; more && at < format.size(); at += more ? 1 : 0) {
        const char flag = format[at];
        more = flag == '-' || flag == '+' || flag == ' ' || flag == '0';
        left_ = left_ || flag == '-';
        plus_ = plus_ || flag == '+';
        space_ = space_ || flag == ' ';
        zero_ = zero_ || flag == '0';
      }
      width_ = static_cast<size_t>(number_at(format, at));
      if (at < format.size() && format[at] == '.') precision_ = number_at(format, ++at);
      if (at == format.size() || std::string_view("dixXeEfFgG").find(format[at]) == std::string_view::npos) refuse();
      form_ = format[at];
    }
  }
  if (form_ == 0) refuse();
}

void NumberFormat::put(std::string_view sign, std::string_view digits, bool may_have_zeros, std::string& to) const {
  const size_t size = sign.size() + digits.size(), missing = width_ > size ? width_ - size : 0;
  const bool zeros = zero_ && !left_ && may_have_zeros;
  if (!left_ && !zeros) to.append(missing, ' ');
  to += sign;
  if (zeros) to.append(missing, '0');
  to += digits;
  if (left_) to.append(missing, ' ');
}

void NumberFormat::write_whole(bool negative, uint64_t size, std::string& to) const {
  const bool is_hex = form_ == 'x' || form_ == 'X';
  if (is_hex && negative) size = ~size + 1;  // the bits of the negative number
  char buffer[32];
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, size, is_hex ? 16 : 10).ptr);
  if (form_ == 'X') std::transform(digits.begin(), digits.end(), digits.begin(), ::toupper);
  if (precision_ == 0 && size == 0) digits.clear();
  if (precision_ > static_cast<int>(digits.size())) digits.insert(0, precision_ - digits.size(), '0');
  const char* sign = is_hex ? "" : negative ? "-" : plus_ ? "+" : space_ ? " " : "";
  put(sign, digits, precision_ < 0, to);
}

void NumberFormat::write_floating(double number, std::string& to) const {
  const bool is_nan = std::isnan(number);
  const char* sign = !is_nan && std::signbit(number) ? "-" : plus_ ? "+" : space_ ? " " : "";
  const bool is_upper = form_ < 'a';
  if (!std::isfinite(number))
    return put(sign, is_nan ? (is_upper ? "NAN" : "nan") : is_upper ? "INF" : "inf", false, to);
  const char kind = is_upper ? static_cast<char>(form_ + ('a' - 'A')) : form_;
  const auto form = kind == 'e'   ? std::chars_format::scientific
                    : kind == 'f' ? std::chars_format::fixed
                                  : std::chars_format::general;
  char digits[512];  // 309 before the point, 99 behind it
  char* const end =
      std::to_chars(digits, digits + sizeof digits, std::abs(number), form, precision_ < 0 ? 6 : precision_).ptr;
  if (is_upper) std::replace(digits, end, 'e', 'E');
  put(sign, std::string_view(digits, static_cast<size_t>(end - digits)), true, to);
}

void NumberFormat::write(double number, std::string& to) const {
  to += before_;
  if (form_ == 'd' || form_ == 'i' || form_ == 'x' || form_ == 'X') {
    constexpr double kLimit = 9223372036854775808.0;
    require(number > -kLimit && number < kLimit, ErrorCode::OutOfRange,
            "fmt writes whole numbers of 64 bits, and one is ", number);
    write_whole(number <= -1, static_cast<uint64_t>(std::abs(number)), to);
  } else {
    write_floating(number, to);
  }
  to += after_;
}

void NumberFormat::write(int64_t number, std::string& to) const {
  if (form_ != 'd' && form_ != 'i' && form_ != 'x' && form_ != 'X') return write(static_cast<double>(number), to);
  to += before_;
  write_whole(number < 0, number < 0 ? ~static_cast<uint64_t>(number) + 1 : static_cast<uint64_t>(number), to);
  to += after_;
}

std::string text_rows(const Tensor& array, int64_t first, int64_t rows, const NumberFormat& format,
                      std::string_view delimiter) {
  const int64_t columns = array.shape()[1];
  std::string text;
  visit_stored(array.dtype(), [&](auto like) {
    using T = decltype(like);
    using Number = std::conditional_t<kFloating<T>, double, int64_t>;
    const T* element = array.data<T>() + first * columns;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        if (column > 0) text += delimiter;
        format.write(static_cast<Number>(*element++), text);
      }
      text += '\n';
    }
  });
  return text;
}

}  // namespace moonflow
