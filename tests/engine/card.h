// A device that computes later, like a graphics card: what plans on asynchronous devices are tested with.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "toy.h"

namespace moonflow::toy {

// Each stream has a thread of its own, which does what was enqueued when it likes. The host cannot touch the card's
// memory (its addresses lead nowhere), and its kernels nothing else. It computes the toy ops with the kernels of the
// host, except that
//   bad, greedy   are refused when they are launched
//   picky         notes a fault, and assign_sub leaves the variables alone once there is one
// A recording with branches does its work in any order that its events allow.
class FakeCard final : public Device {
 public:
  FakeCard();
  ~FakeCard() override;
  DeviceKind kind() const override { return DeviceKind::Cuda; }
  std::string describe() const override { return "fake card"; }
  const Kernel& kernel(const OpDef& op) const override;
  void* allocate(int64_t bytes) override;
  void free(void* memory) noexcept override;
  std::unique_ptr<Stream> make_stream() override;
  int branches() const override { return wants_branches; }
  std::unique_ptr<Stream> make_branch(Stream& trunk) override;
  void copy(Stream& stream, void* to, const void* from, int64_t bytes) override;
  bool asynchronous() const override { return true; }
  bool records() const override { return wants_recordings; }
  int64_t small_bytes() const override { return wants_small_bytes; }
  std::unique_ptr<Event> make_event() override;
  void* allocate_staging(int64_t bytes) override;
  void free_staging(void* memory) noexcept override;
  Launch reorder(const TensorType& type, const Layout& from, const Layout& to) override;

  // From now on everything fails: what is under way never ends, what is enqueued is refused.
  void fail(const std::string& text);
  // What happened that may not: a kernel given the host's memory or memory it was not said to touch, a use after free.
  std::vector<std::string> violations();

  bool wants_recordings = true;
  int wants_branches = 2;
  int64_t wants_small_bytes = 64;            // some of what tests feed and show is small
  bool refuses_launches = false;             // which spoils a recording, too
  int refuses_launch_after = -1;             // so many; negative: none
  std::set<std::string, std::less<>> lacks;  // ops it has no kernels for
  int64_t refuse_above = -1;                 // allocations larger than this fail; negative: none do
  std::atomic<int> live_buffers{0}, live_staging{0};
  std::atomic<int> launches{0};    // of single kernels and reorders
  std::atomic<int> recordings{0};  // made
  std::atomic<int> replays{0};     // started
  std::atomic<int> copies{0};      // done, small ones and ends of runs aside

 private:
  friend class CardStream;
  friend class CardEvent;

  char* real(const void* memory) const;  // where the thread of a stream finds it
  bool owns(const void* memory) const { return memory >= seen_ && memory < seen_ + kBytes; }
  void check_lives(const Range& range, const std::string& who);
  void copy_now(void* to, const void* from, int64_t bytes, const std::string& who);  // on a stream's thread
  void violate(const std::string& what);
  Launch later(const std::string& who, Launch launch, std::vector<int64_t> input_bytes,
               std::vector<int64_t> output_bytes, int64_t scratch_bytes, bool writes);

  static constexpr int64_t kBytes = int64_t{1} << 28;
  char* seen_;  // its addresses as the host knows them: pages that nobody may touch
  char* real_;
  mutable std::mutex kernels_mutex_;
  mutable std::map<std::string, Kernel, std::less<>> kernels_;
  unsigned next_stream_ = 1;
  std::mutex mutex_;  // guards what follows, the queues and the events
  std::condition_variable changed_;
  int64_t next_ = 0;                   // everything below has been allocated once
  std::map<int64_t, int64_t> blocks_;  // those that live: offset, bytes
  std::string failure_;                // empty: none
  int copying_ = 0;                    // copies that are going on
  std::vector<std::string> violations_;
};

using CardSession = SessionOn<FakeCard>;

}  // namespace moonflow::toy
