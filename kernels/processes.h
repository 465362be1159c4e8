// Processes that compute together: one program, started several times by mpirun or the like, each with a session of its
// own. What moves bytes between them lies in a module, libmoonflow_mpi.so, which is opened by join_processes.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace moonflow {

class Processes {
 public:
  // Memory that goes to another process, or is filled by what comes from it.
  struct Part {
    int process;
    void* data;
    int64_t bytes;
  };

  virtual ~Processes() = default;
  virtual int rank() const = 0;  // of this one, from 0
  virtual int size() const = 0;
  // Sends these parts, and waits for those: what goes from one process to another arrives in the order in which it is
  // sent. All have to call it, with parts that fit each other. One at a time.
  virtual void exchange(const std::vector<Part>& sent, const std::vector<Part>& received) = 0;

  std::mutex turn;  // of whoever exchanges something
};

// Those that this one has joined: none, so it is alone, rank 0 of 1.
Processes& processes();
// The same, for who is about to meet them: throws WrongState where a launcher has started some that were never joined.
Processes& processes_to_meet();

// Joins the processes that were started with this one, once, if it was started by a launcher; gives all of them. An
// exchange waits so long for the others, until it throws. Throws Unsupported where they cannot be joined.
Processes& join_processes(double patience_seconds);

}  // namespace moonflow
