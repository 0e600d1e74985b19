#!/usr/bin/env bash
# tools/check_sizes.sh - files and functions stay small enough to hold in the head. Reports in TAP.
# SHEAF_ROOT: another tree than this one.
#
# Limits: a file 1000 lines, a public header 300, a function, braces included, 70 lines in base,
# codec, pool and cache, 130 elsewhere (kernels, parsers, forward passes); a line 106 columns: clang-format
# holds code to 96, and the last word of a comment may hang over.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/tools/tap.sh
. "$here/tests/tools/tap.sh"
cd "${SHEAF_ROOT:-$here}"

# longer_files LIMIT FILE...
longer_files() {
    awk -v limit="$1" 'FNR == 1 && NR > 1 { report() } { file = FILENAME; n = FNR }
        function report() { if (n > limit) printf "%s: %d lines\n", file, n }
        END { report() }' "${@:2}"
}

# longer_functions LIMIT FILE...: a function's braces stand alone in the first column.
longer_functions() {
    awk -v limit="$1" '
        /^[A-Za-z_].*\(/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
        /^{/ { begin = FNR }
        /^}/ {
            if (begin && FNR - begin + 1 > limit)
                printf "%s:%d: %s: %d lines\n", FILENAME, begin, name, FNR - begin + 1
            begin = 0
        }' "${@:2}"
}

wide_lines() {
    awk 'length($0) > 106 { printf "%s:%d: %d columns\n", FILENAME, FNR, length($0) }' "$@"
}

# tap_limit NAME FUNCTION LIMIT FOLDER...: no file of the folders breaks the limit.
tap_limit() {
    local name=$1 function=$2 limit=$3 files
    mapfile -t files < <(find "${@:4}" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) 2>/dev/null | sort)
    [ ${#files[@]} -gt 0 ] || return 0
    tap_empty "$name" "$("$function" "$limit" "${files[@]}")"
}

tap_limit no_file_is_over_1000_lines longer_files 1000 src include tests bench tools examples
tap_limit no_public_header_is_over_300_lines longer_files 300 include
for floor in base codec pool cache; do
    tap_limit "no_function_of_${floor}_is_over_70_lines" longer_functions 70 "src/$floor"
done
tap_limit no_function_is_over_130_lines longer_functions 130 src tests bench tools examples
mapfile -t files < <(find src include tests bench tools examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' 2>/dev/null | sort)
tap_empty no_line_is_over_106_columns "$(wide_lines "${files[@]}")"
tap_end
