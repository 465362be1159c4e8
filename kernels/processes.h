// Processes that compute together: one program, started several times by mpirun or the like, each with a session of its
// own. What moves bytes between them lies in a module, libmoonflow_mpi.so, which is opened by join_processes.
#pragma once

#include <cstdint>
#include <mutex>

namespace moonflow {

class Processes {
 public:
  // Memory that is sent, or filled by what comes.
  struct Part {
    void* data;
    int64_t bytes;
  };

  virtual ~Processes() = default;
  virtual int rank() const = 0;  // of this one, from 0
  virtual int size() const = 0;
  // Sends to[r] to each other process r, and waits for from[r] of each: both have a part for every process, of which
  // the own one is left out, and may be of no bytes. All have to call it, with parts of the same sizes. One at a time.
  virtual void exchange(const Part* to, const Part* from) = 0;

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
