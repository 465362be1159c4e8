#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. Arguments go to ctest: `bash tests/run.sh -R checkpoint`.
# The CUDA module is built where there is a CUDA toolkit; MOONFLOW_CUDA=ON in the environment insists on one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash .ci/setup
cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release -DMOONFLOW_CUDA="${MOONFLOW_CUDA:-AUTO}" -DMOONFLOW_MPI=ON
cmake --build build
export OMP_WAIT_POLICY=passive  # tests run side by side, so a waiting thread gives its core away
ctest --test-dir build --output-on-failure -j "$(nproc)" "$@"
