#include "engine/error.h"

#include <cmath>
#include <locale>
#include <new>
#include <sstream>
#include <stdexcept>

namespace moonflow {

namespace {

// Numbers as the "C" locale has them, but that a NaN has no sign: 0 / 0 has one on some processors and none on others.
class Numbers : public std::num_put<char> {
  iter_type do_put(iter_type out, std::ios_base& stream, char fill, double number) const override {
    return std::num_put<char>::do_put(out, stream, fill, std::isnan(number) ? std::abs(number) : number);
  }
};

}  // namespace

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return "invalid_argument";
    case ErrorCode::ShapeMismatch:
      return "shape_mismatch";
    case ErrorCode::DtypeMismatch:
      return "dtype_mismatch";
    case ErrorCode::OutOfRange:
      return "out_of_range";
    case ErrorCode::NotFound:
      return "not_found";
    case ErrorCode::Unsupported:
      return "unsupported";
    case ErrorCode::Busy:
      return "busy";
    case ErrorCode::Interrupted:
      return "interrupted";
    case ErrorCode::OutOfMemory:
      return "out_of_memory";
    case ErrorCode::Io:
      return "io";
    case ErrorCode::WrongState:
      return "wrong_state";
    case ErrorCode::Internal:
      return "internal";
  }
  return "unknown";
}

std::string Error::describe() const {
  std::string line;
  for (const std::string& part : {where, job, op})
    if (!part.empty()) line += part + ": ";
  return line + what();
}

std::string written(const std::function<void(std::ostream&)>& write) {
  std::ostringstream out;
  out.exceptions(std::ios::badbit);  // it would keep to itself that memory has run out, and give half of a text
  static const auto* const numbers = new std::locale(std::locale::classic(), new Numbers);  // some ask when all ends
  out.imbue(*numbers);
  write(out);
  return out.str();
}

Error current_error() noexcept {
  try {
    try {
      throw;
    } catch (const Error& error) {
      return error;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::length_error&) {  // a container was to hold more than there ever is memory for
      throw std::bad_alloc();
    } catch (const std::exception& error) {
      return Error(ErrorCode::Internal, error.what());
    }
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::OutOfMemory, "out of memory");
  }
}

}  // namespace moonflow
