#!/usr/bin/env bash
# Plays samples/love with a real mouse and keyboard on the X screen at hand, and leaves in the folder OUT what was to be
# seen: digit.json and .png while a digit is read, policy.json and .png, began.json from before, and exit.txt with the
# exit code and the milliseconds that leaving took. The caller bounds the time.
# usage: love_drive.sh GAME OUT
set -euo pipefail
game=$1 out=$2
export XDG_DATA_HOME=$out/home
saved=$XDG_DATA_HOME/love/moonflow

love "$game" &
pid=$!
trap 'kill -9 $pid 2>/dev/null || true' EXIT

alive() { kill -0 $pid || { echo "the game has ended early" >&2; exit 1; }; }

window=
until [ -n "$window" ]; do
  alive
  sleep 0.1
  window=$(xdotool search --pid $pid --name '^Moonflow$' 2>/dev/null | head -n1 || true)
done
xdotool windowfocus --sync "$window"

# Asks for the state and the picture, under this name.
request() {
  rm -f "$saved/state.json" "$saved/screenshot.png"
  xdotool key F12
  until [ -s "$saved/state.json" ] && [ -s "$saved/screenshot.png" ]; do alive; sleep 0.05; done
  sleep 0.1
  mv "$saved/state.json" "$out/$1.json"
  mv "$saved/screenshot.png" "$out/$1.png"
}

# Asks until a number of the state is at least so great.
until_at_least() {
  while :; do
    request "$1"
    value=$(sed -n "s/.*\"$2\": \([0-9.e+-]*\).*/\1/p" "$out/$1.json")
    if [ -n "$value" ] && awk "BEGIN { exit !($value >= $3) }"; then break; fi
    sleep 0.3
  done
}

# One stroke through the points x,y.
stroke() {
  local first=1 point
  for point in "$@"; do
    xdotool mousemove --window "$window" "${point%,*}" "${point#*,}"
    [ $first = 0 ] || xdotool mousedown 1
    first=0
    sleep 0.04
  done
  xdotool mouseup 1
}

# The first answers come before anything is learned.
request began
# The upper and the lower half of a 3.
stroke 180,175 215,150 265,152 295,180 290,220 262,248 232,256
stroke 232,256 275,266 305,300 300,350 262,386 210,390 170,368
until_at_least digit accuracy 0.9

xdotool key Tab
until_at_least policy updates 12

# Back, and away in the middle of training.
xdotool key Tab
steps=$(sed -n 's/.*"steps": \([0-9]*\).*/\1/p' "$out/digit.json")
until_at_least again steps $((steps + 5))
begin=$(date +%s%N)
xdotool key Escape
code=0
wait $pid || code=$?
echo "$code $((($(date +%s%N) - begin) / 1000000))" >"$out/exit.txt"
