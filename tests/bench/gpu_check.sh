#!/usr/bin/env bash
# Everything that needs a card, in less than ten minutes: what the card can do, the GPU tests, the Lua specs, training
# and random networks beside the CPU, a small training and every op under compute-sanitizer, and speeds beside PyTorch.
# No stage stops the others; the last thing printed is a table of them, and the exit status is 0 only if all went well.
# Results go to a folder; those worth keeping are copied to docs/results by hand.
#   bash tests/bench/gpu_check.sh [FOLDER, default build/gpu_check]
#   bash tests/bench/gpu_check.sh pack FOLDER    puts there what a bare machine lacks: our programs, stripped, and
#                                                Debian's packages for them; on Debian 12, with a network
# In the environment:
#   MOONFLOW_CHECK_STAGES   which of the stages below, by name (default all but "plans" and "large")
#   MOONFLOW_CHECK_SECONDS  for all of it (default 585)
#   MOONFLOW_CHECK_SIMULATED=1  rehearses on the simulated card, in a build where there is one: the same stages with
#                           fewer steps, and the speeds of nothing. Each stage says what it ran on.
#   MOONFLOW_PACK           a folder that `pack` has made: its programs are taken where they start, else all is built
#                           there beside its packages, which are unpacked beside the system
#   MOONFLOW_BUILD          a build folder otherwise (default build); its programs are taken as they are when they start
#   MOONFLOW_PYTHON         a python with PyTorch for GPUs (default python3)
#
# A first hour on a card that is lent for half an hour, to machines that are bare each time and take a minute or two to
# start. Before: configure with -DMOONFLOW_CUDA=ON, `gpu_check.sh pack build-card` (which builds; the folder is ignored,
# and is to be carried: some 30 MB), and a rehearsal with that. Then, each as one command with OUT the folder that comes
# back:
#   1. six minutes. Is it right? MOONFLOW_PACK=build-card MOONFLOW_CHECK_SECONDS=420 \
#      MOONFLOW_CHECK_STAGES="machine probe tests lua agree networks sanitize kernels" \
#      bash tests/bench/gpu_check.sh $OUT
#      Read stages.txt, then `tests` and `agree` in logs.tar.gz: every test, and where the oracle fails every op, ran in
#      a process of its own, so each failure stands for itself. Mend and pack again, with nothing held meanwhile.
#   2. ten minutes. How fast? The same with MOONFLOW_CHECK_STAGES="machine tests agree product speed", and no
#      MOONFLOW_CHECK_SECONDS. Its page is speed.md. card.json describes the card as tests/kernels/cuda/h100.json does.
#   3. seven minutes. The same with MOONFLOW_CHECK_STAGES="machine large": ResNet-50 beside PyTorch compiled.
# With MOONFLOW_CUDA_GRAPH=0 nothing is recorded and each step is waited for: the step that fails is the one blamed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

packages=(
  # what our programs need to run
  libdnnl2 ocl-icd-libopencl1 libgomp1 libluajit-5.1-2 libluajit-5.1-common libzip4 libbz2-1.0 libssl3 zlib1g libedit2
  libbsd0 libmd0 libpng16-16 libturbojpeg0 libtinfo6
  # the Lua specs
  lua-busted lua-cliargs lua-dkjson lua-filesystem lua-luassert lua-mediator lua-penlight lua-say lua-system lua-term
  # and to be built
  libluajit-5.1-dev libdnnl-dev zlib1g-dev libpng-dev libturbojpeg0-dev libzip-dev libxxhash-dev nlohmann-json3-dev
  libcli11-dev catch2 libedit-dev libbsd-dev libmd-dev libncurses-dev pkgconf-bin libpkgconf3
)
programs="moonflow gpu_tests gpu_probe gpu_kernels gpu_plans"
# Modules as they should not be, which a spec opens.
odd_modules="module_good module_another_version module_another_build module_with_undefined_symbol"
targets="$programs moonflow_library moonflow_cuda $odd_modules"
export programs targets

