// Prepared calls of the C ABI: a job's graph compiled once more, for the control loop of a host.
#include <cstdio>
#include <mutex>
#include <optional>

#include "bindings/host_job.h"
#include "bindings/latest.h"
#include "bindings/lua_module.h"
#include "kernels/catalog.h"
#include "kernels/kept_threads.h"

namespace moonflow::host {

namespace {

constexpr int kWarmUpRuns = 16;

struct PreparedHandle {
  static constexpr Kind kKind = Kind::Prepared;
  std::shared_ptr<HostSession> session;
  std::string job;
  std::vector<std::string> inputs, outputs;  // their names
  lua::PreparedBox prepared;
  Latest<std::optional<lua::PlainError>> failure;  // of a run; left by the thread that runs
  std::mutex asking;                               // between threads that ask for it
};

// For the thread that runs; takes no memory for it beyond what was thrown.
mf_code note(PreparedHandle& handle, const lua::PlainError& error) {
  handle.failure.draft() = error;
  handle.failure.leave();
  return code_of(error.code);
}

lua::PlainError plain(ErrorCode code, const char* message) {
  lua::PlainError error;
  error.code = code;
  std::snprintf(error.message, sizeof error.message, "%s", message);
  return error;
}

// Does work on a prepared call that may fail; nothing is thrown.
template <class Work>
mf_code attempt(mf_prepared* handle, const Work& work) {
  const Pinned<PreparedHandle, mf_prepared> pinned(handle);
  if (!pinned) return MF_INVALID_HANDLE;
  try {
    const KeptThreads kept;
    work(*pinned);
    return MF_OK;
  } catch (const Error& error) {
    return note(*pinned, lua::PlainError(error));
  } catch (const Status& status) {
    return note(*pinned, plain(static_cast<ErrorCode>(status.code - code_of(ErrorCode{})), status.message.c_str()));
  } catch (const std::bad_alloc&) {
    return note(*pinned, lua::PlainError());
  } catch (const std::exception& exception) {
    return note(*pinned, plain(ErrorCode::Internal, exception.what()));
  }
}

void prepare(const HostJob& job, lua::PreparedBox& prepared) {
  const std::shared_ptr<HostSession>& session = job.session;
  session->enter([&](lua_State* L) {
    session->push_function(L, "parts");
    job.push(L);
    constexpr int kParts = 4;
    lua_call(L, 1, kParts);
    lua::prepare_parts(L, lua_gettop(L) - kParts + 1, session->memory(), prepared);
  });
}

mf_status* buffer_of(mf_prepared* handle, int32_t index, mf_array* buffer,
                     const std::vector<Tensor>& (PreparedCall::*list)() const, const char* what) {
  return guarded([&] {
    const Checked<PreparedHandle, mf_prepared> pinned(handle, "a prepared call");
    require_out(buffer, "buffer");
    const std::vector<Tensor>& tensors = (*pinned->prepared.call.*list)();
    if (index < 0 || index >= static_cast<int32_t>(tensors.size()))
      refuse(MF_OUT_OF_RANGE, "there are ", tensors.size(), " ", what, "s, none at index ", index);
    *buffer = view_of(tensors[index]);
  });
}

// What the ways to bind inputs and outputs have in common.
mf_code bind(mf_prepared* handle, int32_t index, const mf_array* memory, const char* kind,
             const std::vector<Tensor>& (PreparedCall::*list)() const, std::vector<std::string> PreparedHandle::*names,
             void (PreparedCall::*bind_one)(size_t, void*)) {
  return attempt(handle, [&](PreparedHandle& self) {
    PreparedCall& call = *self.prepared.call;
    const std::vector<Tensor>& tensors = (call.*list)();
    if (index < 0 || index >= static_cast<int32_t>(tensors.size()))
      refuse(MF_OUT_OF_RANGE, self.job, " has ", tensors.size(), " ", kind, "s, there is none at index ", index);
    const auto at = static_cast<size_t>(index);
    if (memory) check_destination(*memory, tensors[at].type(), {self.job.c_str(), kind, (self.*names)[at].c_str()});
    (call.*bind_one)(at, memory ? memory->data : nullptr);
  });
}

}  // namespace

}  // namespace moonflow::host

