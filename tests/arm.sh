#!/usr/bin/env bash
# Cross-compiles for 64-bit ARM on Debian 12 and tests under emulation: the programs of tests/engine, tests/kernels and
# tests/bindings, then the specs. What is emulated says nothing of speed, and little of the order in which cores see
# each other's writes. Needs g++-aarch64-linux-gnu and qemu-user beside what .ci/setup installs. The libraries come from
# Debian's servers into build-arm/root, and the system's own packages stay as they are.
#   bash tests/arm.sh            everything
#   bash tests/arm.sh core job   these specs only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$PWD/build-arm root=$PWD/build-arm/root

libraries=(libdnnl-dev ocl-icd-libopencl1 libluajit-5.1-dev luajit zlib1g-dev libzip-dev libpng-dev libturbojpeg0-dev
  libxxhash-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libedit-dev catch2
  lua-filesystem lua-system lua-term lua-luv)

toolchain() {
  local libraries=$root/usr/lib/aarch64-linux-gnu
  cat <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L $root)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_C_FLAGS_INIT "-isystem $root/usr/include -isystem $root/usr/include/aarch64-linux-gnu")
set(CMAKE_CXX_FLAGS_INIT "\${CMAKE_C_FLAGS_INIT}")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-L$libraries -Wl,-rpath-link,$libraries:$root/lib/aarch64-linux-gnu")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "\${CMAKE_EXE_LINKER_FLAGS_INIT}")
END
}

mkdir -p "$build/emulated"
# The compiler has its own C library.
[ -e "$root/unpacked" ] || WITHOUT="libc6-dev linux-libc-dev" bash tests/unpack.sh arm64 "$root" "${libraries[@]}"
toolchain >"$build/toolchain.cmake"
export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DMOONFLOW_CUDA=OFF -DMOONFLOW_MPI=OFF \
  -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake"
cmake --build "$build" --target moonflow engine_tests kernel_tests abi_tests host_tests

# Specs start our launcher as a program, so it is one.
launcher=$build/emulated/moonflow
printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" "%s" "$@"\n' "$root" "$build/moonflow" >"$launcher"
chmod +x "$launcher"
export MOONFLOW_LAUNCHER=$launcher MOONFLOW_SOURCE=$PWD MOONFLOW_BUILD=$build PATH=$build/emulated:$PATH
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

failed=()
attempt() {
  echo "---- $1"
  "${@:2}" || failed+=("$1")
}
specs=("$@")
if [ $# -eq 0 ]; then
  for program in engine/engine_tests kernels/kernel_tests bindings/abi_tests bindings/host_tests; do
    attempt "$program" qemu-aarch64 -L "$root" "$build/tests/$program"
  done
  for spec in tests/lua/*_spec.lua; do specs+=("$(basename "$spec" _spec.lua)"); done
fi
mkdir -p "$build/scratch"
for spec in "${specs[@]}"; do
  attempt "$spec" env -C "$build/scratch" "$launcher" "$MOONFLOW_SOURCE/tests/lua/run.lua" \
    "$MOONFLOW_SOURCE/tests/lua/${spec}_spec.lua"
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
