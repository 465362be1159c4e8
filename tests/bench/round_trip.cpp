// Prints how many nanoseconds a cache line takes from core 0 to core 1 and back. The cores of a virtual machine may be
// neighbours or lie in far parts of the processor, and change while it runs: two threads work as fast as that allows.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

namespace {

constexpr int kRoundTrips = 20'000;  // some milliseconds

alignas(128) std::atomic<int> turn{0};

bool stay_on(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  return pthread_setaffinity_np(pthread_self(), sizeof cores, &cores) == 0;
}

void wait_for(int value) {
  while (turn.load(std::memory_order_acquire) != value) {
  }
}

}  // namespace

int main() {
  std::atomic<bool> apart{true};
  std::thread other([&] {
    if (!stay_on(1)) apart = false;
    for (int i = 0; i < kRoundTrips; ++i) {
      wait_for(2 * i + 1);
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  if (!stay_on(0)) apart = false;
  std::chrono::steady_clock::time_point start;
  for (int i = 0; i < kRoundTrips; ++i) {
    if (i == kRoundTrips / 2) start = std::chrono::steady_clock::now();  // both are awake
    turn.store(2 * i + 1, std::memory_order_release);
    wait_for(2 * i + 2);
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  other.join();
  if (!apart) return 1;
  std::printf("%.0f\n", spent.count() / (kRoundTrips / 2));
}
