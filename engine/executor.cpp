#include "engine/executor.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <new>
#include <utility>

#include "engine/default_floats.h"
#include "engine/process_end.h"

namespace moonflow {

namespace {

std::atomic<uint32_t> process_number{0};  // belongs to the process, and has no destructor

void notice_forks() {
  [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, [] { ++process_number; });
}

// What a plan's preparation made below us, and then its first run, is destroyed before what was registered earlier, so
// each plan registers anew.
void wait_before_exit_destroys(bool& is_registered) {
  if (!is_registered) is_registered = exit_waits_from_here();
}

// Throws where the plan cannot be called so.
void check_call(const Plan& plan, const Tensor* feeds, size_t count) {
  require(plan.forgotten.empty(), ErrorCode::WrongState, "the job '", plan.job, "' computes with the variable '",
          plan.forgotten, "', which has been forgotten; define it again");
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

Executor::Executor(CompletionQueue& completions, InterruptFlag interrupted)
    : completions_(completions),
      process_(process()),
      interrupted_(interrupted ? std::move(interrupted) : std::make_shared<std::atomic<bool>>(false)) {
  notice_forks();
}

Executor::~Executor() { close(); }

uint32_t Executor::process() noexcept { return process_number.load(std::memory_order_relaxed); }

void Executor::require_here() const {
  require(is_here(), ErrorCode::WrongState,
          "the session belongs to the process that opened it, and a fork has none of its threads; open one here, for "
          "which a script calls flow.shutdown() and defines its jobs again");
}

void Executor::require_open() const {
  require(!closed_, ErrorCode::WrongState, "the session is closed");
  require_here();
}

namespace {

// Memory for what a tap gives.
Tensor allocate_tap(const Plan& plan, const PlannedTap& tap, const std::shared_ptr<HostMemory>& memory) {
  if (tap.after_step < 0) return Tensor::allocate(tap.type, memory);
  const Step& step = plan.steps[tap.after_step];
  return blaming(step.label, step.site, [&] { return Tensor::allocate(tap.type, memory); });
}

}  // namespace

RunId Executor::submit(const std::shared_ptr<Plan>& plan, Submission submission) {
  require_open();
  const Stay stay;
  stay.require_in_time();
  check_call(*plan, submission.feeds.data(), submission.feeds.size());
  require(submission.taps_on.empty() || submission.taps_on.size() == plan->taps.size(), ErrorCode::InvalidArgument,
          "the plan has ", plan->taps.size(), " taps, got ", submission.taps_on.size(), " switches");
  if (plan->in_flight >= plan->max_in_flight || in_flight_ >= max_in_flight) return 0;

  std::unique_ptr<Run> run = make_run(plan, submission);
  const RunId id = run->id;
  completions_.patience = std::chrono::microseconds(plan->asynchronous ? 50 : 0);
  wait_before_exit_destroys(plan->exit_waits);
  SoonLocked lock(mutex_);
  // Only this thread submits, so what is idle now stays idle until the run is queued.
  const bool none_before = queued_.empty() && !running_;
  const bool alone = none_before && nothing_started();
  const bool starts_here = plan->asynchronous && (alone || (none_before && started_in_ == run->lanes));
  lock.unlock();
  if (submission.may_run_inline && alone)
    run_here(std::move(run));
  else if (starts_here)
    start_here(std::move(run), alone);
  else
    leave_to_worker(std::move(run), submission.memory);
  ++plan->in_flight;
  ++in_flight_;
  return id;
}

std::unique_ptr<Run> Executor::make_run(const std::shared_ptr<Plan>& plan, Submission& submission) {
  auto run = std::make_unique<Run>();
  run->plan = plan;
  run->lanes = &lanes_of(*plan);
  run->feeds = std::move(submission.feeds);
  run->tapped.resize(plan->taps.size());
  for (size_t i = 0; i < plan->taps.size(); ++i)
    if (submission.taps_on.empty() || submission.taps_on[i])
      run->tapped[i] = allocate_tap(*plan, plan->taps[i], submission.memory);
  run->id = ++last_run_;
  return run;
}

void Executor::run_here(std::unique_ptr<Run> run) {
  execute(*run);
  completions_.post(std::move(run));
}

void Executor::start_here(std::unique_ptr<Run> run, bool alone) {
  begin_finishing();
  Runs place;
  place.push_back(std::move(run));
  start(*place.front(), alone);
  {
    const SoonLocked lock(mutex_);
    hand_over(std::move(place));
  }
  started_changed_.notify_one();
}

void Executor::leave_to_worker(std::unique_ptr<Run> run, const std::shared_ptr<HostMemory>& memory) {
  if (run->plan->asynchronous) begin_finishing();
  // The script may change its arrays once the call is over.
  for (Tensor& feed : run->feeds) feed = feed.copy(memory);
  run->plan->device->rest();
  queue(std::move(run));
}

void Executor::queue(std::unique_ptr<Run> run) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    queued_.push_back(std::move(run));
    turns_ += queued_.back()->turn ? 1 : 0;
  }
  queue_changed_.notify_one();
}

void Executor::in_turn(std::function<void()> work) {
  require_open();
  std::unique_lock<std::mutex> lock(mutex_);
  if (turn_failed_) {
    const Error failed = *std::exchange(turn_failed_, std::nullopt);
    throw failed;
  }
  const bool at_once = idle();  // and stays so, since only this thread submits
  lock.unlock();
  if (at_once) return work();
  auto run = std::make_unique<Run>();
  run->turn = std::move(work);
  queue(std::move(run));
}

bool Executor::run_now(Plan& plan, const Tensor* feeds, size_t feed_count, Tensor* tapped,
                       const std::shared_ptr<HostMemory>& memory, std::optional<Error>& error) {
  require_open();
  check_call(plan, feeds, feed_count);
  if (in_flight_ > 0) return false;
  if (turns_ > 0) wait_idle();
  for (size_t i = 0; i < plan.taps.size(); ++i) tapped[i] = allocate_tap(plan, plan.taps[i], memory);
  Lanes& lanes = lanes_of(plan);
  completions_.skip(plan.taps.size() + 1);
  wait_before_exit_destroys(plan.exit_waits);
  const Stay stay;
  stay.require_in_time();
  const auto stopped = [&] { return interrupted() || process_ends(); };
  if (!plan.asynchronous) {
    error = run_plan(plan, *lanes.steps, feeds, tapped, 0, stopped);
    return true;
  }
  error = attempt(plan, [&] {
    Slot& slot = free_slot(plan);
    const std::optional<Error> failure = attempt(plan, [&] {
      slot.start(lanes, feeds, tapped, {stopped, profile_.get(), 0, true});
      slot.finish(tapped);
    });
    release(slot);
    if (failure) throw *failure;
  });
  return true;
}

Lanes& Executor::lanes_of(const Plan& plan) {
  for (const auto& [device, lanes] : lanes_)
    if (device == plan.device) return *lanes;
  plan.device->enter();
  return *lanes_.emplace_back(plan.device, std::make_unique<Lanes>(*plan.device)).second;
}

// ---- the worker ----------------------------------------------------------------------------------------------

namespace {

// But for those of a fault of this thread, for which a host's crash handler would not be asked, and a profiler's.
void leave_signals_to_the_host() {
  sigset_t signals;
  sigfillset(&signals);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGPROF}) sigdelset(&signals, own);
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
}

}  // namespace

