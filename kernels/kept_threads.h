// What a host has set of OpenMP for the calling thread, which the CPU device sets for its own loops.
#pragma once

namespace moonflow {

// Puts back how many threads the calling thread's loops have, and whether there may be fewer, when it goes. Cheap.
class KeptThreads {
 public:
  KeptThreads();
  ~KeptThreads();
  KeptThreads(const KeptThreads&) = delete;
  KeptThreads& operator=(const KeptThreads&) = delete;

 private:
  const int threads_, dynamic_;
};

}  // namespace moonflow
