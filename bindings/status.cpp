#include "bindings/status.h"

#include <new>
#include <utility>

#include "engine/default_floats.h"
#include "kernels/kept_threads.h"

namespace moonflow::host {

namespace {

// The engine's codes and those of the ABI stand in the same order, one apart.
static_assert(static_cast<int>(ErrorCode::InvalidArgument) + 1 == MF_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::Interrupted) + 1 == MF_INTERRUPTED);
static_assert(static_cast<int>(ErrorCode::Internal) + 1 == MF_INTERNAL);

// No handle of a slot: its generation would be even.
mf_status* const kOutOfMemory = reinterpret_cast<mf_status*>(uintptr_t{0xFFFFFFFF});

}  // namespace

mf_code code_of(ErrorCode code) { return static_cast<mf_code>(code) + 1; }

mf_code code_named(const std::string& name) {
  for (mf_code code = MF_OK + 1; code <= MF_TIMED_OUT; ++code)
    if (name == mf_code_name(code)) return code;
  return MF_SCRIPT_ERROR;
}

Status::Status(const Error& error)
    : code(code_of(error.code)), message(error.describe()), where(error.where), job(error.job), op(error.op) {}

Status::Status(Status&& other) noexcept
    : code(other.code),
      message(std::move(other.message)),
      where(std::move(other.where)),
      job(std::move(other.job)),
      op(std::move(other.op)),
      traceback(std::move(other.traceback)),
      cause(other.cause) {
  other.cause = nullptr;
}

Status copy_of(const mf_status* status) {
  Status copy(mf_status_code(status), mf_status_message(status));
  copy.where = mf_status_where(status);
  copy.job = mf_status_job(status);
  copy.op = mf_status_op(status);
  copy.traceback = mf_status_traceback(status);
  return copy;
}

// One cause after the other: a list of thousands would not fit on the stack.
Status::~Status() {
  for (mf_status* next = cause; next != nullptr;) {
    mf_status* after = nullptr;
    if (const Pinned<Status, mf_status> status(next); status) after = std::exchange(status->cause, nullptr);
    mf_status_free(next);
    next = after;
  }
}

mf_status* out_of_memory() noexcept { return kOutOfMemory; }

mf_status* make_status(Status status) noexcept {
  try {
    return make_handle<mf_status>(std::make_unique<Status>(std::move(status)));
  } catch (const std::bad_alloc&) {
    return kOutOfMemory;
  }
}

mf_status* current_status() noexcept {
  try {
    try {
      throw;
    } catch (Status& status) {
      return make_status(std::move(status));
    } catch (const std::exception&) {
      return make_status(Status(current_error()));
    } catch (...) {
      return make_status(Status(MF_INTERNAL, "something that is no std::exception was thrown"));
    }
  } catch (...) {
    return kOutOfMemory;  // describing it took more memory than there is
  }
}

mf_status* guarded(void (*body)(void*), void* object) noexcept {
  const Uncancelled uncancelled;
  const DefaultFloats floats;  // Lua divides by zero where it means infinity
  const KeptThreads kept;
  try {
    body(object);
    return nullptr;
  } catch (...) {
    return current_status();
  }
}

}  // namespace moonflow::host

using namespace moonflow::host;

namespace {

// A field of a status. The text lives as long as the handle, which the caller holds.
const char* field_of(const mf_status* handle, std::string Status::*field, const char* otherwise) {
  const Pinned<Status, mf_status> status(handle);
  return status ? ((*status).*field).c_str() : otherwise;
}

}  // namespace

extern "C" {

mf_code mf_status_code(const mf_status* handle) {
  if (handle == nullptr) return MF_OK;
  if (handle == kOutOfMemory) return MF_OUT_OF_MEMORY;
  const Pinned<Status, mf_status> status(handle);
  return status ? status->code : MF_INVALID_HANDLE;
}

const char* mf_status_message(const mf_status* handle) {
  if (handle == nullptr) return "ok";
  if (handle == kOutOfMemory) return "out of memory";
  return field_of(handle, &Status::message, "this is no status, or it has been freed");
}

const char* mf_status_where(const mf_status* handle) { return field_of(handle, &Status::where, ""); }
const char* mf_status_job(const mf_status* handle) { return field_of(handle, &Status::job, ""); }
const char* mf_status_op(const mf_status* handle) { return field_of(handle, &Status::op, ""); }
const char* mf_status_traceback(const mf_status* handle) { return field_of(handle, &Status::traceback, ""); }

const mf_status* mf_status_cause(const mf_status* handle) {
  const Pinned<Status, mf_status> status(handle);
  return status ? status->cause : nullptr;
}

mf_code mf_status_free(mf_status* handle) {
  if (handle == nullptr || handle == kOutOfMemory) return MF_OK;
  return close_handle<Status>(handle) ? MF_OK : MF_INVALID_HANDLE;
}

const char* mf_code_name(mf_code code) {
  switch (code) {
    case MF_OK:
      return "ok";
    case MF_SCRIPT_ERROR:
      return "script_error";
    case MF_INVALID_HANDLE:
      return "invalid_handle";
    case MF_WRONG_THREAD:
      return "wrong_thread";
    case MF_TIMED_OUT:
      return "timed_out";
    default:
      return code > MF_OK && code <= MF_INTERNAL ? moonflow::name(static_cast<moonflow::ErrorCode>(code - 1))
                                                 : "unknown";
  }
}

}  // extern "C"
