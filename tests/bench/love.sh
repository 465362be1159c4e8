#!/usr/bin/env bash
# Measures what training in the background costs the frames of samples/love, on a screen in memory with software OpenGL,
# which takes the same cores. Not a test: run it alone on a quiet machine.
# usage: bash tests/bench/love.sh [seconds per phase, default 10] [pairs of phases, default 3]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build --target moonflow_library -- --quiet

export MOONFLOW_SOURCE=$PWD
export LUA_PATH="$PWD/build/lua/?.lua;$PWD/build/lua/?/init.lua;;" LUA_CPATH="$PWD/build/lua/?.so;;"
grep -m1 'model name' /proc/cpuinfo | sed 's/.*: /machine: /'
echo "load of the machine before: $(cut -d' ' -f1 /proc/loadavg) (well above 0: others ran too, repeat it)"
xvfb-run -a -s '-screen 0 1280x800x24' love tests/bench/love "${1:-10}" "${2:-3}"
