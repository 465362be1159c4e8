#!/usr/bin/env bash
# Tests on another system than this one, as somebody who has just installed it: a bare Debian or Ubuntu in
# build-elsewhere/NAME, and in it README's two commands on a copy of the files that git knows of or would add. Needs
# root, debootstrap and the keys of the system's archive, which DEBOOTSTRAP_OPTIONS=--keyring=FILE names if need be.
#   bash tests/elsewhere.sh trixie              Debian 13: the quick start, then every test
#   bash tests/elsewhere.sh noble -R kernels    Ubuntu 24.04, with arguments for ctest
# Another compiler, which is installed there: CXX=g++-13 bash tests/elsewhere.sh trixie.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
system=${1:?wanted: the name of a release, such as trixie or noble}
shift
root=$PWD/build-elsewhere/$system

# What debootstrap does is the same for all releases of a system, so one that is newer than it will do.
case $system in
  bookworm | trixie | forky | sid) archive=http://deb.debian.org/debian components=main like=sid ;;
  *) archive=http://archive.ubuntu.com/ubuntu components=main,universe like=gutsy ;;
esac
if [ ! -e "$root/made" ]; then
  # DEBOOTSTRAP_OPTIONS is split into words.
  debootstrap --variant=minbase --components="$components" ${DEBOOTSTRAP_OPTIONS:-} "$system" "$root" "$archive" "$like"
  touch "$root/made"
fi

mkdir -p "$root"/moonflow "$root"/data
find "$root/moonflow" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +  # what an earlier copy had
git ls-files -z --cached --others --exclude-standard | tar --null --create --files-from=- --ignore-failed-read |
  tar --extract --directory="$root/moonflow"
cp /etc/resolv.conf "$root/etc/"
data=${MOONFLOW_DATA:-$PWD/../shared/data}

# What is mounted in a namespace of its own goes with it.
export root data CXX=${CXX:-}
unshare --mount --fork --kill-child bash -euo pipefail -c '
  for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
  [ ! -d "$data" ] || mount --bind "$data" "$root/data"
  settings=(HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb MOONFLOW_DATA=/data MOONFLOW_CUDA=OFF)
  [ -z "$CXX" ] || settings+=(CXX="$CXX")
  inside() { chroot "$root" env -i "${settings[@]}" bash -euo pipefail -c "cd /moonflow; $1" elsewhere "${@:2}"; }
  inside "apt-get update -q; apt-get install -y -q ca-certificates ${CXX:+$CXX}" >/dev/null
  inside "bash samples/quickstart.sh 1; bash tests/run.sh \"\$@\"" "$@"
' elsewhere "$@"
