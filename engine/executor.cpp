#include "engine/executor.h"

#include <chrono>
#include <csignal>
#include <cstdlib>

namespace moonflow {

namespace {

// A process that exits without closing destroys what libraries below us hold, while a worker may still be inside them.
// So an exit first lets the running step end, and lets no further one begin. These two belong to the process, and have
// no destructor.
std::atomic<bool> process_ends{false};
std::atomic<int> workers_running{0};

void stop_workers() {
  process_ends = true;
  constexpr int kPatienceMs = 2000;  // a step that takes longer must not keep the process
  for (int waited = 0; workers_running > 0 && waited < kPatienceMs; ++waited)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// What a plan's preparation made below us is destroyed before what was registered earlier, so each plan registers anew.
void stop_workers_before_exit_destroys(Plan& plan) {
  if (!plan.ends_with_process) plan.ends_with_process = std::atexit(stop_workers) == 0;
}

void check_feeds(const Plan& plan, const Tensor* feeds, size_t count) {
  require(count == plan.feeds.size(), ErrorCode::InvalidArgument, "takes ", plan.feeds.size(),
          plan.feeds.size() == 1 ? " input, got " : " inputs, got ", count);
  for (size_t i = 0; i < count; ++i) {
    const PlannedFeed& placeholder = plan.feeds[i];
    if (feeds[i] && feeds[i].type() == placeholder.type) continue;
    require(static_cast<bool>(feeds[i]), ErrorCode::InvalidArgument, "input '", placeholder.name, "' has no value");
    fail(feeds[i].dtype() == placeholder.type.dtype ? ErrorCode::ShapeMismatch : ErrorCode::DtypeMismatch, "input '",
         placeholder.name, "' is ", feeds[i].type(), ", its placeholder wants ", placeholder.type);
  }
}

}  // namespace

Executor::~Executor() { close(); }

RunId Executor::submit(const std::shared_ptr<Plan>& plan, Submission submission) {
  require(!closed_, ErrorCode::WrongState, "the session is closed");
  check_feeds(*plan, submission.feeds.data(), submission.feeds.size());
  require(submission.taps_on.empty() || submission.taps_on.size() == plan->taps.size(), ErrorCode::InvalidArgument,
          "the plan has ", plan->taps.size(), " taps, got ", submission.taps_on.size(), " switches");
  if (plan->in_flight >= plan->max_in_flight || in_flight_ >= max_in_flight) return 0;

  auto run = std::make_unique<Run>();
  run->plan = plan;
  run->feeds = std::move(submission.feeds);
  run->tapped.resize(plan->taps.size());
  for (size_t i = 0; i < plan->taps.size(); ++i)
    if (submission.taps_on.empty() || submission.taps_on[i])
      run->tapped[i] = Tensor::allocate(plan->taps[i].type, submission.memory);
  const RunId id = run->id = ++last_run_;

  std::unique_lock<std::mutex> lock(mutex_);
  if (!stream_) stream_ = plan->device->make_stream();
  // Only this thread submits, so what is idle now stays idle until the run is queued.
  const bool is_inline = submission.may_run_inline && queued_.empty() && !running_;
  lock.unlock();
  if (is_inline) {
    execute(*run);
    completions_.post(std::move(run));
  } else {
    // The script may change its arrays once the call is over.
    for (Tensor& feed : run->feeds) feed = feed.copy(submission.memory);
    lock.lock();
    stop_workers_before_exit_destroys(*plan);
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    queued_.push_back(std::move(run));
    lock.unlock();
    changed_.notify_all();
  }
  ++plan->in_flight;
  ++in_flight_;
  return id;
}

bool Executor::run_now(Plan& plan, const Tensor* feeds, size_t feed_count, Tensor* tapped,
                       const std::shared_ptr<HostMemory>& memory, std::optional<Error>& error) {
  require(!closed_, ErrorCode::WrongState, "the session is closed");
  check_feeds(plan, feeds, feed_count);
  if (in_flight_ > 0) return false;
  for (size_t i = 0; i < plan.taps.size(); ++i) tapped[i] = Tensor::allocate(plan.taps[i].type, memory);
  if (!stream_) stream_ = plan.device->make_stream();
  completions_.skip(plan.taps.size() + 1);
  error = run_plan(plan, feeds, tapped, 0, [&] { return interrupted(); });
  return true;
}

void Executor::work() {
  sigset_t all;  // signals are for the host's own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || !queued_.empty(); });
    if (queued_.empty()) return;
    std::unique_ptr<Run> run = std::move(queued_.front());
    queued_.pop_front();
    running_ = true;
    lock.unlock();
    ++workers_running;
    if (!process_ends) {
      execute(*run);
      completions_.post(std::move(run));
    } else {
      (void)run.release();  // even giving it up would use what may be gone
    }
    --workers_running;
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

// A failed run delivers no values.
void Executor::execute(Run& run) {
  run.error = run_plan(*run.plan, run.feeds.data(), run.tapped.data(), run.id,
                       [&] { return run.cancelled.load(std::memory_order_acquire) || interrupted() || process_ends; });
  if (!run.error) return;
  for (Tensor& tapped : run.tapped) tapped = Tensor();
}

// Whatever goes wrong becomes the error that it gives.
template <class Stopped>
std::optional<Error> Executor::run_plan(Plan& plan, const Tensor* feeds, const Tensor* tapped, RunId run,
                                        const Stopped& stopped) {
  try {
    plan.device->enter();
    for (size_t i = 0; i < plan.feeds.size(); ++i) plan.bind(i, feeds[i].data());
    plan.launch(*stream_, tapped, stopped, profile_.get(), run);
    return std::nullopt;
  } catch (const std::exception&) {
    Error error = current_error();
    error.job = plan.job;
    if (error.code == ErrorCode::Interrupted) heeded_.store(true, std::memory_order_release);
    return error;
  }
}

std::shared_ptr<Profile> Executor::attach(std::shared_ptr<Profile> profile) {
  wait_idle();
  profile.swap(profile_);
  return profile;
}

void Executor::wait_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return queued_.empty() && !running_; });
}

void Executor::close() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    for (const std::unique_ptr<Run>& run : queued_) run->cancelled.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (worker_.joinable()) worker_.join();
}

}  // namespace moonflow
