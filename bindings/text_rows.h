// Numbers as lines of text, for np.savetxt: one number by a format such as "%.18e", the rows of an array by many.
#pragma once

#include <string>
#include <string_view>

#include "engine/tensor.h"

namespace moonflow {

// What printf does with one number. The text around "%" is kept, "%%" is one "%".
class NumberFormat {
 public:
  // Flags are "-", "+", " " and "0", then a width and a precision of two digits at most, then one of d i x X e E f F g
  // G.
  explicit NumberFormat(std::string_view format);

  // As with printf, whole numbers lose a fraction.
  void write(double number, std::string& to) const;
  void write(int64_t number, std::string& to) const;

 private:
  std::string before_, after_;
  bool left_ = false, plus_ = false, space_ = false, zero_ = false;
  size_t width_ = 0;
  int precision_ = -1;
  char form_ = 0;

  void write_whole(bool negative, uint64_t size, std::string& to) const;
  void write_floating(double number, std::string& to) const;
  // `sign` stands before zeros that fill the width.
  void put(std::string_view sign, std::string_view digits, bool may_have_zeros, std::string& to) const;
};

// Some rows of an array of rank 2, each in a line.
std::string text_rows(const Tensor& array, int64_t first, int64_t rows, const NumberFormat& format,
                      std::string_view delimiter);

}  // namespace moonflow
