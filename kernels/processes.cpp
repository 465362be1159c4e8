#include "kernels/processes.h"

#include <atomic>
#include <cstdlib>

#include "engine/error.h"
#include "kernels/mpi/module.h"

namespace moonflow {
namespace {

class Alone : public Processes {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void exchange(const std::vector<Part>&, const std::vector<Part>&) override {}
};

// What launchers tell those that they start: Open MPI, MPICH and its kin, Slurm.
bool has_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable)) return true;
  return false;
}

std::atomic<Processes*> joined{nullptr};

}  // namespace

Processes& processes() {
  static Alone alone;
  Processes* const others = joined;
  return others ? *others : alone;
}

Processes& processes_to_meet() {
  require(
      joined || !has_launcher(), ErrorCode::WrongState,
      "other processes were started with this one, and it has not joined them: flow.distributed.join() comes first");
  return processes();
}

Processes& join_processes(double patience_seconds) {
  static std::mutex once;
  const std::lock_guard lock(once);
  if (joined || !has_launcher()) return processes();
  const auto& module = static_cast<const mpi::Module&>(
      open_module({"MPI module", "libmoonflow_mpi.so", "MOONFLOW_MPI_MODULE", "moonflow_mpi_module",
                   mpi::kModuleVersion, "build where there is an MPI, such as Debian's libopenmpi-dev"}));
  joined = &module.join(patience_seconds);
  return processes();
}

}  // namespace moonflow