using namespace moonflow;
using namespace moonflow::host;

extern "C" {

mf_status* mf_job_prepare(mf_job* handle, mf_prepared** prepared) {
  return guarded([&] {
    require_out(prepared, "prepared");
    *prepared = nullptr;
    const EnteredJob job(handle);
    auto owned = std::make_unique<PreparedHandle>();
    owned->session = job->session;
    owned->job = job->name;
    for (const NamedValue& input : job->inputs) owned->inputs.push_back(input.name);
    for (const NamedValue& output : job->outputs) owned->outputs.push_back(output.name);
    prepare(*job, owned->prepared);
    *prepared = make_handle<mf_prepared>(std::move(owned));
  });
}

mf_status* mf_prepared_input(mf_prepared* handle, int32_t index, mf_array* buffer) {
  return buffer_of(handle, index, buffer, &PreparedCall::inputs, "input");
}

mf_status* mf_prepared_output(mf_prepared* handle, int32_t index, mf_array* buffer) {
  return buffer_of(handle, index, buffer, &PreparedCall::outputs, "output");
}

mf_code mf_prepared_bind_input(mf_prepared* handle, int32_t index, const mf_array* memory) {
  return bind(handle, index, memory, "input", &PreparedCall::inputs, &PreparedHandle::inputs,
              &PreparedCall::bind_input);
}

mf_code mf_prepared_bind_output(mf_prepared* handle, int32_t index, const mf_array* memory) {
  return bind(handle, index, memory, "output", &PreparedCall::outputs, &PreparedHandle::outputs,
              &PreparedCall::bind_output);
}

mf_code mf_prepared_run(mf_prepared* handle) {
  return attempt(handle, [](PreparedHandle& self) { self.prepared.call->run(); });
}

mf_status* mf_prepared_failure(mf_prepared* handle) {
  return guarded([&] {
    const Checked<PreparedHandle, mf_prepared> pinned(handle, "a prepared call");
    const std::lock_guard<std::mutex> lock(pinned->asking);
    const std::optional<lua::PlainError>& failure = pinned->failure.read();
    if (!failure) return;
    Error error(failure->code, failure->message);
    error.op = failure->op;
    error.job = failure->job;
    error.where = failure->where;
    throw error;
  });
}

mf_code mf_prepared_warm_up(mf_prepared* handle) {
  mf_code code = MF_OK;
  for (int i = 0; i < kWarmUpRuns && code == MF_OK; ++i) code = mf_prepared_run(handle);
  return code;
}

mf_code mf_prepared_reset(mf_prepared* handle) {
  return attempt(handle, [](PreparedHandle& self) { self.prepared.call->reset(); });
}

mf_code mf_prepared_interrupt(mf_prepared* handle) {
  const Pinned<PreparedHandle, mf_prepared> pinned(handle);
  if (!pinned) return MF_INVALID_HANDLE;
  pinned->prepared.call->interrupt();
  return MF_OK;
}

uint64_t mf_prepared_generation(mf_prepared* handle) {
  const Pinned<PreparedHandle, mf_prepared> pinned(handle);
  return pinned ? pinned->prepared.call->generation() : 0;
}

mf_status* mf_prepared_publish(mf_prepared* handle) {
  return guarded([&] {
    const Checked<PreparedHandle, mf_prepared> pinned(handle, "a prepared call");
    pinned->session->require_owner();
    pinned->prepared.publish();
  });
}

mf_code mf_prepared_close(mf_prepared* handle) {
  return close_handle<PreparedHandle>(handle, true) ? MF_OK : MF_INVALID_HANDLE;
}

}  // extern "C"
