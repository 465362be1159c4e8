// What ran when: steps and runs, told by the executor and by prepared calls, and whatever else somebody adds. Attached
// to a session while somebody looks; without one a run tests a pointer per step and no more.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace moonflow {

class Plan;

struct ProfileEvent {
  std::string name;                  // empty for a step or a run: its plan knows it
  std::shared_ptr<const Plan> plan;  // shared: a job may be forgotten before anyone reads this
  int step = -1;                     // -1: the whole run
  uint64_t run = 0;                  // 0: not through the queue
  int thread = 0;                    // in the order in which threads were first met
  int64_t begin_ns = 0, end_ns = 0;  // of the steady clock
};

class Profile {
 public:
  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // A program may forget to end one, so it keeps so many events at most, some 100 MB; those that come first.
  static constexpr size_t kMost = size_t{1} << 20;
  explicit Profile(size_t most = kMost) : most_(most) {}

  // Sets the event's thread to the calling one, and its end to now. Any thread.
  void add(ProfileEvent event) {
    event.end_ns = now_ns();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    if (events_.size() >= most_) {
      ++left_out_;
      return;
    }
    event.thread = threads_.emplace(std::this_thread::get_id(), static_cast<int>(threads_.size())).first->second;
    events_.push_back(std::move(event));
  }

  // Everything that is kept, in the order of the ends, and how many there were beyond. Of what is still under way on
  // other threads nothing is added. Once.
  std::pair<std::vector<ProfileEvent>, size_t> end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    return {std::move(events_), left_out_};
  }

 private:
  const size_t most_;
  std::mutex mutex_;
  bool ended_ = false;
  size_t left_out_ = 0;
  std::map<std::thread::id, int> threads_;
  std::vector<ProfileEvent> events_;
};

}  // namespace moonflow
