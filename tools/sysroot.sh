#!/usr/bin/env bash
# tools/sysroot.sh DIR [OS_RELEASE] - makes DIR a tree of AArch64 libraries and headers to build and emulate with.
#
# apt resolves, verifies and downloads the packages of the running Debian or Ubuntu release for a
# machine that has none installed, in lists of its own; dpkg-deb unpacks them. So neither the
# system's sources nor its packages are touched, and no root is needed. Ubuntu keeps this architecture on a
# server of its own: where apt's sources do not name it, the packages cannot be had. Exit code 3 then. 60 MB.
set -eu
[ $# -ge 1 ] || { echo "usage: tools/sysroot.sh DIR [OS_RELEASE]" >&2; exit 2; }
dir=$1
os_release=${2:-/etc/os-release}
packages="libc6-dev libcmocka-dev libxxhash-dev libssl-dev libjansson-dev libpcre2-dev libutf8proc-dev libedit-dev libmicrohttpd-dev"

# shellcheck disable=SC1090
system=$(. "$os_release" && echo "$ID $VERSION_ID ${VERSION_CODENAME:-}")
wanted="$system: $packages"
[ "$(cat "$dir/.made-of" 2>/dev/null)" != "$wanted" ] || exit 0
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || { echo "sysroot: $tool is not here" >&2; exit 3; }
done

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
apt=$dir.apt
rm -rf "$dir" "$apt"
mkdir -p "$dir" "$apt/lists/partial" "$apt/archives/partial"
: >"$apt/status"
options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1
    -o Acquire::Retries=2 -o "Dir::State=$apt" -o "Dir::State::lists=$apt/lists"
    -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt" -o "Dir::Cache::archives=$apt/archives")
echo "sysroot: downloading AArch64 packages for $system" >&2
# shellcheck disable=SC2086 # words
if ! { apt-get "${options[@]}" -o APT::Update::Error-Mode=any update &&
    apt-get "${options[@]}" -y --no-install-recommends --download-only install $packages; } \
    >"$apt/log" 2>&1; then
    tail -n 20 "$apt/log" >&2
    echo "sysroot: the AArch64 packages ($packages) cannot be had from this system's archive" >&2
    exit 3
fi
for package in "$apt"/archives/*.deb; do dpkg-deb -x "$package" "$dir"; done
[ -e "$dir/lib" ] || ln -s usr/lib "$dir/lib" # where packages no longer bring it
rm -rf "$apt"
echo "$wanted" >"$dir/.made-of"
