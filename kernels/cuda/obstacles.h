// Kernels that a device has, and yet cannot use on this machine: to its graphs they are not there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/cuda/device.h"

namespace moonflow::cuda {

// Any thread may ask.
class Obstacles {
 public:
  // By op: says why its kernel cannot be used, or nothing. It is asked once, when a graph could first make use of the
  // kernel, since to find out may take milliseconds.
  using Questions = std::map<std::string, std::function<std::string()>, std::less<>>;

  explicit Obstacles(Questions questions) : questions_(std::move(questions)) {}
  bool blocks(const std::string& op);
  std::string met() const;  // so far: "; without OP: WHY" of each

 private:
  mutable std::mutex mutex_;
  Questions questions_;                                      // those not asked yet
  std::map<std::string, std::string, std::less<>> reasons_;  // of what is blocked
};

std::unique_ptr<Device> make_device(std::unique_ptr<Runtime> runtime, Kernels kernels, Obstacles::Questions questions);

}  // namespace moonflow::cuda
