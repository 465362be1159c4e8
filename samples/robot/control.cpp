#include "control.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

#include "allocations.h"

namespace {

int64_t nanoseconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

void sleep_until(int64_t ns) {
  const timespec time = {ns / 1000000000, ns % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
  }
}

rusage used_by_thread() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage;
}

// Makes the pages below the stack pointer ours.
__attribute__((noinline)) void touch_stack() {
  volatile char pages[128 * 1024];
  for (size_t i = 0; i < sizeof pages; i += 4096) pages[i] = 0;
}

// A start that the pole can be saved from, another one each time.
CartPole start(uint64_t number) {
  const auto from_minus_one = [&](uint64_t k) { return static_cast<float>((number * k) % 17) / 8.0f - 1.0f; };
  return {0.5f * from_minus_one(3), 0.2f * from_minus_one(5), 0.1f * from_minus_one(7), 0.2f * from_minus_one(11)};
}

}  // namespace

Control::Control(std::unique_ptr<Policy> policy) : policy_(std::move(policy)), thread_([this] { loop(); }) {}

Control::~Control() {
  stop();
  delete offered_.load();
  delete replaced_.load();
}

void Control::offer(std::unique_ptr<Policy> policy) { delete offered_.exchange(policy.release()); }

void Control::free_replaced() { delete replaced_.exchange(nullptr); }

const Report& Control::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  return report_;
}

void Control::take_offered() {
  if (!offered_.load(std::memory_order_relaxed) || replaced_.load()) return;
  if (Policy* next = offered_.exchange(nullptr)) {
    replaced_ = policy_.release();
    policy_.reset(next);
    ++report_.policies;
  }
}

// What a thread with deadlines asks of the system, as far as it is granted.
void Control::prepare_thread() {
  sched_param priority{};
  priority.sched_priority = 50;
  const bool fifo = pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0;
  prctl(PR_SET_TIMERSLACK, 1);  // ns; else an ordinary thread is woken up to 50 us late
  const bool locked = mlockall(MCL_CURRENT | MCL_FUTURE) == 0;
  report_.scheduling = std::string(fifo ? "SCHED_FIFO 50" : "SCHED_OTHER (SCHED_FIFO is not allowed)") +
                       (locked ? ", memory locked" : ", memory not locked (mlockall is not allowed)");
  touch_stack();
  policy_->warm_up();
}

bool Control::exceeds_budget_again() {
  const int64_t before = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  policy_->run_again();
  return nanoseconds(CLOCK_THREAD_CPUTIME_ID) - before > kBudgetNs;
}

void Control::loop() {
  prepare_thread();
  CartPole pole = start(0);
  float force = 0;
  rusage before = used_by_thread();
  int64_t wake = nanoseconds(CLOCK_MONOTONIC);
  constexpr uint64_t kWarmUp = 100;  // ticks
  for (uint64_t tick = 0; !stopping_.load(std::memory_order_relaxed); ++tick) {
    if (tick == kWarmUp) {
      before = used_by_thread();
      count_allocations();
    }
    wake += kPeriodNs;
    sleep_until(wake);
    const int64_t woken = nanoseconds(CLOCK_MONOTONIC);

    take_offered();
    const int64_t switches = used_by_thread().ru_nvcsw;
    const uint64_t weights = policy_->generation();
    const int64_t cpu_before = nanoseconds(CLOCK_THREAD_CPUTIME_ID), call_before = nanoseconds(CLOCK_MONOTONIC);
    const mf_code code = policy_->run(pole);
    const int64_t done = nanoseconds(CLOCK_MONOTONIC), cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu_before;
    const bool waited = used_by_thread().ru_nvcsw != switches;

    int64_t missed = 0;  // periods that are over: the cart has felt the force from before in them
    for (; done > wake + kPeriodNs; wake += kPeriodNs, ++missed) pole.advance(force);
    if (code == MF_OK) force = policy_->force();
    pole.advance(force);
    if (pole.has_fallen()) pole = start(++report_.falls);

    report_.failures += code != MF_OK;
    report_.misses += static_cast<uint64_t>(missed);
    if (missed > 0) {
      const bool took_weights = policy_->generation() != weights;
      report_.misses_by_policy += waited || (cpu > kBudgetNs && (took_weights || exceeds_budget_again()));
    }
    report_.waits_in_policy += waited;
    report_.lateness.add(woken - (wake - missed * kPeriodNs));
    report_.call.add(done - call_before);
    report_.call_cpu.add(cpu);
    report_.ticks += static_cast<uint64_t>(missed) + 1;
    ticks_.store(report_.ticks, std::memory_order_relaxed);
  }
  const rusage after = used_by_thread();
  report_.minor_faults = static_cast<uint64_t>(after.ru_minflt - before.ru_minflt);
  report_.major_faults = static_cast<uint64_t>(after.ru_majflt - before.ru_majflt);
  report_.allocations = allocations();
}
