#!/usr/bin/env bash
# From a bare Debian or Ubuntu to a trained network: installs what is missing, builds, trains LeNet, saves it, and tests
# it in a second process. usage: bash samples/quickstart.sh [epochs]    (default 3)
set -euo pipefail
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash .ci/setup
cmake -G Ninja -S . -B build -DCMAKE_BUILD_TYPE=Release >/dev/null
cmake --build build --target moonflow moonflow_library
moonflow=$PWD/build/moonflow
samples=$PWD/samples

cd "$here"
"$moonflow" "$samples/lenet_train.lua" "${1:-3}"
"$moonflow" "$samples/lenet_eval.lua"
