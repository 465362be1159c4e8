// The one door out of the engine. A finished run is posted as a whole; the session's thread pulls its completions one
// by one: a tensor per tap that was on, in graph order, then the end.
// Posting neither allocates nor fails. Post from any thread, pull from one.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/lookout.h"
#include "engine/plan.h"

namespace moonflow {

struct Lanes;
using RunId = uint64_t;

struct Completion {
  RunId run = 0;
  Token token = 0;  // of the tap; 0 at the end of the run
  Tensor tensor;
  bool end = false;
  std::optional<Error> error;  // only at the end
  uint64_t sequence = 0;       // rising over everything the session delivers
};

// One execution of a plan with its feeds. Owned by the executor while it runs, then by the queue until it is pulled.
struct Run {
  RunId id = 0;
  std::shared_ptr<Plan> plan;  // shared: a forgotten job's plan lives until its last run is pulled
  std::function<void()> turn;  // in the place of a plan: what else has its turn among the runs, and is not posted
  std::vector<Tensor> feeds;
  std::vector<Tensor> tapped;  // one per tap; no value where the tap is off
  std::optional<Error> error;
  std::atomic<bool> cancelled{false};
  Lanes* lanes = nullptr;     // of its device; the executor's
  Slot* slot = nullptr;       // of its plan, while it is under way on an asynchronous device
  size_t delivered = 0;       // taps already looked at by pull
  std::unique_ptr<Run> next;  // in the queue

  // A failed run delivers none.
  void drop_values() {
    for (Tensor& value : tapped) value = Tensor();
  }
};

// Until `done` holds, or the time is over (negative: no limit). Whether it holds. What is no number is no time.
template <class Done>
bool wait_for(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, double timeout_ms,
              const Done& done) {
  constexpr double kLongestMs = 1e9;  // the clock's numbers end somewhere beyond
  if (timeout_ms < 0 || timeout_ms > kLongestMs) {
    changed.wait(lock, done);
    return true;
  }
  return changed.wait_for(lock, std::chrono::duration<double, std::milli>(timeout_ms > 0 ? timeout_ms : 0), done);
}

class CompletionQueue {
 public:
  CompletionQueue() = default;
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  void post(std::unique_ptr<Run> run) noexcept;
  // The owner has something of its own to deliver: until it next looks for a run to pull, the queue is not empty and
  // the descriptor is readable. Called by the pulling thread.
  void announce();
  // Numbers taken by what is delivered without being posted.
  void skip(size_t completions) { sequence_ += completions; }
  bool announced() const { return announced_; }
  // The next completion, or nullptr when there is none. Whoever takes it may take what it holds, and then pops it:
  // until then it stays the next one.
  Completion* front();
  // After its end a run is gone and its plan has room again.
  void pop();
  // The next completion is the end of the run whose values have been pulled.
  bool at_end() const { return pulling_ && pulling_->delivered == pulling_->tapped.size(); }
  // Until something can be pulled, or the time is over (negative: no limit). False when the time is over.
  bool wait(double timeout_ms);
  // How long a wait looks out before it sleeps: not at all where its run needs this core. The pulling thread's own.
  std::chrono::microseconds patience{0};
  // Whether a run has ended, pulled or not: runs are posted in the order of their numbers. One atomic load.
  bool has_ended(RunId run) const { return run <= last_posted_.load(std::memory_order_acquire); }
  // One atomic load.
  bool empty() const { return ready_.load(std::memory_order_acquire) == 0; }
  // A descriptor that is readable while something can be pulled. Made at the first call; -1 when the system has none.
  int descriptor();

 private:
  std::atomic<int64_t> ready_{0};  // runs posted whose end is not pulled yet, and one for an announcement
  std::atomic<RunId> last_posted_{0};
  std::mutex mutex_;               // guards the list and the descriptor
  std::condition_variable posted_;
  std::unique_ptr<Run> head_;
  Run* tail_ = nullptr;
  int descriptor_ = -1;
  // The pulling thread's own:
  std::unique_ptr<Run> pulling_;  // the run being delivered
  Completion front_;              // of that run; meaningful while has_front_
  bool has_front_ = false;
  bool announced_ = false;
  uint64_t sequence_ = 0;

  void add_ready();  // both: with the mutex held
  void take_ready();
};

}  // namespace moonflow