void Executor::work() {
  leave_signals_to_the_host();
  const DefaultFloats floats;
  constexpr std::chrono::milliseconds kPatience(2);  // more than between the steps of a training loop
  std::shared_ptr<Device> entered;                   // on which this thread has launched, and not rested since
  const auto has_work = [&] { return closed_ || !queued_.empty(); };
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (entered && !queue_changed_.wait_for(lock, kPatience, has_work)) {
      lock.unlock();
      entered->rest();
      entered.reset();
      lock.lock();
    }
    queue_changed_.wait(lock, has_work);
    if (queued_.empty()) return;
    Runs place;
    place.splice(place.end(), queued_, queued_.begin());
    std::unique_ptr<Run>& run = place.front();
    running_ = true;
    running_id_ = run->id;
    if (run->turn || !run->plan->asynchronous || started_in_ != run->lanes)
      progress_.wait(lock, [&] { return nothing_started(); });
    lock.unlock();
    std::optional<Stay> stay(std::in_place);
    bool is_started = false;
    if (run->plan && run->plan->asynchronous) {
      if (!stay->is_late()) start(*run, false);
      is_started = true;  // the finisher gives it up, behind those before it
    } else if (stay->is_late()) {
      give_up(std::move(run), *stay);
    } else if (run->turn) {
      take_turn(*run);
      run.reset();
    } else {
      execute(*run);
      entered = run->plan->device;
      completions_.post(std::move(run));
    }
    stay.reset();
    lock.lock();
    if (is_started) {
      hand_over(std::move(place));
      started_changed_.notify_one();
    }
    running_ = false;
    running_id_ = 0;
    progress_.notify_all();
  }
}

