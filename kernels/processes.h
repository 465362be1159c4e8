// Processes that compute together: one program, started several times by mpirun or the like, each with a session of its
// own. What moves bytes between them lies in a module, libmoonflow_mpi.so, which is opened by join_processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
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
  virtual int local_rank() const = 0;  // among those on its machine
  // Sends these parts, and waits for those: what goes from one process to another arrives in the order in which it is
  // sent. All have to call it, with parts that fit each other. One at a time.
  virtual void exchange(const std::vector<Part>& sent, const std::vector<Part>& received) = 0;
  // They have lost each other: nothing is exchanged any more, and this process ends without taking leave of the others.
  virtual void give_up() = 0;
  // This process has been stopped from outside. The others are told, and exchange nothing with it any more: an exchange
  // that would need it throws Interrupted, and calls on_stopped before.
  virtual void stop() = 0;
  // Where one has been stopped: waits until all have been, and have come here. A launcher ends all with the first that
  // ends so, also one that still saves something. It waits for seconds where one is silent, and with the patience of
  // an exchange where all have stopped.
  virtual void part() = 0;

  std::mutex turn;  // of whoever exchanges something
  std::atomic<void (*)()> on_stopped{nullptr};
};

// Those that this one has joined: none, so it is alone, rank 0 of 1.
Processes& processes();

// Joins the processes that were started with this one, once, if it was started by a launcher; gives all of them. An
// exchange waits so long for the others, until it throws. Where another one has been stopped `on_stopped` is called, on
// the thread that would have exchanged something with it. Throws Unsupported where they cannot be joined.
Processes& join_processes(double patience_seconds, void (*on_stopped)() = nullptr);

// What all processes come to at once, such as an op of a job. They tell each other first what that is, so that those
// which went different ways say so in place of waiting for each other.
class Meeting {
 public:
  // Throws WrongState where a launcher has started processes that were never joined.
  explicit Meeting(const std::string& what);

  int rank() const { return processes_.rank(); }
  int size() const { return processes_.size(); }

  // `work` may exchange what it likes with the others. Throws WrongState where they have come to something else.
  template <class Work>
  void hold(const Work& work) {
    const std::lock_guard turn(processes_.turn);
    compare();
    work();
  }
  // Without work, and not where this process is in another one.
  void hold_if_free();

  // What the next exchange sends to process r, and receives from it; nothing is where that is this one.
  void send(int r, const void* data, int64_t bytes) {
    if (r != rank()) sent_.push_back({r, const_cast<void*>(data), bytes});
  }
  void receive(int r, void* data, int64_t bytes) {
    if (r != rank()) received_.push_back({r, data, bytes});
  }
  void exchange();

 private:
  struct Ticket {
    uint64_t digest = 0;
    char what[240] = {};  // where it is longer, its beginning and its end
  };

  void compare();

  Processes& processes_;
  std::vector<Processes::Part> sent_, received_;
  std::vector<Ticket> tickets_;
};

}  // namespace moonflow
