#!/usr/bin/env bash
# tests/install/test_install.sh - installs into a prefix of its own, moves it, and builds a small
# program against it by pkg-config, by the CMake package, shared and static.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
build=${SHEAF_BUILD_DIR:-build/release}
consumer=$PWD/tests/install/consumer

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# attempt CASE COMMAND...: holds when the command succeeds; its output is shown when it does not.
attempt() {
    local name=$1 out
    shift
    if out=$("$@" 2>&1 </dev/null); then tap_ok "$name"; else tap_not_ok "$name" "$out"; fi
}

# The lines that a program prints, joined by ", ".
output() {
    LD_LIBRARY_PATH=$lib "$1" 2>&1 | paste -sd, | sed 's/,/, /g'
}

attempt the_build_installs cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix" # an installation can be moved
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name libsheaf.a)")
version=$(sed -n 's/^project(sheaf VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
said="sheaf $version, blocks 2 shared 2, attention 2.500" # what the consumer prints, line by line
flags=(-std=c11 -pedantic -Wall -Wextra -Werror)

for file in include/sheaf/sheaf.h "${lib#"$prefix/"}"/{libsheaf.so,libsheaf.so.0,libsheaf.a,pkgconfig/sheaf.pc}; do
    attempt "installs_$(basename "$file")" test -e "$prefix/$file"
done
if grep -q '^SHEAF_BUILD_PROGRAM:BOOL=ON' "$build/CMakeCache.txt"; then
    attempt the_installed_program_starts "$prefix/bin/sheaf" --help
    attempt completion_for_bash_is_installed test -s "$prefix/share/bash-completion/completions/sheaf"
    attempt completion_for_zsh_is_installed test -s "$prefix/share/zsh/site-functions/_sheaf"
    for file in api.md statistics.md format.md sheaf.json; do
        attempt "installs_$file" test -s "$prefix/share/doc/sheaf/$file"
    done
    unit=$prefix/lib/systemd/system/sheaf.service
    attempt the_systemd_unit_is_installed test -s "$unit"
    if command -v systemd-analyze >/dev/null; then
        sed -i 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$unit" # the program has been moved
        tap_equal the_systemd_unit_is_verified "" "$(systemd-analyze verify --man=no "$unit" 2>&1)"
    else
        tap_skip the_systemd_unit_is_verified "systemd-analyze is not here"
    fi
    if command -v scdoc >/dev/null; then
        attempt the_man_page_is_installed test -s "$prefix/share/man/man1/sheaf.1"
    else
        tap_skip the_man_page_is_installed "scdoc is not installed"
    fi
fi
tap_equal the_library_carries_its_soname libsheaf.so.0 \
    "$(readelf -d "$lib/libsheaf.so" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')"

export PKG_CONFIG_PATH=$lib/pkgconfig
tap_equal pkg_config_knows_the_version "$version" "$(pkg-config --modversion sheaf || true)"
# shellcheck disable=SC2046 # words
attempt a_program_links_by_pkg_config \
    cc "${flags[@]}" -o "$work/shared" "$consumer/consumer.c" $(pkg-config --cflags --libs sheaf)
attempt it_needs_the_shared_library_alone \
    sh -c "readelf -d '$work/shared' | grep -q libsheaf.so.0 && ! readelf -d '$work/shared' | grep -qE 'xxhash|crypto'"
tap_equal it_runs "$said" "$(output "$work/shared")"

if command -v c++ >/dev/null; then
    # shellcheck disable=SC2046
    attempt it_compiles_as_cpp17_too c++ -std=c++17 "${flags[@]:1}" -o "$work/cpp" \
        -x c++ "$consumer/consumer.c" -x none $(pkg-config --cflags --libs sheaf)
    tap_equal it_runs_as_cpp17 "$said" "$(output "$work/cpp")"
else
    tap_skip it_compiles_as_cpp17_too "no C++ compiler (./run deps test)"
fi

cp -r "$prefix" "$work/static"
find "$work/static" -name 'libsheaf.so*' -delete
# shellcheck disable=SC2046
attempt a_program_links_statically_by_pkg_config env PKG_CONFIG_PATH="${lib/prefix/static}/pkgconfig" sh -c \
    "cc ${flags[*]} -o '$work/alone' '$consumer/consumer.c' \$(pkg-config --static --cflags --libs sheaf)"
tap_equal it_runs_without_the_shared_library "$said" "$(output "$work/alone")"

attempt the_cmake_package_is_found \
    cmake -S "$consumer" -B "$work/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
attempt programs_build_by_the_cmake_package cmake --build "$work/cmake"
for kind in shared static; do
    tap_equal "the_${kind}_one_runs" "$said" "$(output "$work/cmake/consumer_$kind")"
done
tap_end
