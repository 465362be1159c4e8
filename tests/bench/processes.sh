#!/usr/bin/env bash
# Measures how training scales over processes of one thread each on this machine: a step of LeNet's training in one
# process and in several, in turn, each with a batch of its own; then how fast they reduce values. Not a test: run it
# alone on a quiet machine, with no more processes than it has cores.
# usage: bash tests/bench/processes.sh [processes, default 2] [rounds, default 5]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
processes=${1:-2} rounds=${2:-5}

cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release -DMOONFLOW_MPI=ON >/dev/null
cmake --build build --target moonflow moonflow_library moonflow_mpi -- --quiet

export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# started COUNT [word]
started() {
  mpirun --oversubscribe --bind-to none -n "$1" build/moonflow tests/bench/processes.lua "${@:2}"
}

grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "load of the machine before: $(cut -d' ' -f1 /proc/loadavg) (well above 0: others ran too, repeat it)"
for ((round = 1; round <= rounds; ++round)); do
  alone=$(started 1)
  together=$(started "$processes")
  awk -v a="$alone" -v b="$together" -v n="$processes" 'BEGIN {
    printf "LeNet, batch 100 a process: alone %.1f ms, %d together %.1f ms, efficiency %.2f\n", a, n, b, a / b }'
done
started "$processes" reduce
