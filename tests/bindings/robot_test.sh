#!/usr/bin/env bash
# The robot learns for 20 seconds, beside its control loop, and its script is changed once and broken once meanwhile.
# The program itself asserts the rest: nothing disturbs the control thread, and the pole stays up at the end.
# usage: robot_test.sh ROBOT POLICY.lua FOLDER
set -euo pipefail
robot=$1 policy=$2 folder=$3
mkdir -p "$folder"
cp "$policy" "$folder/policy.lua"
out=$folder/out.txt
: >"$out"  # the robot may begin after what an earlier one has said was read
"$robot" --seconds 20 --policy "$folder/policy.lua" >"$out" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null || true' EXIT

# await TEXT: until the robot has printed it; a robot that has ended first has failed.
await() {
  until grep -q "$1" "$out"; do
    kill -0 "$pid" 2>/dev/null || { cat "$out"; echo "ended before it printed: $1"; exit 1; }
    sleep 0.1
  done
}
# As editors do it: a new file takes the place of the old one.
change() {
  sed "$1" "$policy" >"$folder/policy.new"
  mv "$folder/policy.new" "$folder/policy.lua"
}

await "round 10:"
change 's/^local DISCOUNT = .*/local DISCOUNT = = 1/'
await "waiting for a change of"
change 's/^local DISCOUNT = .*/local DISCOUNT = 0.97/'
await "weights kept"
code=0
wait "$pid" || code=$?
cat "$out"
grep -q "policies taken over 1" "$out" || { echo "the control thread has not taken the new policy"; exit 1; }
exit "$code"
