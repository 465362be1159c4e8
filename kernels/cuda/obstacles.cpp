#include "kernels/cuda/obstacles.h"

#include "engine/error.h"

namespace moonflow::cuda {

bool Obstacles::blocks(const std::string& op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto question = questions_.find(op); question != questions_.end()) {
    if (std::string why = question->second(); !why.empty()) reasons_[op] = std::move(why);
    questions_.erase(question);
  }
  return reasons_.find(op) != reasons_.end();
}

std::string Obstacles::met() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string all;
  for (const auto& [op, why] : reasons_) all += text("; without ", op, ": ", why);
  return all;
}

}  // namespace moonflow::cuda