void Executor::take_turn(const Run& run) {
  if (!run.cancelled.load(std::memory_order_acquire)) {
    try {
      run.turn();
    } catch (const std::exception&) {
      const std::lock_guard<std::mutex> lock(mutex_);
      turn_failed_ = current_error();
    }
  }
  --turns_;
}

// Ends a run that has come late, for whoever waits for it while the process ends, and touches nothing that an exit may
// have destroyed: its values are dropped by who pulls it, and a turn, of which nobody hears, stays as it is.
void Executor::give_up(std::unique_ptr<Run> run, const Stay& stay) {
  if (run->turn) {
    --turns_;
    (void)run.release();
    return;
  }
  run->error = attempt(*run->plan, [&] { stay.require_in_time(); });
  run->delivered = run->tapped.size();
  completions_.post(std::move(run));
}

bool Executor::is_stopped(const Run& run) const {
  return run.cancelled.load(std::memory_order_acquire) || stopped_id_.load(std::memory_order_acquire) == run.id ||
         interrupted() || process_ends();
}

// The worker gives a run away before it says that it has none any more, so of that one only the number is looked at.
void Executor::cancel(RunId id) {
  const SoonLocked lock(mutex_);
  for (const std::unique_ptr<Run>& run : queued_)
    if (run->id == id) run->cancelled.store(true, std::memory_order_release);
  if (running_id_ == id) stopped_id_.store(id, std::memory_order_release);
}

void Executor::execute(Run& run) {
  if (run.plan->asynchronous) {
    start(run, true);
    finish(run);
    return;
  }
  run.error = run_plan(*run.plan, *run.lanes->steps, run.feeds.data(), run.tapped.data(), run.id,
                       [&] { return is_stopped(run); });
  if (run.error) run.drop_values();
}

// Whatever goes wrong becomes the error that it gives. On a worker nobody would catch another one, so that of a run
// without memory goes without a name rather than not at all.
template <class Work>
std::optional<Error> Executor::attempt(const Plan& plan, const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const std::exception&) {
    std::optional<Error> error = current_error();
    if (error->code == ErrorCode::Interrupted && interrupted()) heeded_.store(true, std::memory_order_release);
    try {
      error->job = plan.job;
    } catch (const std::bad_alloc&) {
    }
    return error;
  }
}

template <class Stopped>
std::optional<Error> Executor::run_plan(Plan& plan, Stream& stream, const Tensor* feeds, const Tensor* tapped,
                                        RunId run, const Stopped& stopped) {
  const DefaultFloats floats;
  return attempt(plan, [&] {
    plan.refresh_variables();
    plan.device->enter();
    for (size_t i = 0; i < plan.feeds.size(); ++i) plan.bind(i, feeds[i].data());
    plan.launch(stream, tapped, stopped, profile_.get(), run);
    wait_before_exit_destroys(plan.exit_waits_after_run);
  });
}

// ---- runs on asynchronous devices ----------------------------------------------------------------------------

// A run that cannot be started goes the way of the others, so that it ends in its turn.
void Executor::start(Run& run, bool alone) {
  const auto stopped = [&] { return is_stopped(run); };
  run.error = attempt(*run.plan, [&] {
    run.slot = &free_slot(*run.plan);
    run.slot->start(*run.lanes, run.feeds.data(), run.tapped.data(), {stopped, profile_.get(), run.id, alone});
  });
  run.feeds.clear();
}

