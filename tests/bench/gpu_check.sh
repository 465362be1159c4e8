#!/usr/bin/env bash
# Everything that needs a card, in less than ten minutes: what the card can do, the GPU tests, training beside the CPU,
# a small training under compute-sanitizer, and speeds beside PyTorch. No stage stops the others; the last thing printed
# is a table of them, and the exit status is 0 only if all went well. Results go to a folder; those worth keeping are
# copied to docs/results by hand.
#   bash tests/bench/gpu_check.sh [FOLDER, default build/gpu_check]
#   bash tests/bench/gpu_check.sh debs FOLDER    fetches what a bare machine lacks; on Debian 12, with a network
# In the environment:
#   MOONFLOW_BUILD          a build folder (default build); its programs are taken as they are when they start here,
#                           else all is built there
#   MOONFLOW_DEBS           a folder of Debian packages to unpack beside the system, for a machine without them
#   MOONFLOW_PYTHON         a python with PyTorch for GPUs (default python3)
#   MOONFLOW_CHECK_SECONDS  for all of it (default 585)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

if [ "${1:-}" = debs ]; then
  packages=(
    # what our programs need to run
    libdnnl2 ocl-icd-libopencl1 libgomp1 libluajit-5.1-2 libluajit-5.1-common libzip4 libbz2-1.0 libssl3 zlib1g libedit2
    libbsd0 libmd0 libtinfo6
    # and to be built
    libluajit-5.1-dev libdnnl-dev zlib1g-dev libzip-dev libxxhash-dev nlohmann-json3-dev libcli11-dev catch2
  )
  mkdir -p "${2:?gpu_check.sh debs wants a folder}" && cd "$2" || exit 1
  missing=()
  for package in "${packages[@]}"; do apt-get download "$package" >/dev/null 2>&1 || missing+=("$package"); done
  echo "$(find . -name '*.deb' | wc -l) packages, $(du -sh . | cut -f1)"
  [ ${#missing[@]} -eq 0 ] && exit
  echo "not found: ${missing[*]}" >&2
  exit 1
fi

mkdir -p "${1:-build/gpu_check}" || exit 1
export results build python work
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=$(cd "${1:-build/gpu_check}" && pwd)
build=${MOONFLOW_BUILD:-build}
python=${MOONFLOW_PYTHON:-python3}
budget=${MOONFLOW_CHECK_SECONDS:-585}
export MOONFLOW_REQUIRE_GPU=1 PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# ---- stages ---------------------------------------------------------------------------------------------------------

began=$SECONDS
bad=0
table=()
row() { table+=("$(printf '%-9s  %-7s  %5s  %s' "$@")"); }

# stage NAME SECONDS COMMAND [ARGUMENTS]: gives the command so long; what it says goes to NAME.log in logs.tar.gz, its
# last line to the table, and its last lines here when it fails.
stage() {
  local name=$1 limit=$2 start=$SECONDS status word left
  shift 2
  left=$((budget - (SECONDS - began)))
  echo "== $name"
  if [ "$left" -lt 10 ]; then
    bad=1
    row "$name" skipped "" "no time was left"
    return 1
  fi
  [ "$limit" -lt "$left" ] || limit=$left
  timeout -k 5 "$limit" bash -c '"$@"' stage "$@" >"$work/$name.log" 2>&1
  status=$?
  tar -czf "$results/logs.tar.gz" -C "$work" --exclude=prefix .
  word=$(grep -v '^[[:space:]]*$' "$work/$name.log" | tail -n 1 | cut -c1-110)
  case $status in
    0) row "$name" ok "$((SECONDS - start)) s" "$word" ;;
    124 | 137) row "$name" FAILED "$((SECONDS - start)) s" "it took longer than its $limit s" ;;
    *) row "$name" FAILED "$((SECONDS - start)) s" "$word" ;;
  esac
  if [ $status -ne 0 ]; then
    bad=1
    tail -n 15 "$work/$name.log" | cut -c1-300
  fi
  return $status
}

# ---- the machine and our programs -----------------------------------------------------------------------------------