build=${MOONFLOW_BUILD:-build}
if [ "${1:-}" = pack ]; then
  to=${2:?gpu_check.sh pack wants a folder}
  # Scripts and programs of two states of the sources would fail on the card.
  # shellcheck disable=SC2086
  cmake --build "$build" --target $targets || exit 1
  stripped=$(mktemp -d)
  trap 'rm -rf "$stripped"' EXIT
  mkdir -p "$stripped/lua/moonflow" "$stripped/tests/kernels/cuda" "$to/debs" &&
    ln -s ../../libmoonflow.so "$stripped/lua/moonflow/core.so" || exit 1
  for file in $programs; do strip -o "$stripped/$file" "$build/$file" || exit 1; done
  # The libraries, and the links that lead to them.
  for file in "$build"/libmoonflow.so* "$build/libmoonflow_cuda.so"; do
    if [ -L "$file" ]; then cp -P "$file" "$stripped/"; else strip -o "$stripped/${file##*/}" "$file"; fi || exit 1
  done
  cp -r lua/moonflow "$stripped/lua/" || exit 1
  for file in $odd_modules; do cp "$build/tests/kernels/cuda/$file.so" "$stripped/tests/kernels/cuda/" || exit 1; done
  tar -czf "$to/programs.tar.gz" -C "$stripped" . || exit 1
  missing=()
  for package in "${packages[@]}"; do
    compgen -G "$to/debs/${package}_*.deb" >/dev/null ||
      (cd "$to/debs" && apt-get download "$package" >/dev/null 2>&1) || missing+=("$package")
  done
  echo "$(find "$to/debs" -name '*.deb' | wc -l) packages, $(du -sh "$to" | cut -f1) in all"
  [ ${#missing[@]} -eq 0 ] && exit
  echo "not found: ${missing[*]}" >&2
  exit 1
fi

mkdir -p "${1:-build/gpu_check}" || exit 1
export results build python work simulated debs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=$(cd "${1:-build/gpu_check}" && pwd)
python=${MOONFLOW_PYTHON:-python3}
budget=${MOONFLOW_CHECK_SECONDS:-585}
simulated=${MOONFLOW_CHECK_SIMULATED:-}
wanted=${MOONFLOW_CHECK_STAGES:-machine probe tests lua agree networks sanitize kernels product speed}
debs=
if [ -n "$simulated" ]; then simulated=$(realpath "$build/libmoonflow_cuda_simulated.so") || exit 1; fi
if [ -n "${MOONFLOW_PACK:-}" ]; then
  debs=$(cd "$MOONFLOW_PACK/debs" && pwd) || exit 1
  build=$work/build
  mkdir "$build" && tar -xzf "$MOONFLOW_PACK/programs.tar.gz" -C "$build" || exit 1
fi
export MOONFLOW_REQUIRE_GPU=1 PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
[ -z "$simulated" ] || export MOONFLOW_CUDA_MODULE=$simulated

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
  export until=$(($(date +%s) + limit - 3))
  timeout -k 5 "$limit" bash -c '"$@"' stage "$@" >"$work/$name.log" 2>&1
  status=$?
  tar -czf "$results/logs.tar.gz" -C "$work" --exclude=./prefix --exclude=./build --exclude=./alone --exclude=./specs .
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
  printf '%s\n' "${table[@]}" >"$results/stages.txt"
  return $status
}
# The same, where it is wanted.
wanted() { case " $wanted " in *" $1 "*) stage "$@" ;; esac; }

# ---- the machine and our programs -----------------------------------------------------------------------------------