void Executor::finish(Run& run) {
  if (!run.error) run.error = attempt(*run.plan, [&] { run.slot->finish(run.tapped.data()); });
  if (run.error) run.drop_values();
  if (run.slot) release(*run.slot);
  run.slot = nullptr;
}

void Executor::hand_over(Runs&& started) {
  started_in_ = started.front()->lanes;
  started_.splice(started_.end(), started);
  handed_over_.fetch_add(1, std::memory_order_release);
}

// Until something is handed over. To be woken takes longer than short runs do, and costs whoever submits one some
// microseconds, so after a run the finisher looks out for the next one for a while before it sleeps.
void Executor::wait_for_started(SoonLocked& lock) {
  const auto something = [&] { return all_started_ || !started_.empty(); };
  if (something()) return;
  const uint64_t seen = handed_over_.load(std::memory_order_relaxed);
  lock.unlock();
  constexpr std::chrono::microseconds kPatience(50);
  look_out(kPatience, [&] { return handed_over_.load(std::memory_order_acquire) != seen; });
  lock.lock_soon();
  started_changed_.wait(lock, something);
}

void Executor::begin_finishing() {
  if (!finisher_.joinable()) finisher_ = std::thread([this] { finish_started(); });
}

void Executor::finish_started() {
  leave_signals_to_the_host();
  SoonLocked lock(mutex_);
  for (;;) {
    wait_for_started(lock);
    if (started_.empty()) return;
    std::unique_ptr<Run> run = std::move(started_.front());
    started_.pop_front();
    finishing_ = true;
    lock.unlock();
    std::optional<Stay> stay(std::in_place);
    if (stay->is_late()) {
      give_up(std::move(run), *stay);
    } else {
      finish(*run);
      completions_.post(std::move(run));
    }
    stay.reset();
    lock.lock_soon();
    finishing_ = false;
    progress_.notify_all();
  }
}

// As many runs of a plan as may be in flight have a slot each, unless the device has no memory for them: then they
// take turns.
Slot& Executor::free_slot(Plan& plan) {
  SoonLocked lock(mutex_);
  const auto find = [&] {
    const auto found = std::find_if(plan.slots.begin(), plan.slots.end(), [](const auto& slot) { return !slot->busy; });
    return found == plan.slots.end() ? nullptr : found->get();
  };
  Slot* slot = find();
  if (!slot) {
    lock.unlock();
    std::unique_ptr<Slot> made;
    try {
      made = std::make_unique<Slot>(plan);
    } catch (const std::exception&) {
      if (plan.slots.empty()) throw;
    }
    lock.lock();
    if (made)
      slot = plan.slots.emplace_back(std::move(made)).get();
    else
      progress_.wait(lock, [&] { return (slot = find()) != nullptr || process_ends(); });
    require(slot != nullptr, ErrorCode::Interrupted, "interrupted before it began");
  }
  slot->busy = true;
  return *slot;
}

void Executor::release(Slot& slot) {
  const SoonLocked lock(mutex_);
  slot.busy = false;
}

// ---- pausing and ending --------------------------------------------------------------------------------------

std::shared_ptr<Profile> Executor::attach(std::shared_ptr<Profile> profile) {
  wait_idle();
  profile.swap(profile_);
  return profile;
}

bool Executor::wait_idle(double timeout_ms) {
  require_here();
  std::unique_lock<std::mutex> lock(mutex_);
  return wait_for(progress_, lock, timeout_ms, [&] { return idle(); });
}

void Executor::close() {
  if (!is_here()) return forget_threads();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    for (const std::unique_ptr<Run>& run : queued_) run->cancelled.store(true, std::memory_order_release);
  }
  queue_changed_.notify_all();
  if (worker_.joinable()) worker_.join();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_started_ = true;
  }
  started_changed_.notify_all();
  if (finisher_.joinable()) finisher_.join();
}

// In a fork: nobody is left to be joined, to give back the mutex, or to leave a condition, whose destructor waits for
// that. New ones in their place are never used.
void Executor::forget_threads() {
  closed_ = true;
  new (&mutex_) std::mutex;
  for (std::condition_variable* condition : {&queue_changed_, &started_changed_, &progress_})
    new (condition) std::condition_variable;
  for (std::thread* thread : {&worker_, &finisher_}) new (thread) std::thread;
}

}  // namespace moonflow
