#include "bindings/host_runs.h"

#include <algorithm>

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
