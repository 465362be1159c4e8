#!/usr/bin/env bash
# The ONNX project's own tests of its operators, on flow.onnx: how many give what they should, and those that do not.
# Wants the build of tests/run.sh, and a Python with the package onnx, which carries the tests. What each of them gives
# is in build-onnx/results.
#   bash tests/onnx.sh                                all
#   PYTHON=venv/bin/python bash tests/onnx.sh resize  those with this word in their name
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cases=$PWD/build-onnx/cases results=$PWD/build-onnx/results

rm -rf "$cases"
"${PYTHON:-python3}" tests/onnx/cases.py "$cases" "${1:-}"
export OMP_NUM_THREADS=1
for folder in "$cases"/*; do # each in a process of its own, which may end badly
  build/moonflow tests/onnx/case.lua "$folder" || printf '%s\tended with status %d\n' "$(basename "$folder")" $?
done >"$results"
cut -f 2 "$results" | sort | uniq -c | sort -rn
! grep -vP '\t(passes|of other types|refused)' "$results"