prefix=$work/prefix
unpack() {
  local deb count=0
  rm -rf "$prefix" && mkdir -p "$prefix" || return 1
  for deb in "$debs"/*.deb; do
    dpkg -x "$deb" "$prefix" || return 1
    count=$((count + 1))
  done
  echo "$count packages unpacked"
}

machine() {
  local library
  [ -z "$simulated" ] || echo "a rehearsal on the simulated card"
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader ||
    echo "no nvidia-smi, or it finds no card"
  nproc
  env | grep -E '^(CUBLAS|CUDA|CUDNN|MOONFLOW|NVIDIA|TORCH)' | sort
  "$python" -c 'import torch
print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())' ||
    echo "$python has no PyTorch"
  for library in cublasLt.so.13 cudnn.so.9 nvrtc.so.13; do
    $ours "$python" -c "import ctypes; ctypes.CDLL('lib$library')" && echo "lib$library is found" ||
      echo "lib$library is not found by the loader"
  done
  $ours "$build/moonflow" -e 'local devices, reason = require("moonflow").config.gpu_devices()
    print(reason and "no GPU: " .. reason or devices[1].name)
    os.exit(reason and 1 or 0)'
}

programs_start() {
  local program said
  for program in $programs libmoonflow_cuda.so; do
    said=$($ours ldd "$build/$program") || return 1
    ! grep 'not found' <<<"$said" || return 1
  done
  $ours "$build/moonflow" -e 'require "moonflow"'
}

# What a bare machine has of the tests' tools does not matter here, nor what its compiler warns of. The linker finds
# what the packages' libraries need by -rpath-link, and cuDNN's headers may be those of the python's packages.
make() {
  local headers
  if programs_start; then
    echo "the programs in $build start here"
    return
  fi
  [ -z "$debs" ] || rm -rf "$build"
  headers=$("$python" -c '
import glob, site
print(";".join(file for folder in site.getsitepackages() for file in glob.glob(folder + "/nvidia/cudnn/include")))')
  if [ -n "$debs" ]; then
    export PKG_CONFIG_SYSROOT_DIR=$prefix
    export PKG_CONFIG_LIBDIR=$prefix/usr/lib/x86_64-linux-gnu/pkgconfig:$prefix/usr/share/pkgconfig
    export LIBRARY_PATH=$prefix/usr/lib/x86_64-linux-gnu CPATH=$prefix/usr/include
    if ! type -P pkg-config; then
      mkdir -p "$work/bin" && printf '#!/bin/sh\n%s %s "$@"\n' "$ours" "$prefix/usr/bin/pkgconf" >"$work/bin/pkg-config"
      chmod +x "$work/bin/pkg-config" && PATH=$PATH:$work/bin
    fi
    export LDFLAGS="-Wl,-rpath-link,$prefix/usr/lib/x86_64-linux-gnu -Wl,-rpath-link,$prefix/lib/x86_64-linux-gnu"
  fi
  # shellcheck disable=SC2086
  cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DMOONFLOW_CUDA=ON -DMOONFLOW_CUDA_WERROR=OFF \
    -DLUACHECK=/bin/true ${headers:+"-DCMAKE_INCLUDE_PATH=$headers"} \
    ${debs:+-DCMAKE_PREFIX_PATH="$prefix/usr" -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu} &&
    cmake --build "$build" --target $targets && programs_start
}

# ---- what is checked ------------------------------------------------------------------------------------------------

probe() {
  $ours "$build/gpu_probe" "$results/card.json" | tee "$results/probe.jsonl"
  [ "${PIPESTATUS[0]}" -eq 0 ] || [ -n "$simulated" ]  # which cannot be probed
}

kernels() {
  $ours "$build/gpu_kernels" ${simulated:+1} | tee "$results/kernels.jsonl"
  return "${PIPESTATUS[0]}"
}

# alone NAME SECONDS COMMAND [ARGUMENTS]: in a process of its own, since a card gives up a process for a bad address.
# What it says is seen only if it fails. It ends before its stage has to, which then says what was left out: `timeout`
# makes a group of its own, which would outlive the stage and disturb the next.
alone() {
  local name=$1 limit=$2 log=$work/alone/$BASHPID left=$((until - $(date +%s)))
  shift 2
  [ "$limit" -lt "$left" ] || limit=$left
  [ "$limit" -gt 0 ] || { echo "FAILED (no time was left): $name" && return 1; }
  mkdir -p "$work/alone"
  timeout -k 2 "$limit" "$@" >"$log" 2>&1
  local status=$?
  [ $status -eq 0 ] && return
  echo "FAILED (status $status): $name"
  tail -n 60 "$log" | cut -c1-400
  return 1
}
alone_test() { alone "$2" "$1" $ours "$build/gpu_tests" "$2"; }
# One op of the oracle, perhaps by a tool.
alone_op() {
  local op=${*: -1}
  MOONFLOW_ORACLE_OP=$op alone "the op $op" 60 $ours "${@:1:$#-1}" "$build/gpu_tests" "every CUDA kernel keeps*"
}
# each PROCESSES FUNCTION [ARGUMENTS]: calls the function for each line of the input, with it as the last argument.
each() { xargs -d '\n' -P "$1" -n 1 bash -c '"$@"' each "${@:2}"; }
ops() { $ours "$build/gpu_tests" "names of the ops that have a CUDA kernel" | sed -n 's/^op //p'; }
tests() {
  local names count failed limit=60
  [ -z "$simulated" ] || limit=200
  # Without the program's first line; a comma, a bracket, a backslash and a star mean something in a test's name.
  names=$($ours "$build/gpu_tests" --list-test-names-only ${simulated:+"[device]"} | tail -n +2 |
    sed 's/^ *//; s/[],\\[*]/\\&/g' | grep .)
  count=$(wc -l <<<"$names")
  [ "$count" -gt 1 ] || { echo "there are no tests" && return 1; }
  each 8 alone_test $limit <<<"$names" >"$work/failures"
  failed=$(grep -c '^FAILED (' "$work/failures")
  cat "$work/failures"
  if grep -q '^FAILED (.*every CUDA kernel keeps' "$work/failures"; then
    echo "== the oracle, op by op"
    ops | each 8 alone_op
  fi
  grep '^FAILED (' "$work/failures"
  echo "$((count - failed)) of $count tests passed"
  [ "$failed" -eq 0 ]
}

