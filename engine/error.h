// Errors of the engine: one exception type with a stable code, and the facts a user needs to act on it.
// Thrown where the fault is seen; the op, the job and the script's line are filled in by whoever knows them on the way
// out.
#pragma once

#include <exception>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

namespace moonflow {

enum class ErrorCode {
  InvalidArgument,  // a value outside what the call accepts
  ShapeMismatch,
  DtypeMismatch,
  OutOfRange,   // an index, a label or a size outside its bounds
  NotFound,     // no op, variable, feed or file of that name
  Unsupported,  // no kernel for this device or dtype
  Busy,         // too many runs in flight
  Interrupted,
  OutOfMemory,
  Io,
  WrongState,  // the call is right, the moment is not
  Internal,    // a fault of a library below us
};

// The stable spelling of a code, such as "shape_mismatch".
const char* name(ErrorCode code);

// Made with a message of a few letters, as that of OutOfMemory is, it takes no memory.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code(code), message_(std::move(message)) {}

  const char* what() const noexcept override { return message_.c_str(); }

  ErrorCode code;
  std::string op;     // op and node name, such as "matmul 'hidden'"; empty when no op is to blame
  std::string job;    // name of the job function
  std::string where;  // "file:line" of the user's script where the op was built

  // "file:line: op: message", leaving out what is unknown.
  std::string describe() const;

 private:
  std::string message_;
};

// What `write` puts into a C++ stream in the "C" locale.
std::string written(const std::function<void(std::ostream&)>& write);

// The parts written so, one after another.
template <class... Parts>
std::string text(const Parts&... parts) {
  return written([&](std::ostream& out) { (out << ... << parts); });
}

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, text(parts...));
}

// For faults of the user. The parts are put together only when the condition does not hold. Where one of them costs
// something to make, such as the text of a list, an `if` and `fail` spare that too.
template <class... Parts>
void require(bool holds, ErrorCode code, const Parts&... parts) {
  if (!holds) fail(code, parts...);
}

// The std::exception being handled, as an error: OutOfMemory where there is none for it either.
Error current_error() noexcept;

// Runs `work`. What leaves it, of libraries below us and for want of memory too, is an error with the op and the
// script's line to blame, unless it knows better.
template <class Work>
decltype(auto) blaming(const std::string& op, const std::string& where, Work&& work) {
  try {
    return work();
  } catch (const std::exception&) {
    Error error = current_error();
    if (error.op.empty()) error.op = op;
    if (error.where.empty()) error.where = where;
    throw error;
  }
}

// Runs `work`. The message of an error that leaves it begins with the parts, as in "file 'a.npy': ends too soon".
template <class Work, class... Parts>
decltype(auto) prefixing(Work&& work, const Parts&... parts) {
  try {
    return work();
  } catch (const Error& error) {
    fail(error.code, parts..., ": ", error.what());
  }
}

}  // namespace moonflow