prefix=$work/prefix
unpack() {
  local deb count=0
  rm -rf "$prefix" && mkdir -p "$prefix" || return 1
  for deb in "$MOONFLOW_DEBS"/*.deb; do
    dpkg -x "$deb" "$prefix" || return 1
    count=$((count + 1))
  done
  echo "$count packages unpacked"
}

machine() {
  local library
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
    echo "no nvidia-smi, or it finds no card"
  nproc
  $clean "$python" -c 'import torch
print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())' ||
    echo "$python has no PyTorch"
  for library in cublasLt.so.13 cudnn.so.9 nvrtc.so.13; do
    "$python" -c "import ctypes; ctypes.CDLL('lib$library')" 2>/dev/null && echo "lib$library is found" ||
      echo "lib$library is not found by the loader"
  done
  "$build/moonflow" -e 'local devices, reason = require("moonflow").config.gpu_devices()
    print(reason and "no GPU: " .. reason or devices[1].name)
    os.exit(reason and 1 or 0)'
}

programs_start() { "$build/moonflow" -e 'require "moonflow"' && "$build/gpu_tests" --version | grep -q . ; }

# A build that was brought along holds links to where its sources were.
relink() {
  local file
  [ -d "$build/lua/moonflow" ] && [ ! -e "$build/lua/moonflow/init.lua" ] || return 0
  for file in lua/moonflow/*.lua; do ln -sf "$PWD/$file" "$build/lua/moonflow/"; done
}

make() {
  if programs_start >/dev/null 2>&1; then
    echo "the programs in $build start here"
    return
  fi
  # What a bare machine has of the tests' tools does not matter here.
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DMOONFLOW_CUDA=ON -DLUACHECK=/bin/true \
    ${MOONFLOW_DEBS:+-DCMAKE_PREFIX_PATH="$prefix/usr" -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu} &&
    cmake --build "$build" --target moonflow moonflow_library moonflow_cuda gpu_tests gpu_probe gpu_kernels && programs_start
}

# ---- what is checked ------------------------------------------------------------------------------------------------

probe() {
  "$build/gpu_probe" "$results/card.json" | tee "$results/probe.jsonl"
  return "${PIPESTATUS[0]}"
}
kernels() {
  "$build/gpu_kernels" | tee "$results/kernels.jsonl"
  return "${PIPESTATUS[0]}"
}
tests() { "$build/gpu_tests" --durations yes; }
agree() { "$build/moonflow" tests/bench/gpu_agree.lua 100 gpu; }
sanitize() {
  compute-sanitizer --tool memcheck --error-exitcode 9 "$build/moonflow" tests/bench/gpu_agree.lua 3 gpu cpu mlp
}
speed() {
  "$build/moonflow" tests/bench/gpu.lua "$results" --python "$clean $python" --log "$work/peers.log" --limit 230
}
product() {
  set -o pipefail
  $clean "$python" tests/bench/torch_gpu_peer.py product | sed 's/$/ TFLOP\/s: 8192 cubed in bfloat16 by PyTorch/'
}
export -f unpack machine programs_start make probe kernels tests agree sanitize speed product
export prefix

# The libraries of the packages are for our programs; a python keeps its own.
export clean="env LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
if [ -n "${MOONFLOW_DEBS:-}" ]; then
  MOONFLOW_DEBS=$(cd "$MOONFLOW_DEBS" && pwd)
  export MOONFLOW_DEBS
  stage unpack 30 unpack
  export PKG_CONFIG_SYSROOT_DIR=$prefix
  export PKG_CONFIG_LIBDIR=$prefix/usr/lib/x86_64-linux-gnu/pkgconfig:$prefix/usr/share/pkgconfig
  export LD_LIBRARY_PATH=$prefix/usr/lib/x86_64-linux-gnu:$prefix/lib/x86_64-linux-gnu:${LD_LIBRARY_PATH:-}
  export LIBRARY_PATH=$prefix/usr/lib/x86_64-linux-gnu:${LIBRARY_PATH:-}
fi
# NVIDIA's libraries of the python, for machines that have them nowhere else.
wheels=$($clean "$python" -c '
import glob, os, site
files = [file for folder in site.getsitepackages() for file in glob.glob(folder + "/nvidia/**/lib*.so*", recursive=True)]
print(":".join(sorted({os.path.dirname(file) for file in files})))' 2>/dev/null)
[ -z "$wheels" ] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$wheels
relink

stage build 150 make
stage machine 20 machine
stage probe 30 probe
stage tests 100 tests
stage agree 60 agree
stage sanitize 40 sanitize
stage kernels 40 kernels
stage product 30 product
stage speed 260 speed

# ---- the end --------------------------------------------------------------------------------------------------------

echo
[ ! -f "$results/speed.md" ] || cat "$results/speed.md"
echo
printf '%s\n' "${table[@]}" | tee "$results/stages.txt"
echo "$((SECONDS - began)) s in all; results in $results"
exit $bad
