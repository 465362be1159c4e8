#!/bin/sh
# Runs a compilation by nvcc, and puts what ptxas says of each kernel (its registers, its shared memory) into a file
# beside the object, where tests/kernels/cuda/budgets.txt is compared with it, instead of on the screen.
for word; do
  [ "$before" = -o ] && object=$word
  before=$word
done
ptxas='^ptxas info|bytes stack frame'
"$@" 2>"$object.said"
status=$?
grep -E "$ptxas" "$object.said" >"$object.ptxas"
grep -v -E "$ptxas" "$object.said" >&2
rm -f "$object.said"
exit $status
