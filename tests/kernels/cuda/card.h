// A simulated card with a stream, and typed memory on it.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/simulated/device.h"

namespace moonflow::cuda {

struct Card {
  explicit Card(uint64_t seed = 1, int64_t memory_bytes = int64_t{1} << 30)
      : device(make_simulated_device({seed, memory_bytes})), stream(device->make_stream()) {}
  simulated::SimulatedRuntime& runtime() { return simulated_runtime(*device); }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

template <class T>
class Memory {
 public:
  Memory(Card& card, const std::vector<T>& values)
      : card_(card), count_(values.size()), buffer_(*card.device, bytes()) {
    card.device->copy(*card.stream, buffer_.data(), values.data(), bytes());
    card.stream->wait();
  }
  T* data() const { return static_cast<T*>(buffer_.data()); }
  int64_t bytes() const { return static_cast<int64_t>(count_ * sizeof(T)); }
  Range range() const { return {data(), bytes()}; }
  // Once the card's stream is done.
  std::vector<T> read() const {
    std::vector<T> values(count_);
    card_.device->copy(*card_.stream, values.data(), data(), bytes());
    card_.stream->wait();
    return values;
  }

 private:
  Card& card_;
  size_t count_;
  Buffer buffer_;
};

// Whether `work` ends the process, as a touch of memory out of reach does. It runs in a child.
template <class Work>
bool ends_process(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);  // AddressSanitizer's report
#if !defined(__SANITIZE_ADDRESS__)
    std::signal(SIGSEGV, SIG_DFL);
#endif
    work();
    _exit(0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && (WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

}  // namespace moonflow::cuda