# Specs that say on a gpu what they say on the CPU, and those that are about gpus, each in a folder of its own.
alone_spec() {
  mkdir -p "$work/specs/$1" && cd "$work/specs/$1" || return 1
  local place=gpu log=$work/alone/$BASHPID
  case $1 in placement | gpu | gpu_errors) place= ;; esac
  alone "$1_spec.lua" 80 env ${place:+MOONFLOW_TEST_PLACEMENT=$place} $ours "$build/moonflow" \
    "$MOONFLOW_SOURCE/tests/lua/run.lua" "$MOONFLOW_SOURCE/tests/lua/$1_spec.lua" || return 1
  echo "$1: $(grep successes "$log")"
}
lua() {
  local specs failed
  specs=$(tr '\n' ' ' <tests/lua/on_gpu.txt)
  specs+="placement gpu_errors gpu"
  [ -z "$simulated" ] || specs=${specs% gpu}  # which is about the real module
  build=$(realpath "$build")
  export MOONFLOW_LAUNCHER=$build/moonflow MOONFLOW_BUILD=$build MOONFLOW_SOURCE=$PWD MOONFLOW_CUDA_SMALL_IN_TF32=0
  if [ -n "$debs" ]; then
    export LUA_PATH="$prefix/usr/share/lua/5.1/?.lua;$prefix/usr/share/lua/5.1/?/init.lua;;"
    export LUA_CPATH="$prefix/usr/lib/x86_64-linux-gnu/lua/5.1/?.so;;"
  fi
  tr ' ' '\n' <<<"$specs" | each "$(nproc)" alone_spec | tee "$work/failed_specs"
  failed=$(grep -c '^FAILED (' "$work/failed_specs")
  echo "$(($(wc -w <<<"$specs") - failed)) of $(wc -w <<<"$specs") spec files passed"
  [ "$failed" -eq 0 ]
}

# Where it fails, whether it also does without recordings.
agree() {
  local what=(100 gpu)
  [ -z "$simulated" ] || what=(2 gpu cpu mlp)
  $ours "$build/moonflow" tests/bench/gpu_agree.lua "${what[@]}" && return
  echo "== without recordings, each step waited for"
  MOONFLOW_CUDA_GRAPH=0 $ours "$build/moonflow" tests/bench/gpu_agree.lua "${what[@]}"
  echo "it failed with recordings"
  return 1
}

# Random networks, each in ways that must agree. Only a card has the kernels that are made while a script runs.
networks() {
  local count=8
  [ -z "$simulated" ] || count=2
  $ours "$build/moonflow" tests/fuzz/networks_fuzz.lua "$count"
}

# A small training, and the oracle op by op.
sanitize() {
  local tool status failed
  tool=$(PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer type -P compute-sanitizer) ||
    { echo "there is no compute-sanitizer here" && return; }
  tool="$tool --tool memcheck --print-limit 3 --error-exitcode 9"
  $ours $tool "$build/moonflow" tests/bench/gpu_agree.lua 3 gpu cpu mlp
  status=$?
  if grep -q 'Device not supported' "$work/sanitize.log"; then
    echo "compute-sanitizer sees no card on this machine, so nothing was checked"
    return
  fi
  ops | each "$(nproc)" alone_op $tool | tee "$work/failed_ops"
  failed=$(grep -c '^FAILED (' "$work/failed_ops")
  echo "the training ended with $status, and $failed of $(ops | wc -l) ops failed"
  [ "$failed" -eq 0 ] && return $status
}

