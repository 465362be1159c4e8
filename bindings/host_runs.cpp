#include "bindings/host_runs.h"

#include <algorithm>
#include <chrono>

#include "bindings/host_job.h"

namespace moonflow::host {

void HostRun::finish(mf_status* failure) {
  if (failure) {
    result_(user_, failure, nullptr, 0);
    mf_status_free(failure);
    return;
  }
  for (size_t i = 0; i < values_.size(); ++i)
    arrays_[i] = values_[i] ? view_of(values_[i]) : mf_array_of(MF_FLOAT32, nullptr, 0);
  result_(user_, nullptr, arrays_.data(), static_cast<int32_t>(arrays_.size()));
}

HostRun* HostRuns::find(RunId id) {
  const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const HostRun& run) { return run.id == id; });
  return found == runs_.end() ? nullptr : &*found;
}

HostRun HostRuns::remove(HostRun* run) {
  HostRun removed = std::move(*run);
  runs_.erase(runs_.begin() + (run - runs_.data()));
  return removed;
}

namespace {

// The status of the error table at an index.
Status status_at(lua_State* L, int index) {
  if (!lua_istable(L, index)) return Status(MF_INTERNAL, "the run failed");
  lua_pushvalue(L, index);
  Error error(ErrorCode::Internal, text_at(L, "message"));
  error.where = text_at(L, "where");
  error.job = text_at(L, "job");
  error.op = text_at(L, "op");
  Status status(error);
  status.code = code_named(text_at(L, "code"));
  lua_pop(L, 1);
  return status;
}

int receive(lua_State* L) {
  HostSession* const session = HostSession::held(L, lua_upvalueindex(2));
  HostRun* const run = session ? session->runs.find(static_cast<RunId>(lua_tonumber(L, 1))) : nullptr;
  if (run == nullptr) return 0;
  if (const auto i = static_cast<size_t>(lua_tointeger(L, 2))) {
    if (const Tensor* value = lua::find_box<Tensor>(L, 3)) run->take(i - 1, *value);
    return 0;
  }
  mf_status* const failure = lua_isnoneornil(L, 3) ? nullptr : status_from([&] { return status_at(L, 3); });
  session->runs.remove(run).finish(failure);
  return 0;
}

}  // namespace

void push_receive(lua_State* L, const HostSession& session) {
  lua_pushvalue(L, lua_upvalueindex(1));
  session.push_self(L);
  lua_pushcclosure(L, receive, 2);
}

}  // namespace moonflow::host

// ---- the functions -----------------------------------------------------------------------------------------------

using namespace moonflow::host;

extern "C" {

mf_status* mf_session_poll(mf_session* handle, double budget_ms, int32_t* delivered) {
  if (delivered) *delivered = 0;
  {
    const Pinned<SessionHandle, mf_session> pinned(handle);
    if (pinned && pinned->session->is_owner() && pinned->session->depth() == 0 && !pinned->session->closed() &&
        pinned->session->idle())
      return nullptr;
  }
  return guarded([&] {
    const Entered session(handle);
    using Clock = std::chrono::steady_clock;
    const auto begin = budget_ms > 0 ? Clock::now() : Clock::time_point();
    double left_ms = budget_ms;
    int32_t count = 0;
    while (session->depth() == 0 && session->deliver()) {
      if (delivered) *delivered = ++count;
      if (budget_ms > 0) left_ms = budget_ms - std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      if (budget_ms >= 0 && left_ms <= 0) return;
      if (session->closed() || session->idle()) return;
    }
    session->enter([&](lua_State* L) {
      session->push_function(L, "poll");
      if (budget_ms >= 0) lua_pushnumber(L, left_ms);
      lua_call(L, budget_ms >= 0 ? 1 : 0, 1);
      if (delivered) *delivered += static_cast<int32_t>(lua_tointeger(L, -1));
    });
  });
}

mf_status* mf_session_sync(mf_session* handle) { return mf_session_sync_for(handle, -1, nullptr); }

mf_status* mf_session_sync_for(mf_session* handle, double max_ms, int32_t* done) {
  if (done) *done = 0;
  return guarded([&] {
    const Entered session(handle);
    session->enter([&](lua_State* L) {
      session->push_function(L, "sync");
      const bool is_endless = max_ms < 0;
      if (!is_endless) lua_pushnumber(L, max_ms);
      lua_call(L, is_endless ? 0 : 1, 1);
      if (done) *done = lua_toboolean(L, -1);
    });
  });
}

mf_status* mf_session_in_flight(mf_session* handle, int32_t* count) {
  return guarded([&] {
    require_out(count, "count");
    const Entered session(handle);
    session->enter([&](lua_State* L) {
      session->push_function(L, "in_flight");
      lua_call(L, 0, 1);
      *count = static_cast<int32_t>(lua_tointeger(L, -1));
    });
  });
}

mf_status* mf_session_descriptor(mf_session* handle, int32_t* descriptor) {
  return guarded([&] {
    require_out(descriptor, "descriptor");
    const Entered session(handle);
    session->enter([&](lua_State* L) {
      session->push_function(L, "fd");
      lua_call(L, 0, 1);
      *descriptor = static_cast<int32_t>(lua_tointeger(L, -1));
    });
  });
}

}  // extern "C"
