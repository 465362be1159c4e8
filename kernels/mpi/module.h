// The door of the MPI module: the one symbol it shows, and the table behind it.
#pragma once

#include <cstdint>

#include "kernels/processes.h"
#include "kernels/run_time_module.h"

namespace moonflow::mpi {

constexpr uint32_t kModuleVersion = 3;  // of the table below

struct Module : ModuleHead {
  // All processes of MPI's world. Called once; what it gives lasts as long as this process.
  Processes& (*join)(double patience_seconds);
};

}  // namespace moonflow::mpi

// The name that the core looks for.
extern "C" __attribute__((visibility("default"))) const moonflow::mpi::Module* moonflow_mpi_module();
