#!/usr/bin/env bash
# tools/run_tests.sh BUILD_DIR [--fast] [--list] [NAME...] - runs test programs and counts their cases.
#
# Reads BUILD_DIR/tests.list, a line a program: "name timeout fast|slow [script]". A program lies in
# BUILD_DIR/tests, a script where the list says, from the repository's root; both are run there,
# report in TAP on standard output and say on standard error why they skip. NAME is a program's
# name or a pattern of names; --fast leaves out the slow ones, --list only names them. SHEAF_TIMEOUT_SCALE
# multiplies the timeouts (sanitizers are slow). Programs for another machine are started by the words
# in BUILD_DIR/tests.emulator, a word a line.
#
# The cases are counted here and nowhere else, from each program's own lines:
#   "ok N ..." passed; "not ok N ..." failed; either with "# SKIP" skipped (cmocka 1.1.5 says
#   "not ok N # SKIP", 1.1.7 "ok N # SKIP").
# And one failure more for a program that is missing, crashes, runs out of time, has other than the
# announced number of results, has none at all, or ends with an error that no failed case explains.
#
# The last line is exactly "N passed, N failed, N skipped"; exit code 1 when anything failed or
# nothing ran, 2 for a wrong call.
set -eu

usage() {
    echo "usage: tools/run_tests.sh BUILD_DIR [--fast] [--list] [NAME...]" >&2
    exit 2
}

[ $# -ge 1 ] || usage
build=$1
shift
fast=no
list=no
names=()
for arg in "$@"; do
    case $arg in
    --fast) fast=yes ;;
    --list) list=yes ;;
    -*) usage ;;
    *) names+=("$arg") ;;
    esac
done
cd "$(dirname "$0")/.."
[ -f "$build/tests.list" ] || { echo "run_tests: no $build/tests.list" >&2; usage; }

emulator=()
[ ! -s "$build/tests.emulator" ] || mapfile -t emulator <"$build/tests.emulator"
scale=${SHEAF_TIMEOUT_SCALE:-1}
logs=$build/test-logs
mkdir -p "$logs"
export CMOCKA_MESSAGE_OUTPUT=TAP SHEAF_BUILD_DIR="$build"

wanted() { # name speed
    if [ "$fast" = yes ] && [ "$2" = slow ]; then return 1; fi
    [ ${#names[@]} -gt 0 ] || return 0
    local pattern
    for pattern in "${names[@]}"; do
        # shellcheck disable=SC2053 # a pattern on purpose
        [[ $1 == $pattern ]] && return 0
    done
    return 1
}

# Prints "passed failed skipped planned" of one program's output.
count_cases() {
    awk '
        /^1\.\.[0-9]+/ { planned += substr($1, 4); next }
        /^(not )?ok [0-9]+/ {
            number = $1 == "ok" ? $2 : $3
            if ($0 ~ /# *(SKIP|skip)/) skipped++
            else if ($1 == "ok") passed++
            else if (number == 0) setup++
            else failed++
        }
        END { print passed + 0, failed + 0, skipped + 0, planned + 0, setup + 0 }
    ' "$1"
}

# Why the program as a whole failed, or nothing. Case counts and the exit code as arguments.
program_fault() { # code passed failed skipped planned setup
    local code=$1 cases=$(($2 + $3 + $4)) failed=$3 planned=$5 setup=$6
    if [[ $code = 12[67] ]] && [ "$cases" = 0 ]; then
        echo "could not be run"
    elif [ "$code" = 124 ] && [ "$failed" != 124 ]; then
        echo "ran out of time"
    elif [ "$code" -gt 128 ] && [ "$failed" != "$code" ]; then
        echo "crashed (signal $((code - 128)))"
    elif [ "$setup" != 0 ]; then
        echo "a group's setup failed"
    elif [ "$cases" = 0 ]; then
        echo "has no cases"
    elif [ "$cases" != "$planned" ]; then
        echo "announced $planned cases and reported $cases"
    elif [ "$code" != 0 ] && [ "$failed" = 0 ]; then
        echo "ended with exit code $code and no failed case"
    fi
}

total_passed=0 total_failed=0 total_skipped=0 programs=0
run_program() { # name seconds command...
    local name=$1 seconds=$2 code=0 begin end fault
    shift 2
    local out=$logs/$name.out err=$logs/$name.err passed failed skipped planned setup
    begin=$(date +%s%N)
    timeout -k 10 "$((seconds * scale))" "$@" >"$out" 2>"$err" </dev/null || code=$?
    end=$(date +%s%N)
    read -r passed failed skipped planned setup < <(count_cases "$out")
    fault=$(program_fault "$code" "$passed" "$failed" "$skipped" "$planned" "$setup")
    [ -z "$fault" ] || failed=$((failed + 1))
    programs=$((programs + 1))
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    total_skipped=$((total_skipped + skipped))
    local word=ok tenths=$(((end - begin) / 100000000))
    [ "$failed" = 0 ] || word=FAIL
    printf '%-4s %-36s %4d passed %3d failed %3d skipped %5d.%d s\n' \
        "$word" "$name" "$passed" "$failed" "$skipped" $((tenths / 10)) $((tenths % 10))
    [ -z "$fault" ] || echo "     $name $fault"
    if [ "$failed" != 0 ]; then
        echo "     ---- $out"
        # what passed is no news
        grep -avE '^ok [0-9]+' "$out" | tail -n 60 | sed 's/^/     /' || true
        echo "     ---- $err"
        tail -n 60 "$err" | sed 's/^/     /'
    elif [ "$skipped" != 0 ]; then
        grep -aE '^(not )?ok [0-9]+.*# *(SKIP|skip)' "$out" | sed 's/^[^#]*#/     #/'
        tail -n 12 "$err" | sed 's/^/       /'
    fi
}

while read -r name seconds speed script; do
    case $name in '' | '#'*) continue ;; esac
    wanted "$name" "$speed" || continue
    if [ $list = yes ]; then
        echo "$name"
        continue
    fi
    if [ -n "$script" ]; then
        run_program "$name" "$seconds" bash "$script"
    else
        run_program "$name" "$seconds" ${emulator[@]+"${emulator[@]}"} "$build/tests/$name"
    fi
done <"$build/tests.list"

[ $list = no ] || exit 0

if [ "$programs" = 0 ]; then
    echo "run_tests: no test program was run" >&2
    total_failed=$((total_failed + 1))
fi
echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
[ "$total_failed" = 0 ]
