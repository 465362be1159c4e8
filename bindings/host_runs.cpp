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

HostRun* HostRuns::find_number(mf_run number) {
  const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const HostRun& run) { return run.number == number; });
  return found == runs_.end() ? nullptr : &*found;
}

HostRun HostRuns::remove(HostRun* run) {
  HostRun removed = std::move(*run);
  runs_.erase(runs_.begin() + (run - runs_.data()));
  return removed;
}

// ---- waiting -----------------------------------------------------------------------------------------------------

Deadline::Deadline(double max_ms)
    : has_end_(!(max_ms < 0 || max_ms > 1e9)),  // the clock's numbers end somewhere beyond
      end_(std::chrono::steady_clock::now()) {
  if (has_end_ && max_ms > 0)  // what is no number is no time
    end_ += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double, std::milli>(max_ms));
}

double Deadline::left_ms() const {
  constexpr double kLong = 1e9;
  if (!has_end_) return kLong;
  return std::chrono::duration<double, std::milli>(end_ - std::chrono::steady_clock::now()).count();
}

bool deliver_next(HostSession& session, const Deadline& deadline) {
  constexpr double kLookMs = 50;  // prompts that others attach to are served so often
  for (;;) {
    if (session.depth() == 0 && session.deliver()) return true;
    int64_t delivered = 0;
    session.enter([&](lua_State* L) {
      session.push_function(L, "poll");  // which refuses where nothing may be delivered
      lua_pushnumber(L, 0);
      lua_call(L, 1, 1);
      delivered = lua_tointeger(L, -1);
    });
    if (delivered > 0) return true;
    if (deadline.is_over()) return false;
    session.engine().completions().wait(std::min(kLookMs, deadline.left_ms()));
  }
}

bool deliver_run(HostSession& session, mf_run run, const Deadline& deadline) {
  const auto is_under_way = [&] { return session.runs.find_number(run) != nullptr; };
  while (is_under_way()) {
    deliver_next(session, deadline);
    if (is_under_way() && deadline.is_over()) return false;
  }
  return true;
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

mf_status* mf_run_wait(mf_session* handle, mf_run run, double max_ms, int32_t* done) {
  if (done) *done = 0;
  return guarded([&] {
    const Entered session(handle);
    if (!session->runs.has_had(run)) refuse(MF_NOT_FOUND, "the session has launched no run ", run);
    const bool is_done = deliver_run(*session, run, Deadline(max_ms));
    if (done) *done = is_done;
  });
}

mf_status* mf_run_cancel(mf_session* handle, mf_run number) {
  return guarded([&] {
    const Entered session(handle);
    if (!session->runs.has_had(number)) refuse(MF_NOT_FOUND, "the session has launched no run ", number);
    if (HostRun* const run = session->runs.find_number(number)) session->engine().executor().cancel(run->id);
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
