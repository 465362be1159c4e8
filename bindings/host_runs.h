// The runs that a host has launched and not heard of yet. A run's values come one by one, then its end, which calls the
// host's function: straight from the engine's queue, or handed on by Lua where that met them first.
#pragma once

#include <chrono>
#include <vector>

#include "bindings/lua_glue.h"
#include "bindings/status.h"

namespace moonflow::host {

class HostSession;

class HostRun {
 public:
  HostRun(mf_result_function result, void* user, size_t outputs)
      : result_(result), user_(user), values_(outputs), arrays_(outputs) {}

  RunId id = 0;           // in the engine, of which a script may begin another one
  mf_run number = 0;      // for the host
  bool only_lua = false;  // something in it is watched, so Lua delivers it

  void take(size_t output, Tensor value) {
    if (output < values_.size()) values_[output] = std::move(value);
  }
  // Nobody is to be told any more.
  void forget_function() {
    result_ = [](void*, const mf_status*, const mf_array*, int32_t) {};
    user_ = nullptr;
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
  mf_run add(HostRun run) {
    run.number = ++last_number_;
    runs_.push_back(std::move(run));
    return last_number_;
  }
  HostRun* find(RunId id);
  HostRun* find_number(mf_run number);
  bool has_had(mf_run number) const { return number > 0 && number <= last_number_; }
  // Out of the list before its end: the host's function may launch again.
  HostRun remove(HostRun* run);
  void clear() { runs_.clear(); }

 private:
  std::vector<HostRun> runs_;  // few: what may be in flight is bounded
  mf_run last_number_ = 0;
};

// Until so many milliseconds are over; below 0 it has no end.
class Deadline {
 public:
  explicit Deadline(double max_ms);
  bool is_over() const { return left_ms() <= 0; }
  double left_ms() const;

 private:
  bool has_end_;
  std::chrono::steady_clock::time_point end_;
};

// Delivers the next thing, for which it waits; false when the time is over first. Owner thread, outside of callbacks.
bool deliver_next(HostSession& session, const Deadline& deadline);
// The same until a run has been delivered, or its session has given it up; false when the time is over first.
bool deliver_run(HostSession& session, mf_run run, const Deadline& deadline);

// Pushes `receive(run, i, value)` of lua/moonflow/host.lua. Inside `enter`.
void push_receive(lua_State* L, const HostSession& session);

}  // namespace moonflow::host
