// Runs the blocks of a kernel on the calling thread, one after another in a shuffled order. Each thread of a block has
// its turn until it meets others; those that never do share one stack and cost a function call each.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <vector>

#include "kernels/simulated/block.h"

namespace moonflow::cuda::simulated {

// A small generator, the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du) {}
  uint64_t operator()() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du >> 16;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>((*this)() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_ = 0;
};

// One after another, each of [0, count) once.
class Shuffled {
 public:
  Shuffled(int64_t count, Dice& dice);
  int64_t operator[](int64_t i) const { return (first_ + i * stride_) % count_; }

 private:
  int64_t count_, first_, stride_;  // the stride has no factor in common with the count
};

// What a block may have of shared memory. Tests lower it to what smaller cards have.
extern std::atomic<int64_t> most_shared_bytes;

// Throws where a card would refuse the launch.
void check(const Grid& grid);

class Fibers final : private Threads {
 public:
  explicit Fibers(uint64_t seed);
  ~Fibers();

  // Throws Internal when threads wait for each other at different points, or write beyond their shared memory.
  void run(const Grid& grid);

 private:
  struct Fiber;
  enum class State : uint8_t { Ready, AtBarrier, AtExchange, Ended };

  void meet_block() override;
  void meet_warp() override;

  void run_block();
  void live();  // what each fiber does
  static void enter(Fibers* fibers);
  void end_thread();
  void release_block_if_complete();
  void release_warp_if_complete(int warp);
  void go_on();  // gives the turn to whoever is next; returns when it is this fiber's again
  void switch_to(Fiber& to);
  void arrive();  // for AddressSanitizer
  void forget_fibers();
  std::string describe_stuck() const;

  Dice dice_;
  const Grid* grid_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::unique_ptr<Fiber> main_;
  Fiber* current_ = nullptr;
  std::exception_ptr error_;
  bool leaving_main_ = false;

  // Of the block that runs.
  State states_[kMostThreads];
  Fiber* fiber_of_[kMostThreads];  // nullptr before a thread's first turn
  int alive_ = 0, at_barrier_ = 0;
  int alive_in_[kMostThreads / 32], waiting_in_[kMostThreads / 32];  // by warp
  // Whose turn it is next: a ring.
  int agenda_[2 * kMostThreads];
  unsigned first_ = 0, last_ = 0;
};

}  // namespace moonflow::cuda::simulated
