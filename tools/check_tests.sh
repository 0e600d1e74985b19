#!/usr/bin/env bash
# tools/check_tests.sh - no test, bench or fuzzer lies about unbuilt, the thread sanitizer gets every program
# that makes threads, and every case that a table of hazards names is there. Reports in TAP.
# SHEAF_ROOT: another tree than this one.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/tools/tap.sh
. "$here/tests/tools/tap.sh"
cd "${SHEAF_ROOT:-$here}"

# unlisted FILE...: the files whose name, or name without kind and suffix in a list of names, their
# folder's CMakeLists.txt does not have.
unlisted() {
    local file folder name short
    for file in "$@"; do
        [ -f "$file" ] || continue
        folder=$(dirname "$file") name=$(basename "$file")
        short=${name%.c}
        grep -qE "(^|[^A-Za-z0-9_])(${name//./\\.}|$short|${short#*_})([^A-Za-z0-9_]|\$)" \
            "$folder/CMakeLists.txt" 2>/dev/null || echo "$file"
    done
}
tap_empty every_test_is_built "$(unlisted tests/*/{test,model,oom,gold,cross,e2e,fuzz}_*.c)"
tap_empty every_bench_is_built "$(unlisted bench/bench_*.c)"

unwatched=
while read -r file; do
    name=$(basename "$file" .c)
    [[ $name =~ ^(test|model|oom|gold|cross|e2e)_ ]] || continue
    found=no
    while read -r pattern; do
        pattern=${pattern#-} # left out there, with a reason
        # shellcheck disable=SC2053 # a pattern on purpose
        [[ $pattern != '#'* && $name == $pattern ]] && found=yes
    done <tests/threaded.txt
    [ $found = yes ] || unwatched+="$file is not in tests/threaded.txt "
done < <(grep -lE '\<(sheaf_threads_create|pthread_create) *\(' -r tests --include='*.c' | sort)
tap_empty every_program_with_threads_is_in_the_list "$unwatched"

# A table's lines are "what goes wrong | the case that keeps it out", in a file's first comment.
missing=
while read -r name; do
    grep -qrE "cmocka_unit_test[a-z_]*\\($name[,)]" tests --include='*.c' || missing+="$name "
done < <(sed -sn '1,/\*\//s/^ \*   .*| \([a-z0-9_]*\)$/\1/p' tests/*/test_hazards.c tests/server/e2e_load.c \
    2>/dev/null)
tap_empty every_hazard_has_its_case "$missing"
tap_end
