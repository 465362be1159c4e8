// The runs that a host has launched and not heard of yet. A run's values come one by one, then its end, which calls the
// host's function: straight from the engine's queue, or handed on by Lua where that met them first.
#pragma once

#include <vector>

#include "bindings/lua_glue.h"
#include "bindings/status.h"

namespace moonflow::host {

class HostSession;

class HostRun {
 public:
  HostRun(mf_result_function result, void* user, size_t outputs)
      : result_(result), user_(user), values_(outputs), arrays_(outputs) {}

  RunId id = 0;
  bool only_lua = false;  // something in it is watched, so Lua delivers it

  void take(size_t output, Tensor value) {
    if (output < values_.size()) values_[output] = std::move(value);
  }
  // Calls the host's function; with a status, which is freed, when the run has failed.
  void finish(mf_status* failure);

 private:
  mf_result_function result_;
  void* user_;
  std::vector<Tensor> values_;
  std::vector<mf_array> arrays_;  // views of them; made with the run, so that its end needs no memory
};

class HostRuns {
 public:
  // Room for one more, so that nothing can fail once it has been launched.
  void reserve() { runs_.reserve(runs_.size() + 1); }
  void add(HostRun run) { runs_.push_back(std::move(run)); }
  HostRun* find(RunId id);
  // Out of the list before its end: the host's function may launch again.
  HostRun remove(HostRun* run);
  void clear() { runs_.clear(); }

 private:
  std::vector<HostRun> runs_;  // few: what may be in flight is bounded
};

// Pushes `receive(run, i, value)` of lua/moonflow/host.lua. Inside `enter`.
void push_receive(lua_State* L, const HostSession& session);

}  // namespace moonflow::host
