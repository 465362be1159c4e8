// What went wrong, as the C ABI tells it: thrown inside the library, handed out as an mf_status at its edge.
#pragma once

#include <pthread.h>

#include <memory>
#include <string>
#include <type_traits>

#include "bindings/handle.h"
#include "bindings/moonflow.h"
#include "engine/error.h"

namespace moonflow::host {

struct Status {
  static constexpr Kind kKind = Kind::Status;

  mf_code code = MF_INTERNAL;
  std::string message;  // the whole story: "file:line: job: op: message"
  std::string where, job, op, traceback;
  mf_status* cause = nullptr;  // a handle of its own, closed with this

  Status() = default;
  Status(mf_code code, std::string message) : code(code), message(std::move(message)) {}
  explicit Status(const Error& error);
  Status(Status&& other) noexcept;
  ~Status();
};

// Without its causes.
Status copy_of(const mf_status* status);
mf_code code_of(ErrorCode code);
// The code of that name ("shape_mismatch"); MF_SCRIPT_ERROR for a name that is none.
mf_code code_named(const std::string& name);

template <class... Parts>
[[noreturn]] void refuse(mf_code code, const Parts&... parts) {
  throw Status(code, text(parts...));
}

// A handle for it. When there is no memory even for that: the one status that always exists, "out of memory".
mf_status* make_status(Status status) noexcept;
mf_status* out_of_memory() noexcept;
// A handle for the status that `make()` gives, which may run out of memory.
template <class Make>
mf_status* status_from(Make&& make) noexcept {
  try {
    return make_status(make());
  } catch (...) {
    return out_of_memory();
  }
}
// The exception being handled, as a status.
mf_status* current_status() noexcept;

// The calling thread is not cancelled (pthread_cancel) as long as this lives: it would be unwound through what catches
// everything, which ends the process.
class Uncancelled {
 public:
  Uncancelled() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;

 private:
  int before_;
};

// Calls `body(object)`, the body of an ABI function. Whatever it throws becomes its status; the host's own loops keep
// their threads.
mf_status* guarded(void (*body)(void*), void* object) noexcept;
template <class Body>
mf_status* guarded(Body&& body) noexcept {
  return guarded([](void* object) { (*static_cast<std::remove_reference_t<Body>*>(object))(); }, &body);
}

// What a handle stands for; not being open is the status of the call.
template <class T, class Handle>
class Checked : public Pinned<T, Handle> {
 public:
  Checked(const Handle* handle, const char* what) : Pinned<T, Handle>(handle) {
    if (!*this) refuse(MF_INVALID_HANDLE, handle ? "this is no open handle of " : "NULL is no handle of ", what);
  }
};

template <class Pointer>
void require_out(Pointer* pointer, const char* name) {
  if (pointer == nullptr) refuse(MF_INVALID_ARGUMENT, name, " is NULL, and the result has no place to go");
}

// A struct that a caller has made. `what()` puts it into words, where there is something to say of it.
template <class Struct, class What>
void require_size(const Struct& given, const What& what) {
  if (given.struct_size < sizeof(Struct) || given.struct_size > 4096)
    refuse(MF_INVALID_ARGUMENT, "struct_size of ", what(), " is ", given.struct_size, ", wanted ", sizeof(Struct));
}

}  // namespace moonflow::host
