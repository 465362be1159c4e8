// Waiting without falling asleep, for what another thread does within microseconds: to fall asleep and be woken takes
// some fifty of them.
#pragma once

#include <chrono>
#include <mutex>

namespace moonflow {

// Between two looks. A core that has two threads gives its time to the other one meanwhile. ARM's `yield` says just
// that, and does nothing on cores with one thread; to wait until its own instructions are through holds any of them up.
inline void pause_briefly() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Looks out until `seen` holds, or the patience is over. Whether it holds.
template <class Seen>
bool look_out(std::chrono::microseconds patience, const Seen& seen) {
  using Clock = std::chrono::steady_clock;
  for (const Clock::time_point end = Clock::now() + patience; !seen();) {
    if (Clock::now() > end) return false;
    pause_briefly();
  }
  return true;
}

// Of a mutex that others hold for less time than that. Whoever looks out for what another thread is about to do sees it
// while that one still holds the mutex, and would sleep each time.
class SoonLocked : public std::unique_lock<std::mutex> {
 public:
  explicit SoonLocked(std::mutex& mutex) : unique_lock(mutex, std::defer_lock) { lock_soon(); }
  void lock_soon() {
    constexpr int kLooks = 100;  // some microseconds
    for (int i = 0; i < kLooks; ++i) {
      if (try_lock()) return;
      pause_briefly();
    }
    lock();
  }
};

}  // namespace moonflow