speed() {
  local peer="$clean $python" few=()
  [ -z "$simulated" ] || peer="" few=(--rounds 1 --seconds 0.01 --only relu)
  $ours "$build/moonflow" tests/bench/gpu.lua "$results" --python "$peer" --log "$work/peers.log" --limit "$1" \
    "${few[@]}"
}

# Which engines NVIDIA's libraries have for what we ask of them, and which are fast.
plans() {
  [ -z "$simulated" ] || { echo "left out: no library runs on the simulated card" && return; }
  $ours "$build/gpu_plans" | tee "$results/plans.jsonl"
  return "${PIPESTATUS[0]}"
}

product() {
  [ -z "$simulated" ] || { echo "left out: PyTorch has no simulated card" && return; }
  local theirs="" ours_too=""
  for _ in 1 2 3; do
    theirs+=" $("$python" tests/bench/torch_gpu_peer.py product)" || return 1
    ours_too+=" $($ours "$build/gpu_kernels" 256 product | sed -n 's/.*"TFLOPps":\([0-9.]*\).*/\1/p')"
  done
  awk -v ours="$ours_too" -v theirs="$theirs" '
    function median(list, n, v) {
      n = split(list, v, " ")
      if (n != 3) exit 1
      return v[1] + v[2] + v[3] - most(v[1], most(v[2], v[3])) - least(v[1], least(v[2], v[3]))
    }
    function most(a, b) { return a + 0 > b + 0 ? a : b }
    function least(a, b) { return a + 0 < b + 0 ? a : b }
    BEGIN {
      ratio = median(ours) / median(theirs)
      printf "8192 cubed in bfloat16, TFLOP/s: %s by us,%s by PyTorch: %.2f, %s 0.95\n", ours, theirs, ratio,
        (ratio >= 0.95 ? "at least" : "less than")
      exit (ratio < 0.95)
    }'
}

large() {
  local sizes=(40 256 gpu 224)
  [ -z "$simulated" ] || sizes=(2 1 gpu 32)
  $ours "$build/moonflow" samples/resnet50.lua "${sizes[@]}" | tee "$results/large.txt"
  [ "${PIPESTATUS[0]}" -eq 0 ] || return 1
  [ -z "$simulated" ] || { echo "PyTorch is left out: it has no simulated card" && return; }
  echo "PyTorch, for as long as there is time:"
  "$python" tests/bench/torch_gpu_peer.py resnet50 "${sizes[1]}" "${sizes[3]}" | tee -a "$results/large.txt"
  return "${PIPESTATUS[0]}"
}
export -f unpack machine programs_start make probe kernels plans alone alone_test alone_op each ops tests alone_spec lua
export -f agree networks sanitize speed product large
export prefix

# ---- in turn --------------------------------------------------------------------------------------------------------

# The libraries of the packages are for our programs alone: a python and a compiler keep their own. Those of NVIDIA's in
# the python's packages come last, for machines that have them nowhere else.
export ours="" clean="env LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
path=${LD_LIBRARY_PATH:-}
if [ -n "$debs" ]; then
  stage unpack 30 unpack
  path=$prefix/usr/lib/x86_64-linux-gnu:$prefix/lib/x86_64-linux-gnu${path:+:$path}
fi
wheels=$("$python" -c '
import glob, os, site
patterns = [folder + "/nvidia/**/lib*.so*" for folder in site.getsitepackages()]
files = [file for pattern in patterns for file in glob.glob(pattern, recursive=True)]
print(":".join(sorted({os.path.dirname(file) for file in files})))' 2>/dev/null)
path=$path${wheels:+${path:+:}$wheels}
[ -z "$path" ] || ours="env LD_LIBRARY_PATH=$path"

stage build 240 make
wanted machine 30 machine
wanted probe 40 probe
wanted tests 150 tests
wanted lua 120 lua
wanted agree 60 agree
wanted networks 60 networks
wanted sanitize 130 sanitize
wanted kernels 60 kernels
wanted plans 75 plans
wanted product 60 product
left=$((budget - (SECONDS - began)))
wanted speed $((left - 5)) speed $((left - 30))
wanted large $((left - 5)) large

# ---- the end --------------------------------------------------------------------------------------------------------

echo
[ ! -f "$results/speed.md" ] || cat "$results/speed.md"
echo
cat "$results/stages.txt"
echo "$((SECONDS - began)) s in all; results in $results"
exit $bad
