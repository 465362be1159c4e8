// The control loop of the robot: a thread that wakes every millisecond, reads the state, runs the policy and pushes the
// cart. Between two ticks it takes over a new policy if one was offered. It counts whatever could make it late.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "cart_pole.h"
#include "histogram.h"
#include "moonflow.hpp"

// The job `policy`, ready for a thread with deadlines.
class Policy {
 public:
  explicit Policy(moonflow::Job job)
      : prepared_(job.prepare()), state_(prepared_.input<float>(0)), probabilities_(prepared_.output<float>(0)) {}

  mf_code warm_up() noexcept { return prepared_.warm_up(); }
  mf_code run(const CartPole& pole) noexcept {
    state_[0] = pole.position;
    state_[1] = pole.velocity;
    state_[2] = pole.angle;
    state_[3] = pole.angular_velocity;
    return prepared_.run();
  }
  mf_code run_again() noexcept { return prepared_.run(); }  // on the same state
  // The mean of pushing left or right with all force, by the probabilities of the last run.
  float force() const noexcept { return kLargestForce * (probabilities_[1] - probabilities_[0]); }
  uint64_t generation() noexcept { return prepared_.generation(); }

 private:
  moonflow::Prepared prepared_;
  moonflow::Span<float> state_;
  moonflow::Span<const float> probabilities_;
};

constexpr int64_t kPeriodNs = 1000 * 1000;
// What the policy may cost of a period, in CPU time of the control thread. It takes a few microseconds.
constexpr int64_t kBudgetNs = kPeriodNs / 10;

struct Report {
  std::string scheduling;  // how the thread was scheduled
  uint64_t ticks = 0;
  uint64_t falls = 0;
  uint64_t policies = 0;  // taken over
  uint64_t failures = 0;  // of the policy's run

  // A tick misses its deadline when its force comes after the end of its period. It is the policy's fault if its call
  //  - gave the CPU away by itself, as a lock, an allocation that enters the kernel, or any other wait makes it; or
  //  - took more CPU time than its budget, and either took over new weights, or takes as long again when it is
  //  repeated.
  // For the call is the same instructions each time, but for the weights: if the same inputs are over in time at once,
  // the time went elsewhere. The CPU clock of a thread alone cannot tell: it runs on in interrupts, and when a machine
  // below this one stops it; a loop that only reads it sees milliseconds go by. Otherwise the thread was woken late, or
  // it was ready and something else ran.
  uint64_t misses = 0;
  uint64_t misses_by_policy = 0;
  uint64_t waits_in_policy = 0;  // voluntary switches within calls, late or not

  // Of the whole thread, from the end of its warm-up on.
  uint64_t minor_faults = 0, major_faults = 0;
  int64_t allocations = 0;  // calls of malloc, free and so on; -1: not counted in this build

  Histogram lateness;  // from the time to wake up to waking up
  Histogram call;      // of the policy, by the clock
  Histogram call_cpu;  // of the policy, in CPU time
};

class Control {
 public:
  explicit Control(std::unique_ptr<Policy> policy);
  ~Control();

  // For the training thread. Offers a policy; frees the one that was replaced by an earlier offer.
  void offer(std::unique_ptr<Policy> policy);
  void free_replaced();
  double seconds() const { return ticks_.load(std::memory_order_relaxed) * 1e-9 * kPeriodNs; }

  // Ends the loop, and gives what it has counted and the policy it ended with.
  const Report& stop();
  Policy& policy() { return *policy_; }

 private:
  void loop();
  void prepare_thread();
  void take_offered();
  bool exceeds_budget_again();

  std::unique_ptr<Policy> policy_;  // of the control thread while it runs
  // Two slots that are exchanged, never waited for. The control thread takes an offer only when there is room for the
  // policy that it replaces, so that it never has to free one.
  std::atomic<Policy*> offered_{nullptr}, replaced_{nullptr};
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> ticks_{0};
  Report report_;
  std::thread thread_;
};
