#include "engine/completion.h"

#include <sys/eventfd.h>
#include <unistd.h>

namespace moonflow {

namespace {

void signal(int descriptor) noexcept {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable already.
  if (descriptor >= 0) [[maybe_unused]]
    const ssize_t written = ::write(descriptor, &one, sizeof one);
}

void drain(int descriptor) noexcept {
  uint64_t count;
  if (descriptor >= 0) [[maybe_unused]]
    const ssize_t read = ::read(descriptor, &count, sizeof count);
}

}  // namespace

CompletionQueue::~CompletionQueue() {
  while (head_) head_ = std::move(head_->next);  // one by one: a long list must not be freed by recursion
  if (descriptor_ >= 0) ::close(descriptor_);
}

void CompletionQueue::post(std::unique_ptr<Run> run) noexcept {
  {
    const SoonLocked lock(mutex_);
    Run* const posted = run.get();
    (tail_ ? tail_->next : head_) = std::move(run);
    tail_ = posted;
    last_posted_.store(posted->id, std::memory_order_release);
    add_ready();
  }
  posted_.notify_one();
}

void CompletionQueue::announce() {
  if (announced_) return;
  announced_ = true;
  const std::lock_guard<std::mutex> lock(mutex_);
  add_ready();
}

void CompletionQueue::add_ready() {
  if (ready_.fetch_add(1, std::memory_order_release) == 0) signal(descriptor_);
}

void CompletionQueue::take_ready() {
  if (ready_.fetch_sub(1, std::memory_order_acq_rel) == 1) drain(descriptor_);
}

Completion* CompletionQueue::front() {
  if (has_front_) return &front_;
  if (!pulling_) {
    if (empty()) return nullptr;
    const SoonLocked lock(mutex_);
    if (announced_) {
      announced_ = false;
      take_ready();
    }
    if (!head_) return nullptr;
    pulling_ = std::move(head_);
    head_ = std::move(pulling_->next);
    if (!head_) tail_ = nullptr;
  }
  has_front_ = true;
  front_.run = pulling_->id;
  front_.sequence = ++sequence_;
  while (pulling_->delivered < pulling_->tapped.size()) {
    const size_t tap = pulling_->delivered++;
    if (!pulling_->tapped[tap]) continue;
    front_.token = pulling_->plan->taps[tap].token;
    front_.tensor = std::move(pulling_->tapped[tap]);
    return &front_;
  }
  front_.token = 0;
  front_.end = true;
  front_.error = std::move(pulling_->error);
  return &front_;
}

void CompletionQueue::pop() {
  has_front_ = false;
  front_.tensor = Tensor();
  if (!front_.end) return;
  front_.end = false;
  front_.error.reset();
  --pulling_->plan->in_flight;
  pulling_.reset();
  const SoonLocked lock(mutex_);
  take_ready();
}

bool CompletionQueue::wait(double timeout_ms) {
  if (!empty()) return true;
  if (timeout_ms != 0 && look_out(patience, [&] { return !empty(); })) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  return wait_for(posted_, lock, timeout_ms, [&] { return !empty(); });
}

int CompletionQueue::descriptor() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (descriptor_ < 0) {
    descriptor_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!empty()) signal(descriptor_);
  }
  return descriptor_;
}

}  // namespace moonflow
