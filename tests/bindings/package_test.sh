#!/usr/bin/env bash
# Hosts that meet the library as an installation. The first test installs into a folder and moves it, the others use it.
# usage: package_test.sh TEST SOURCE BUILD FOLDER; CC and CXX name the compilers
set -euo pipefail
test=$1 source=$2 build=$3 folder=$4
prefix=$folder/home/moonflow
jobs=$source/tests/bindings/jobs.lua
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
variable() { pkg-config --variable="$1" moonflow; }

fail() {
  echo "$*" >&2
  exit 1
}
# An empty folder to work in.
fresh() {
  rm -rf "${folder:?}/$1"
  mkdir -p "$folder/$1"
  cd "$folder/$1"
}

case $test in
  install)
    rm -rf "$folder"
    mkdir -p "$folder/home"
    cmake --install "$build" --prefix "$folder/first" >/dev/null
    mv "$folder/first" "$prefix"
    # Nothing but the C interface and the door of `require` is to be seen.
    others=$(nm -D --defined-only "$prefix/lib/libmoonflow.so" | awk '{ print $3 }' |
      grep -v -e '^mf_' -e '^luaopen_moonflow_core$' || true)
    [ -z "$others" ] || fail "exports more than its interface: $others"
    # Every function of the header is there.
    for function in $(grep -o '\bmf_[a-z0-9_]*(' "$prefix/include/moonflow.h" | tr -d '(' | sort -u); do
      grep -q "MF_INLINE.* $function(" "$prefix/include/moonflow.h" ||
        nm -D --defined-only "$prefix/lib/libmoonflow.so" | grep -q " $function$" || fail "$function is not exported"
    done
    grep -q '^function flow.layers.dense(' "$prefix/share/moonflow/editor/moonflow.lua" || fail "editors are told nothing"
    ;;
  cmake) # the robot is a project of its own; it learns, and its policy keeps the pole up
    fresh cmake
    cmake -G Ninja -S "$source/samples/robot" -B . -Dmoonflow_DIR="$prefix/lib/cmake/moonflow" >/dev/null
    cmake --build . >/dev/null
    ./robot --seconds 1
    ;;
  build-tree)
    fresh build-tree
    cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(host LANGUAGES C)
find_package(moonflow 0.1 REQUIRED)
add_executable(host ${HOST})
target_link_libraries(host PRIVATE moonflow::moonflow)
END
    cmake -G Ninja -S . -B . -Dmoonflow_DIR="$build" -DHOST="$source/tests/bindings/c_host.c" >/dev/null
    cmake --build . >/dev/null
    ./host "$jobs" .
    ;;
  pkg-config)
    fresh pkg-config
    "$CC" -std=c99 -pedantic -Wall -Wextra -Werror "$source/tests/bindings/c_host.c" $(pkg-config --cflags --libs moonflow) \
      -Wl,-rpath,"$(variable libdir)" -o host
    ./host "$jobs" .
    echo '#include <moonflow.hpp>' | "$CXX" -std=c++20 -pedantic -Wall -Wextra -Werror $(pkg-config --cflags moonflow) \
      -fsyntax-only -x c++ -
    grep -q "define MF_API_VERSION $(variable api_version)u" "$(variable includedir)/moonflow.h" ||
      fail "api_version is $(variable api_version)"
    ;;
  luajit) # as Debian has it, with nothing but the paths; and the library's own program, which finds them itself
    fresh luajit
    cat >script.lua <<'END'
local use = coroutine.wrap(function()
  local flow = require "moonflow"
  local tp = flow.typing
  local double = flow.global_function { inputs = { x = tp.Numpy.Placeholder({ 3 }) }, returns = tp.Numpy } (
    function(x) return x + x end)
  return double(flow.np.ones({ 3 })):sum()
end)
assert(use() == 6)
END
    lua=$(variable lmoddir) c=$(variable cmoddir)
    LUA_PATH="$lua/?.lua;$lua/?/init.lua;;" LUA_CPATH="$c/?.so;;" luajit script.lua
    "$prefix/bin/moonflow" script.lua
    # The CUDA module is found beside the library, whatever it then says of this machine.
    if [ -f "$build/libmoonflow_cuda.so" ]; then
      said=$("$prefix/bin/moonflow" -e 'print(select(2, require("moonflow").config.gpu_devices()))')
      case $said in *module*) fail "of GPUs it said: $said" ;; esac
    fi
    # So is that for MPI, which takes a lone process of a launcher for a world of one.
    if [ -f "$build/libmoonflow_mpi.so" ]; then
      said=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -n 1 "$prefix/bin/moonflow" -e \
        'print(require("moonflow").distributed.join())')
      [ "$said" = "0	1" ] || fail "of processes it said: $said"
    fi
    ;;
  document) # the hosts of docs/embedding.md, compiled by its own commands
    fresh document
    # A block goes to the file that its first line names; the second block of shell commands is the one that compiles.
    awk '
      /^```/ {
        inside = !inside && !/fragment/
        shell += /^```sh/
        first = 1
        file = /^```sh/ && shell == 2 ? "compile.sh" : ""
        next
      }
      inside && first && match($0, /[a-z_]+\.(c|cpp|lua)/) { file = substr($0, RSTART, RLENGTH) }
      inside { first = 0; if (file) print > file }' "$source/docs/embedding.md"
    for host in host.c host.cpp; do
      lines=$(sed -n '/main/,$p' "$host" | wc -l)
      [ "$lines" -le 15 ] || fail "$host has grown to $lines lines"
    done
    ln -sf "$(command -v "$CC")" cc
    ln -sf "$(command -v "$CXX")" c++
    HOME=$folder/home PATH=$PWD:$PATH bash -euo pipefail compile.sh
    for host in ./host_c ./host_cpp; do
      said=$("$host")
      case $said in left | right) ;; *) fail "$host said: $said" ;; esac
    done
    rm jobs.lua
    ! said=$(./host_c) || fail "host_c does not mind that its script is gone"
    case $said in *jobs.lua*) ;; *) fail "host_c said: $said" ;; esac
    ;;
  luarocks) # from a tree of links, so that what it builds stays here; Ninja names files as the build at hand does
    mkdir -p "$folder.rock"
    cd "$folder.rock"
    for room in CMakeLists.txt README.md LICENSE engine kernels bindings lua; do ln -sfn "$source/$room" "$room"; done
    rm -rf tree
    echo 'cmake_generator = "Ninja"' >config.lua
    LUAROCKS_CONFIG=config.lua luarocks --lua-version 5.1 make --tree tree \
      bindings/package/moonflow-scm-1.rockspec >log.txt 2>&1 || { cat log.txt; exit 1; }
    [ -f tree/lib/lua/5.1/moonflow/core.so ] && [ ! -L tree/lib/lua/5.1/moonflow/core.so ] || fail "core.so is no file"
    script='assert(require("moonflow").np.ones({ 3 }):sum() == 3)'
    LUA_PATH="tree/share/lua/5.1/?.lua;tree/share/lua/5.1/?/init.lua;;" LUA_CPATH="tree/lib/lua/5.1/?.so;;" \
      luajit -e "$script"
    tree/bin/moonflow -e "$script"
    ;;
esac
