#include "kernels/processes.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "engine/error.h"
#include "kernels/mpi/module.h"

namespace moonflow {
namespace {

class Alone : public Processes {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int local_rank() const override { return 0; }
  void exchange(const std::vector<Part>&, const std::vector<Part>&) override {}
  void give_up() override {}
  void stop() override {}
  void part() override {}
};

// What launchers tell those that they start: Open MPI, MPICH and its kin, Slurm.
bool has_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable)) return true;
  return false;
}

std::atomic<Processes*> joined{nullptr};

// Who has come to the end while others still wait for it lets them know. One that has failed need not: the launcher
// ends the others then.
void take_leave(int status, void*) {
  if (status != 0) return;
  processes().on_stopped = nullptr;  // there is nothing left that could be
  try {
    Meeting("the end of its program").hold_if_free();
  } catch (...) {  // the others say so
    processes().part();
  }
}

Processes& to_meet() {
  require(
      joined || !has_launcher(), ErrorCode::WrongState,
      "other processes were started with this one, and it has not joined them: flow.distributed.join() comes first");
  return processes();
}

const mpi::Module& module() {
  return static_cast<const mpi::Module&>(
      open_module({"MPI module", "libmoonflow_mpi.so", "MOONFLOW_MPI_MODULE", "moonflow_mpi_module",
                   mpi::kModuleVersion, "build where there is an MPI, such as Debian's libopenmpi-dev"}));
}

}  // namespace

Processes& processes() {
  static Alone& alone = *new Alone;  // what the exit of the process calls may still ask it
  Processes* const others = joined;
  return others ? *others : alone;
}

Processes& join_processes(double patience_seconds, void (*on_stopped)()) {
  static std::mutex once;
  const std::lock_guard lock(once);
  if (joined || !has_launcher()) return processes();
  Processes& others = module().join(patience_seconds);
  others.on_stopped = on_stopped;
  joined = &others;
  ::on_exit(take_leave, nullptr);  // before the module leaves
  return processes();
}

// ---- meetings ------------------------------------------------------------------------------------------------

Meeting::Meeting(const std::string& what) : processes_(to_meet()), tickets_(size()) {
  Ticket& own = tickets_[rank()];
  own.digest = std::hash<std::string>{}(what);
  constexpr size_t kMost = sizeof own.what - 1;
  constexpr std::string_view kLeftOut = " ... ";
  const size_t kept = (kMost - kLeftOut.size()) / 2;
  const std::string shown =
      what.size() <= kMost ? what : text(what.substr(0, kept), kLeftOut, what.substr(what.size() - kept));
  std::memcpy(own.what, shown.data(), shown.size());
}

void Meeting::hold_if_free() {
  const std::unique_lock turn(processes_.turn, std::try_to_lock);
  if (turn) compare();
}

void Meeting::exchange() {
  processes_.exchange(sent_, received_);
  sent_.clear();
  received_.clear();
}

void Meeting::compare() {
  Ticket& own = tickets_[rank()];
  for (int r = 0; r < size(); ++r) {
    send(r, &own, sizeof own);
    receive(r, &tickets_[r], sizeof own);
  }
  exchange();
  for (int r = 0; r < size(); ++r) {
    if (tickets_[r].digest == own.digest) continue;
    processes_.give_up();
    fail(ErrorCode::WrongState, "process ", r, " has come to ", tickets_[r].what, ", and process ", rank(),
         ", this one, to ", own.what,
         "; all of them have to make the same calls of the same jobs, in one order and with the same shapes");
  }
}

}  // namespace moonflow
