// Runs plans. Whatever happens, each accepted run is posted to the completion queue exactly once, and in the order in
// which runs were submitted.
//
// A run on a device that computes as it launches takes place on a worker thread, or inline on the caller's, one at a
// time. On an asynchronous device a run is started by the caller, or by the worker where others wait before it, and
// finished by a third thread, which waits for what the started runs enqueued, one after the other. Runs on one such
// device overlap; a run begins when all those on other devices have ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/completion.h"
#include "engine/slot.h"

namespace moonflow {

class Stay;

// Set by whoever wants runs to stop; shared, since a host may set it while the session is opened or closed.
using InterruptFlag = std::shared_ptr<std::atomic<bool>>;

class Executor {
 public:
  explicit Executor(CompletionQueue& completions, InterruptFlag interrupted = nullptr);
  ~Executor();

  // A number of its own for each process that a fork makes: memory goes along with a fork, threads do not. Elsewhere
  // than in its process an executor refuses what would wait for one of its threads, and is merely forgotten.
  static uint32_t process() noexcept;
  bool is_here() const noexcept { return process_ == process(); }
  void require_here() const;

  struct Submission {
    std::vector<Tensor> feeds;       // copied, or read, before submit comes back
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

  // Calls `work` when the runs submitted so far have ended, and before later ones begin: at once where none is under
  // way, else on the worker, which leaves it out when the executor is closed before. What it throws there, the next
  // call of this throws.
  void in_turn(std::function<void()> work);

  int in_flight() const { return in_flight_; }  // submitted, end not pulled
  void pulled_end() { --in_flight_; }
  // Until nothing is queued or running, or the time is over (negative: no limit). False when the time is over. What
  // finished waits in the completion queue.
  bool wait_idle(double timeout_ms = -1);
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
  // Asks one run to stop, as interrupt does all. It ends in its turn; one that has ended is left alone.
  void cancel(RunId id);
  // Refuses new runs, cancels queued ones, waits for the running one and joins the worker. Idempotent.
  void close();

  // Tells a profile of every step from now on; nullptr: nobody. The one before is given back. Waits until idle.
  std::shared_ptr<Profile> attach(std::shared_ptr<Profile> profile);
  const std::shared_ptr<Profile>& profile() const { return profile_; }

  int max_in_flight = 8;  // of the session, over all plans

 private:
  void require_open() const;  // by this process
  void work();
  void begin_finishing();  // where the finisher does not yet
  void finish_started();
  // Whether a run is to go no further, as long as it has written nothing.
  bool is_stopped(const Run& run) const;
  void execute(Run& run);
  void start(Run& run, bool alone);  // is no other under way on its device?
  void finish(Run& run);
  // A run in a place of its own, which moves to a list without an allocation: what has been accepted or started is
  // never lost.
  using Runs = std::list<std::unique_ptr<Run>>;
  void hand_over(Runs&& started);  // one; with the mutex held. The finisher is to be told afterwards
  void wait_for_started(SoonLocked& lock);
  Lanes& lanes_of(const Plan& plan);
  Slot& free_slot(Plan& plan);
  void release(Slot& slot);
  void forget_threads();
  bool nothing_started() const { return started_.empty() && !finishing_; }
  bool idle() const { return queued_.empty() && !running_ && nothing_started(); }  // with the mutex held
  void take_turn(const Run& run);
  void give_up(std::unique_ptr<Run> run, const Stay& stay);
  void queue(std::unique_ptr<Run> run);
  std::unique_ptr<Run> make_run(const std::shared_ptr<Plan>& plan, Submission& submission);
  // The three ways of a submitted run: through on this thread, begun on it, or behind what is under way.
  void run_here(std::unique_ptr<Run> run);
  void start_here(std::unique_ptr<Run> run, bool alone);
  void leave_to_worker(std::unique_ptr<Run> run, const std::shared_ptr<HostMemory>& memory);
  template <class Work>
  std::optional<Error> attempt(const Plan& plan, const Work& work);
  template <class Stopped>
  std::optional<Error> run_plan(Plan& plan, Stream& stream, const Tensor* feeds, const Tensor* tapped, RunId run,
                                const Stopped& stopped);

  CompletionQueue& completions_;
  const uint32_t process_;
  std::mutex mutex_;
  std::condition_variable queue_changed_, started_changed_;
  std::condition_variable progress_;  // a run has ended
  Runs queued_;
  Runs started_;                       // on one asynchronous device
  const Lanes* started_in_ = nullptr;  // where the newest of them is
  bool running_ = false;               // the worker has a run, or a turn
  RunId running_id_ = 0;               // of that run
  bool finishing_ = false;             // so has the finisher
  bool closed_ = false;
  bool all_started_ = false;   // closed, and the worker has ended
  std::atomic<int> turns_{0};  // queued, or under way
  std::optional<Error> turn_failed_;
  const InterruptFlag interrupted_;
  std::atomic<bool> heeded_{false};
  std::atomic<RunId> stopped_id_{0};      // the run that was cancelled while the worker had it
  std::atomic<uint64_t> handed_over_{0};  // runs
  std::thread worker_, finisher_;
  std::vector<std::pair<std::shared_ptr<Device>, std::unique_ptr<Lanes>>> lanes_;  // owner thread only
  std::shared_ptr<Profile> profile_;                                               // changed only while nothing runs
  RunId last_run_ = 0;
  int in_flight_ = 0;  // owner thread only
};

}  // namespace moonflow
