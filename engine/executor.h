// Runs plans, one at a time, on a worker thread or inline on the caller's. Whatever happens, each accepted run is
// posted to the completion queue exactly once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/completion.h"

namespace moonflow {

// Set by whoever wants runs to stop; shared, since a host may set it while the session is opened or closed.
using InterruptFlag = std::shared_ptr<std::atomic<bool>>;

class Executor {
 public:
  explicit Executor(CompletionQueue& completions, InterruptFlag interrupted = nullptr)
      : completions_(completions),
        interrupted_(interrupted ? std::move(interrupted) : std::make_shared<std::atomic<bool>>(false)) {}
  ~Executor();

  struct Submission {
    std::vector<Tensor> feeds;       // kept alive, and not to be changed until the run has ended
    std::vector<bool> taps_on = {};  // empty: all
    bool may_run_inline = false;     // on the calling thread when nothing is in flight
    std::shared_ptr<HostMemory> memory = nullptr;
  };
  // Gives the run's number, or 0 when the plan or the session has too many runs in flight.
  // Throws when a feed does not fit its placeholder.
  RunId submit(const std::shared_ptr<Plan>& plan, Submission submission);
  // The short way of a synchronous call: runs the plan on the calling thread, from feeds in place to `tapped`, which
  // has one tensor per tap and needs none yet. Nothing is posted. False when something is in flight: then submit.
  // Throws when a feed does not fit. What the run itself fails with goes to `error`.
  bool run_now(Plan& plan, const Tensor* feeds, size_t feed_count, Tensor* tapped,
               const std::shared_ptr<HostMemory>& memory, std::optional<Error>& error);

  int in_flight() const { return in_flight_; }  // submitted, end not pulled
  void pulled_end() { --in_flight_; }
  // Until nothing is queued or running. What finished waits in the completion queue.
  void wait_idle();
  // Asks the running step and everything queued to stop. Takes effect before the first write of a run, or after its
  // last. Any thread; async-signal-safe.
  void interrupt() noexcept { interrupted_->store(true, std::memory_order_release); }
  bool interrupted() const noexcept { return interrupted_->load(std::memory_order_acquire); }
  const InterruptFlag& interrupt_flag() const { return interrupted_; }
  // Whether a run has been stopped since the last clear_interrupt.
  bool interrupt_heeded() const noexcept { return heeded_.load(std::memory_order_acquire); }
  void clear_interrupt() noexcept {
    interrupted_->store(false, std::memory_order_release);
    heeded_.store(false, std::memory_order_release);
  }
  // Refuses new runs, cancels queued ones, waits for the running one and joins the worker. Idempotent.
  void close();

  // Tells a profile of every step from now on; nullptr: nobody. The one before is given back. Waits until idle.
  std::shared_ptr<Profile> attach(std::shared_ptr<Profile> profile);
  const std::shared_ptr<Profile>& profile() const { return profile_; }

  int max_in_flight = 8;  // of the session, over all plans

 private:
  void work();
  void execute(Run& run);
  template <class Stopped>
  std::optional<Error> run_plan(Plan& plan, const Tensor* feeds, const Tensor* tapped, RunId run,
                                const Stopped& stopped);

  CompletionQueue& completions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Run>> queued_;
  bool running_ = false;
  bool closed_ = false;
  const InterruptFlag interrupted_;
  std::atomic<bool> heeded_{false};
  std::thread worker_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<Profile> profile_;  // changed only while nothing runs
  RunId last_run_ = 0;
  int in_flight_ = 0;  // owner thread only
};

}  // namespace moonflow
