// NumPy's array printing (its array2string): all elements shown share one format, chosen from the ones that are shown.
// Numbers have the fewest digits that tell them from their neighbours of the same dtype, at most `precision` after the
// point; columns align; an array of more than `threshold` elements shows only its edges.
#include "bindings/format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

namespace moonflow {

namespace {

// A decimal number: digits before and after the point; an exponent only in scientific form.
struct Decimal {
  std::string whole;
  std::string fraction;
  std::string exponent;  // "+05"
};

template <class T>
std::string chars(T x, std::chars_format form) {
  char buffer[512];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, x, form).ptr);
}

template <class T>
std::string chars(T x, std::chars_format form, int precision) {
  char buffer[512];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, x, form, precision).ptr);
}

// Of what is narrow with as few digits as give it back.
template <class Half>
std::string narrow_chars(Half x, std::chars_format form) {
  for (int precision = 0;; ++precision) {
    std::string digits = chars(static_cast<float>(x), form, precision);
    float back = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), back);
    if (Half(back).bits == x.bits || precision == 8) return digits;
  }
}
std::string chars(BFloat16 x, std::chars_format form) { return narrow_chars(x, form); }
std::string chars(Float16 x, std::chars_format form) { return narrow_chars(x, form); }

Decimal split(const std::string& number) {
  Decimal parts;
  const size_t exponent = std::min(number.find('e'), number.size());
  const size_t point = std::min(number.find('.'), exponent);
  parts.whole = number.substr(0, point);
  if (point < exponent) parts.fraction = number.substr(point + 1, exponent - point - 1);
  if (exponent < number.size()) parts.exponent = number.substr(exponent + 1);
  return parts;
}

void trim_zeros(std::string& fraction) { fraction.erase(fraction.find_last_not_of('0') + 1); }

template <class T>
Decimal scientific(T x, int precision) {
  Decimal parts = split(chars(x, std::chars_format::scientific));
  if (static_cast<int>(parts.fraction.size()) > precision)
    parts = split(chars(x, std::chars_format::scientific, precision));
  trim_zeros(parts.fraction);
  return parts;
}

// The shortest digits, moved to their places. Where they end before the point, the digits up to it are exact, or zeros
// when `padded`.
template <class T>
Decimal positional(T x, int precision, bool padded = false) {
  const Decimal shortest = split(chars(x, std::chars_format::scientific));
  const bool negative = shortest.whole[0] == '-';
  const std::string digits = shortest.whole.substr(negative) + shortest.fraction;
  int exponent = 0;
  const char* first = shortest.exponent.c_str() + (shortest.exponent[0] == '+');
  std::from_chars(first, shortest.exponent.c_str() + shortest.exponent.size(), exponent);
  Decimal parts;
  const int before = exponent + 1;  // digits before the point
  if (before <= 0) {
    parts.whole = "0";
    parts.fraction = std::string(static_cast<size_t>(-before), '0') + digits;
  } else {
    const int missing = before - static_cast<int>(digits.size());
    if (missing > 0 && !padded) return split(chars(x, std::chars_format::fixed, 0));
    parts.whole = digits.substr(0, before) + std::string(static_cast<size_t>(std::max(0, missing)), '0');
    if (static_cast<int>(digits.size()) > before) parts.fraction = digits.substr(before);
  }
  if (negative) parts.whole.insert(0, 1, '-');
  if (static_cast<int>(parts.fraction.size()) > precision) parts = split(chars(x, std::chars_format::fixed, precision));
  trim_zeros(parts.fraction);
  return parts;
}

// The common format of the floating elements that are shown.
class FloatFormat {
 public:
  template <class T>
  FloatFormat(const std::vector<T>& shown, const FormatOptions& options) : precision_(options.precision) {
    using Number = std::conditional_t<std::is_floating_point_v<T>, T, float>;
    Number largest = 0, smallest = std::numeric_limits<Number>::infinity();
    bool any = false, all_finite = true, negative_infinity = false;
    for (const T x : shown) {
      all_finite = all_finite && std::isfinite(x);
      negative_infinity = negative_infinity || (std::isinf(x) && x < 0);
      if (!std::isfinite(x)) continue;
      any = true;
      if (x == 0) continue;
      largest = std::max(largest, std::abs(Number{x}));
      smallest = std::min(smallest, std::abs(Number{x}));
    }
    if (largest > 0)
      scientific_ = largest >= Number(1e8) ||
                    (!options.suppress && (smallest < Number(0.0001) || largest / smallest > Number(1000)));
    size_t whole = 0, fraction = 0;
    if (any)
      for (const T x : shown) {
        if (!std::isfinite(x)) continue;
        const Decimal parts = scientific_ ? scientific(x, precision_) : positional(x, precision_);
        whole = std::max(whole, parts.whole.size());
        fraction = std::max(fraction, parts.fraction.size());
        exponent_ = std::max(exponent_, parts.exponent.size());
      }
    left_ = whole;
    fraction_ = fraction;
    right_ = scientific_ ? fraction + 1 + exponent_ : fraction;
    if (!all_finite) {
      const size_t widest = negative_infinity ? 4 : 3;
      if (widest > right_ + 1) left_ = std::max(left_, widest - (right_ + 1));
    }
  }

