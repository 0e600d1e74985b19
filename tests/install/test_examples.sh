#!/usr/bin/env bash
# tests/install/test_examples.sh - the examples against an installed libsheaf: by pkg-config, by the
# CMake package, shared and static. Each says the same every time, and the same as examples/README.md.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
build=${SHEAF_BUILD_DIR:-build/release}
examples=(embed own_allocators page_table prefix)
flags=(-std=c11 -pedantic -Wall -Wextra -Werror)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/pc" "$work/pc_static"

# attempt CASE COMMAND...: holds when the command succeeds; its output is shown when it does not.
attempt() {
    local name=$1 out
    shift
    if out=$("$@" 2>&1 </dev/null); then tap_ok "$name"; else tap_not_ok "$name" "$out"; fi
}

# What the README shows for an example: the lines after "$ ./NAME".
shown() {
    awk -v start="    \$ ./$1" '$0 == start { on = 1; next } on && !/^    [^$]/ { exit }
        on { print substr($0, 5) }' examples/README.md
}

# What it prints, without the lines that differ from machine to machine; and how it ended.
printed() { # program [library-folder]
    local rc=0
    LD_LIBRARY_PATH=${2:-} "$1" >"$work/out" 2>&1 || rc=$?
    grep -v '^#' "$work/out" || true
    [ $rc = 0 ] || echo "exit code $rc"
}

compares() { # way folder [library-folder]
    local example
    for example in "${examples[@]}"; do
        tap_equal "${example}_built_${1}_prints_what_the_readme_shows" "$(shown "$example")" \
            "$(printed "$2/$example" "${3:-}")"
    done
}

cmake --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || cat "$work/log" >&2
lib=$(dirname "$(find "$work/prefix" -name libsheaf.a)")
export PKG_CONFIG_PATH=$lib/pkgconfig
cp -r examples "$work/examples" # what is built sees no other header of the repository

for example in "${examples[@]}"; do
    tap_equal "${example}_includes_public_headers_alone" "sheaf/sheaf.h" \
        "$(sed -n 's|^#include [<"]\(.*/.*\)[>"]|\1|p' "examples/$example.c" | grep -v '^sys/')"
    # shellcheck disable=SC2046 # words
    attempt "${example}_builds_by_pkg_config" cc "${flags[@]}" -o "$work/pc/$example" \
        "$work/examples/$example.c" $(pkg-config --cflags --libs sheaf)
    # shellcheck disable=SC2046
    attempt "${example}_builds_statically_by_pkg_config" cc "${flags[@]}" -o "$work/pc_static/$example" \
        "$work/examples/$example.c" $(pkg-config --cflags sheaf) \
        -Wl,-Bstatic $(pkg-config --libs sheaf) -Wl,-Bdynamic -lxxhash -lcrypto -lm -pthread
done
compares by_pkg_config "$work/pc" "$lib"
compares statically_by_pkg_config "$work/pc_static"

for kind in shared static; do
    option=OFF
    [ $kind = shared ] || option=ON
    attempt "examples_configure_by_the_cmake_package_$kind" \
        cmake -S "$work/examples" -B "$work/cmake_$kind" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
        -DCMAKE_C_FLAGS=-Werror -DSHEAF_EXAMPLES_STATIC=$option
    attempt "examples_build_by_the_cmake_package_$kind" cmake --build "$work/cmake_$kind"
    compares "by_the_cmake_package_$kind" "$work/cmake_$kind"
done

for example in embed prefix; do
    lines=$(wc -l <"examples/$example.c")
    tap_empty "${example}_is_under_150_lines" \
        "$([ "$lines" -lt 150 ] || echo "examples/$example.c: $lines lines")"
done
tap_end
