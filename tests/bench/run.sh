#!/usr/bin/env bash
# Measures training and prediction, and the overhead of calls, watches and callbacks, as seen from Lua; beside PyTorch
# where python3 has it: same models, same data, same number of threads, rounds taken in turn. Prints a table of medians,
# with the spread of the rounds. Not a test: run it alone on a quiet machine.
# usage: bash tests/bench/run.sh [rounds, default 5] [threads, default all cores] [seconds per measurement, default 1]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
rounds=${1:-5} threads=${2:-$(nproc)} seconds=${3:-1}

cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build --target moonflow -- --quiet
moonflow=build/moonflow

# As many cores as threads for both. Ours runs as a user runs it; the peer gets the best setting that is known for it.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE  # OpenBLAS knows its own machine
export OMP_NUM_THREADS=$threads
alone=(taskset -c "0-$((threads - 1))")

python=
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -c 'import torch' 2>/dev/null; then python=$candidate; break; fi
done
blas=none
if [ -n "$python" ]; then
  # PyTorch takes whatever libblas.so.3 there is, and Debian's default is the slow reference. OpenBLAS on OpenMP shares
  # PyTorch's own threads; where it is not installed it is only unpacked.
  openblas=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -dumpmachine)/openblas-openmp
  if [ -d "/$openblas" ]; then
    openblas=/$openblas
  else
    if [ ! -d "build/openblas/$openblas" ]; then
      mkdir -p build/openblas
      (cd build/openblas && apt-get download libopenblas0-openmp && dpkg -x libopenblas0-openmp_*.deb .) \
        >/dev/null 2>&1 || true
    fi
    openblas=$PWD/build/openblas/$openblas
  fi
  # Memory is kept by malloc instead of given back to the system, and threads stay on their cores.
  tuned=(env LD_LIBRARY_PATH="$openblas" OMP_PROC_BIND=close MALLOC_MMAP_THRESHOLD_=4000000000
    MALLOC_TRIM_THRESHOLD_=8000000000 MALLOC_TOP_PAD_=268435456)
  if "${tuned[@]}" "$python" -c 'import torch; exit("openblas" not in open("/proc/self/maps").read())'; then
    blas="OpenBLAS on OpenMP"
  else
    blas="NOT OpenBLAS, so its training figures say little"
  fi
else
  echo "no PyTorch: Moonflow alone" >&2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$moonflow" tests/bench/bench.lua data "$work"

for round in $(seq "$rounds"); do
  echo "round $round of $rounds" >&2
  ours() { "${alone[@]}" "$moonflow" tests/bench/bench.lua measure "$work" "$seconds" >>"$work/ours.tsv"; }
  peer() {
    [ -z "$python" ] || "${alone[@]}" "${tuned[@]}" "$python" tests/bench/torch_peer.py "$work" "$seconds" "$threads" \
      >>"$work/peer.tsv"
  }
  if [ $((round % 2)) -eq 1 ]; then ours; peer; else peer; ours; fi  # so that a drift of the machine favours nobody
done

grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "threads: $threads, rounds: $rounds, seconds per measurement: $seconds; BLAS of PyTorch: $blas"
echo "load of the machine: $(cut -d' ' -f1 /proc/loadavg) (well above the threads: others ran too, repeat it)"
touch "$work/peer.tsv"
"$moonflow" tests/bench/summary.lua "$work/ours.tsv" "$work/peer.tsv"
