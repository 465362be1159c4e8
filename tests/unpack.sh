#!/usr/bin/env bash
# Unpacks Debian packages and all that they need into a folder, for tests beside the system's own packages, which stay
# as they are. Packages named in WITHOUT are left out, where something else stands for them.
#   WITHOUT="linux-libc-dev" bash tests/unpack.sh arm64 FOLDER libzip-dev
set -euo pipefail
architecture=$1 root=$2
shift 2

# A system of its own for apt, of which only the files of packages are wanted.
apt=$root.apt
mkdir -p "$apt"/{lists/partial,archives/partial} "$root"
: >"$apt/status"
options=(-q -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o APT::Sandbox::User=
  -o Debug::NoLocking=1 -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
  -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives")
apt-get "${options[@]}" update
apt-get "${options[@]}" install -y --no-install-recommends --download-only "$@"
for package in ${WITHOUT:-}; do rm -f "$apt/archives/${package}"_*.deb; done
for package in "$apt"/archives/*.deb; do dpkg -x "$package" "$root"; done
touch "$root/unpacked"
