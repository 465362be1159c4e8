// The latest value that one thread leaves for another. Neither waits for the other, takes memory, or sees half of a
// value: of three places one is being written and one read, and the third lies between and is exchanged by either side
// in one atomic operation, as the weights of a PreparedCall are.
#pragma once

#include <atomic>

namespace moonflow::host {

template <class T>
class Latest {
 public:
  // The writing thread fills this, then leaves it.
  T& draft() { return places_[writing_]; }
  void leave() { writing_ = between_.exchange(writing_ | kFresh, std::memory_order_acq_rel) & ~kFresh; }
  // The reading thread's, until it asks again. What nobody has left yet is a T() like any.
  const T& read() {
    if (between_.load(std::memory_order_relaxed) & kFresh)
      reading_ = between_.exchange(reading_, std::memory_order_acq_rel) & ~kFresh;
    return places_[reading_];
  }

 private:
  static constexpr int kFresh = 1 << 2;  // beside the index of the place between: it has not been read

  T places_[3];
  int writing_ = 0;
  int reading_ = 1;
  std::atomic<int> between_{2};
};

}  // namespace moonflow::host
