// Triple buffering: of three places of a value one is being written and one read, and the third lies between and is
// exchanged by either side in one atomic operation. So neither thread waits for the other, or sees half of a value.
#pragma once

#include <atomic>

namespace moonflow {

class TripleBuffer {
 public:
  static constexpr int kPlaces = 3;

  // The writing thread fills this place, then leaves it.
  int writing() const { return writing_; }
  void leave() { writing_ = between_.exchange(writing_ | kFresh, std::memory_order_acq_rel) & ~kFresh; }

  // The reading thread's, until it takes the latest. True when that is newer.
  int reading() const { return reading_; }
  bool take() {
    if (!(between_.load(std::memory_order_relaxed) & kFresh)) return false;
    reading_ = between_.exchange(reading_, std::memory_order_acq_rel) & ~kFresh;
    return true;
  }

 private:
  static constexpr int kFresh = 1 << 2;  // beside the index of the place between: it has not been read

  int reading_ = 0;
  int writing_ = 1;
  std::atomic<int> between_{2};
};

}  // namespace moonflow
