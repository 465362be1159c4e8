#!/usr/bin/env bash
# Ten minutes of the robot at 1 kHz beside its training; prints the histogram of its jitter, and fails if its control
# thread saw a page fault, a call of the heap or a wait, or if the pole falls at the end. As root it gets SCHED_FIFO.
# usage: bash tests/bench/robot.sh [seconds, default 600]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build --target robot -- --quiet
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "load of the machine: $(cut -d' ' -f1 /proc/loadavg) before, $(nproc) cores"
build/samples/robot/robot --seconds "${1:-600}"
echo "load of the machine: $(cut -d' ' -f1 /proc/loadavg) after"
