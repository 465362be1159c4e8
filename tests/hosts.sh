#!/usr/bin/env bash
# Moonflow inside of other programs with LuaJIT: what docs/embedding.md and samples/nginx say of nginx (with OpenResty's
# LuaJIT), Neovim and Minetest, on Debian 12. Their files come from Debian's servers into build-hosts/root; the system's
# own packages stay as they are. Wants the build of tests/run.sh.
#   bash tests/hosts.sh           all three
#   bash tests/hosts.sh neovim    this one
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$PWD/build-hosts root=$PWD/build-hosts/root

# The C and C++ libraries are the system's, which has newer ones or the same.
[ -e "$root/unpacked" ] || WITHOUT="libc6 libgcc-s1 libstdc++6" bash tests/unpack.sh "$(dpkg --print-architecture)" \
  "$root" nginx libnginx-mod-http-lua neovim minetest-server minetest-data curl
ln -sfn games/minetest "$root/usr/share/minetest" # where the server looks beside itself
cmake --install build --prefix "$build/prefix" >/dev/null

export MOONFLOW_HOSTS=$root MOONFLOW_PREFIX=$build/prefix MOONFLOW_SOURCE=$PWD
export MOONFLOW_DATA=${MOONFLOW_DATA:-$PWD/../shared/data} OMP_WAIT_POLICY=passive
mkdir -p "$build/scratch"
hosts=("$@")
[ $# -gt 0 ] || hosts=(neovim nginx minetest)
failed=()
for host in "${hosts[@]}"; do
  env -C "$build/scratch" PATH="$PWD/build:$PATH" LUA_PATH="$PWD/tests/hosts/?.lua;;" \
    MOONFLOW_LAUNCHER="$PWD/build/moonflow" \
    "$PWD/build/moonflow" "$PWD/tests/lua/run.lua" "$PWD/tests/hosts/${host}_spec.lua" || failed+=("$host")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