  template <class T>
  std::string operator()(T x) const {
    std::string word;
    if (!std::isfinite(x)) {
      word = std::isnan(x) ? "nan" : x < 0 ? "-inf" : "inf";
      const size_t width = left_ + right_ + 1;
      return std::string(width > word.size() ? width - word.size() : 0, ' ') + word;
    }
    Decimal parts = scientific_ ? scientific(x, precision_) : positional(x, precision_);
    // Columns are filled with exact digits, not with zeros: the shortest ones are only a lower bound.
    if (scientific_ && parts.fraction.size() < fraction_)
      parts = split(chars(x, std::chars_format::scientific, static_cast<int>(fraction_)));
    const size_t pad = left_ > parts.whole.size() ? left_ - parts.whole.size() : 0;
    word = std::string(pad, ' ') + parts.whole + "." + parts.fraction;
    if (scientific_) {
      std::string digits = parts.exponent.substr(1);
      digits.insert(0, exponent_ - 1 - digits.size(), '0');
      return word + "e" + parts.exponent[0] + digits;
    }
    return word + std::string(fraction_ - parts.fraction.size(), ' ');
  }

 private:
  int precision_;
  bool scientific_ = false;
  size_t left_ = 0;      // columns before the point
  size_t right_ = 0;     // columns after it
  size_t fraction_ = 0;  // digits after it
  size_t exponent_ = 0;  // sign and digits
};

class IntFormat {
 public:
  template <class T>
  IntFormat(const std::vector<T>& shown, const FormatOptions&) {
    for (const T x : shown) width_ = std::max(width_, std::to_string(x).size());
  }
  template <class T>
  std::string operator()(T x) const {
    const std::string digits = std::to_string(x);
    return std::string(width_ > digits.size() ? width_ - digits.size() : 0, ' ') + digits;
  }

 private:
  size_t width_ = 0;
};

// Lays out brackets, lines and the "..." of summaries.
template <class T, class Format>
class Layouter {
 public:
  Layouter(const Tensor& array, const FormatOptions& options, bool summarise, const Format& word)
      : array_(array), options_(options), summarise_(summarise), word_(word) {}

  std::string block(int axis, int64_t offset, const std::string& indent, int64_t width) const {
    const Shape& shape = array_.shape();
    const int64_t size = shape[axis];
    const bool cut = summarise_ && size > 2 * options_.edge_items;
    std::string lines, line = indent;
    const std::string inner = indent + ' ';
    const auto each = [&](auto&& element) {
      for (int64_t i = 0; i < size; ++i) {
        if (cut && i == options_.edge_items) {
          element(std::string("..."), false);
          i = size - options_.edge_items;
        }
        if (axis + 1 == shape.rank())
          element(word_(array_.data<T>()[offset + i]), i + 1 == size);
        else
          element(block(axis + 1, (offset + i) * shape[axis + 1], inner, width - 1), i + 1 == size);
      }
    };
    if (axis + 1 == shape.rank()) {
      each([&](const std::string& word, bool last) {
        // A line that holds nothing yet is not broken: the word would not fit on the next one either.
        if (static_cast<int64_t>(line.size() + word.size()) > width - 1 && line.size() > indent.size()) {
          lines += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
          line = indent;
        }
        line += word;
        if (!last) line += ' ';
      });
      lines += line;
    } else {
      const std::string separator(static_cast<size_t>(shape.rank() - axis - 1), '\n');
      each([&](const std::string& nested, bool last) { lines += indent + nested + (last ? "" : separator); });
    }
    return "[" + lines.substr(indent.size()) + "]";
  }

 private:
  const Tensor& array_;
  const FormatOptions& options_;
  bool summarise_;
  const Format& word_;
};

// The elements that a summary shows, or all of them.
template <class T>
void collect_shown(const Tensor& array, int axis, int64_t offset, int64_t edge_items, bool summarise,
                   std::vector<T>& shown) {
  const Shape& shape = array.shape();
  if (axis == shape.rank()) {
    shown.push_back(array.data<T>()[offset]);
    return;
  }
  for (int64_t i = 0; i < shape[axis]; ++i) {
    if (summarise && shape[axis] > 2 * edge_items && i == edge_items) i = shape[axis] - edge_items;
    collect_shown(array, axis + 1, offset * shape[axis] + i, edge_items, summarise, shown);
  }
}

// A single number as Python prints it: "0.5", "3.0", "1e-05", "7".
template <class T>
std::string scalar(T x) {
  if constexpr (!kFloating<T>) {
    return std::to_string(x);
  } else {
    if (!std::isfinite(x)) return std::isnan(x) ? "nan" : x < 0 ? "-inf" : "inf";
    const auto size = std::abs(+x);
    using Number = std::decay_t<decltype(size)>;
    if (x == 0 || (size >= Number(1e-4) && size < Number(1e16))) {
      const Decimal parts = positional(x, 400, true);
      return parts.whole + "." + (parts.fraction.empty() ? "0" : parts.fraction);
    }
    const Decimal parts = scientific(x, 400);
    return parts.whole + (parts.fraction.empty() ? "" : "." + parts.fraction) + "e" + parts.exponent;
  }
}

template <class T>
std::string format_of(const Tensor& array, const FormatOptions& options) {
  if (array.shape().rank() == 0) return scalar(*array.data<T>());
  if (array.count() == 0) return "[]";
  const bool summarise = array.count() > options.threshold;
  std::vector<T> shown;
  collect_shown(array, 0, 0, options.edge_items, summarise, shown);
  using Format = std::conditional_t<kFloating<T>, FloatFormat, IntFormat>;
  const Format word(shown, options);
  return Layouter<T, Format>(array, options, summarise, word).block(0, 0, " ", options.line_width);
}

}  // namespace

std::string format(const Tensor& array, const FormatOptions& options) {
  return visit_stored(array.dtype(), [&](auto like) { return format_of<decltype(like)>(array, options); });
}

}  // namespace moonflow
