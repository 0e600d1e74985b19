#!/usr/bin/env bash
# tools/check_format.sh - C sources are as clang-format 14 leaves them (other versions differ in
# details, so with them the check is skipped). Reports in TAP. SHEAF_ROOT: another tree.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/tools/tap.sh
. "$here/tests/tools/tap.sh"
cd "${SHEAF_ROOT:-$here}"

tool=clang-format
! command -v clang-format-14 >/dev/null || tool=clang-format-14
name=sources_are_formatted
if ! command -v $tool >/dev/null; then
    tap_skip $name "clang-format is not installed (./run deps dev)"
elif [[ $($tool --version) != *" version 14."* ]]; then
    tap_skip $name "clang-format 14 is wanted, this is: $($tool --version)"
else
    mapfile -t files < <(find src include tests bench tools examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' 2>/dev/null | sort)
    if [ ${#files[@]} = 0 ]; then
        tap_not_ok $name "no files found"
    else
        tap_empty $name "$($tool --dry-run -Werror "${files[@]}" 2>&1 |
            sed -n 's/\(.*\): error: code should be clang-formatted.*/\1/p' | head -n 40)"
    fi
fi
tap_end
