#!/usr/bin/env bash
# Measures Moonflow beside PyTorch and ONNX Runtime on the CPU: same models, same data sizes, same number of threads, in
# turn. Prints tables of medians with the spread of the rounds, and writes docs/results/cpu.md when all was measured.
# Not a test: run it alone on a quiet machine.
#   bash tests/bench/run.sh [--only TEXT] [--threads 1,2] [--rounds 5] [--seconds 1] [--ours] [--ops] [--page FILE]
#   --only TEXT   only rows in whose name a word begins with TEXT, in any case; writes no page unless --page is given
#   --ours        without the peers
#   --ops         single ops in place of whole nets, predicting and training; writes no page unless --page is given
# Peers are taken from the pythons that MOONFLOW_BENCH_PYTHON names ("/usr/bin/python3 my/venv/bin/python"; default:
# python3 of the path and of the system), each with whatever it has of PyTorch and ONNX Runtime; the best of all counts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build --target moonflow round_trip -- --quiet

# Debian's PyTorch takes whatever libblas.so.3 there is, and the default is the slow reference. OpenBLAS on OpenMP shares
# PyTorch's own threads; where it is not installed it is only unpacked.
folder=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -dumpmachine)/openblas-openmp
if [ ! -d "/$folder" ] && [ ! -d "build/openblas/$folder" ]; then
  mkdir -p build/openblas
  (cd build/openblas && apt-get download libopenblas0-openmp && dpkg -x libopenblas0-openmp_*.deb .) >/dev/null 2>&1 ||
    echo "no OpenBLAS on OpenMP: a PyTorch without a BLAS of its own is slow" >&2
fi
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE  # OpenBLAS knows its own machine
export MOONFLOW_BENCH_BLAS=/$folder:$PWD/build/openblas/$folder

exec build/moonflow tests/bench/run.lua "$@"
