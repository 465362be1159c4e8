#include "engine/process_end.h"

#include <cxxabi.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include "engine/error.h"

namespace moonflow {

namespace {

// How deep one thread is in. These belong to the process, and are never freed: an exit looks at all of them.
struct Place {
  std::atomic<int> depth{0};
  std::atomic<bool> is_taken{true};
  Place* next = nullptr;
};

std::atomic<Place*> places{nullptr};
std::atomic<bool> ends{false};
thread_local Place* own = nullptr;

// Makes what other threads have written visible here, and what was written here visible to them, so that entering
// needs no fence of its own. Without the system's help they get the time in which that happens anyway.
void meet_all_threads() {
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool is_another_inside() {
  for (Place* place = places; place; place = place->next)
    if (place != own && place->depth.load(std::memory_order_acquire) > 0) return true;
  return false;
}

// Called more than once, and patient once.
void stop() {
  ends = true;
  meet_all_threads();
  static int patience_ms = 2000;  // a step that takes longer must not keep the process
  for (; is_another_inside() && patience_ms > 0; --patience_ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Of the calls below that change the list of what an exit does. That list has a lock of the C library's, which a fork
// would copy as it is: where a thread of ours held it, the child could never exit. So a fork waits for this.
std::mutex changes;

// In a fork: the other threads stayed behind.
void forget_other_threads() {
  for (Place* place = places; place; place = place->next) {
    if (place == own) continue;
    place->depth = 0;
    place->is_taken = false;
  }
}

bool prepare_process() {
  ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
  pthread_atfork([] { changes.lock(); }, [] { changes.unlock(); },
                 [] {
                   changes.unlock();
                   forget_other_threads();
                 });
  return exit_waits_from_here();
}

struct GiveBack {
  ~GiveBack() {
    if (own) own->is_taken.store(false, std::memory_order_release);
    own = nullptr;
  }
};

Place* take_place() {
  [[maybe_unused]] static const bool is_prepared = prepare_process();
  [[maybe_unused]] static thread_local GiveBack give_back;
  for (own = places; own; own = own->next) {
    bool is_taken = false;
    if (own->is_taken.compare_exchange_strong(is_taken, true)) return own;
  }
  Place* const made = new (std::nothrow) Place;
  if (!made) return nullptr;
  made->next = places;
  while (!places.compare_exchange_weak(made->next, made)) {
  }
  return own = made;
}

}  // namespace

Stay::Stay() : place_(own ? own : take_place()) {
  if (Place* const place = static_cast<Place*>(place_))
    place->depth.store(place->depth.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the fence of the processor is in meet_all_threads
  is_late_ = process_ends();
}

Stay::~Stay() {
  if (Place* const place = static_cast<Place*>(place_))
    place->depth.store(place->depth.load(std::memory_order_relaxed) - 1, std::memory_order_release);
}

void Stay::require_in_time() const {
  require(!is_late_, ErrorCode::Interrupted, "the process ends, and nothing further is begun");
}

bool process_ends() noexcept { return ends.load(std::memory_order_relaxed); }

// The first entry stays, and the second, the fourth, the eighth and so on. Any other is taken back by the next one,
// since a process may make plans for months: a list that ends with our entry has its place for that one again. An exit
// of another thread that comes just between the two stops at those that stay, behind what is newer than them.
bool exit_waits_from_here() noexcept {
  const std::lock_guard<std::mutex> changing(changes);
  static uint64_t count = 0;
  const uint64_t number = ++count;
  if ((number & (number - 1)) == 0) return std::atexit(stop) == 0;
  static char ours;
  static thread_local bool takes_back = false;
  takes_back = true;
  abi::__cxa_finalize(&ours);  // calls what it takes back
  takes_back = false;
  const auto stop_unless_taken_back = [](void*) {
    if (!takes_back) stop();
  };
  return abi::__cxa_atexit(stop_unless_taken_back, nullptr, &ours) == 0;
}

}  // namespace moonflow
