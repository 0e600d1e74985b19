#!/usr/bin/env bash
# shellcheck disable=SC2016 # the programs that are written here expand their variables themselves
# tests/tools/test_gpu_check.sh - tools/gpu_check.sh tells what the programs told it: each is played by
# a script, and so are ssh and compute-sanitizer. What runs on a GPU is not tested here.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gpu=$work/tree/build/cuda/gpu
names=$(grep -oE '^ *sheaf_cuda_(test|program)\([^)]*' tests/cuda/CMakeLists.txt |
    grep -oE '(test_cuda_[a-z]*|bench_cuda_[a-z]*)' | sort -u)

program() { # NAME LINE...: a program that does this
    printf '#!/bin/sh\n' >"$gpu/$1"
    printf '%s\n' "${@:2}" >>"$gpu/$1"
    chmod +x "$gpu/$1"
}

tree() { # every program as it should be: two cases and a skipped one, a line of a bench
    rm -rf "${work:?}"/tree "${work:?}"/bin
    mkdir -p "$gpu/lib" "$work/tree/tools" "$work/bin"
    cp tools/gpu_check.sh "$work/tree/tools/"
    for name in $names bench_cuda; do
        case $name in
        bench_*) program "$name" 'echo "figures of $0 $*"' ;;
        *) program "$name" 'echo "ok 1 - a"; echo "ok 2 - b"; echo "not ok 3 # SKIP c"' ;;
        esac
    done
    printf '#!/bin/sh\necho "========= ERROR SUMMARY: ${ERRORS:-0} errors"\n[ "${ERRORS:-0}" = 0 ] || exit 86\n' \
        >"$work/bin/compute-sanitizer"
    printf '#!/bin/sh\necho "$1" >"%s/host"\nshift\ncd / && exec sh -c "$*"\n' "$work" >"$work/bin/ssh"
    chmod +x "$work"/bin/*
}

check() { # what gpu_check.sh is told; its output to $work/out, its exit code to $code
    code=0
    (cd / && PATH=$work/bin:$PATH "$work/tree/tools/gpu_check.sh" "$@") >"$work/out" 2>&1 || code=$?
    last=$(tail -n 1 "$work/out")
}

tree
check all "$work/logs"
n=$(printf '%s\n' "$names" | grep -c '^test_')
tap_equal every_program_is_run "$((2 * n + 4 + 2 * n - 2)) passed, 0 failed, $n skipped" "$last"
tap_equal all_is_well 0 "$code"
check test "$work/logs"
tap_equal tests_alone_have_no_benches "" "$(grep figures "$work/out" || true)"
check bench "$work/logs"
tap_equal benches_alone_have_no_tests "4 passed, 0 failed, 0 skipped" "$last"
tap_equal figures_are_shown 4 "$(grep -c figures "$work/out")"

program test_cuda_decode 'echo "ok 1 - a"; kill -SEGV $$'
check test "$work/logs"
tap_equal a_program_that_breaks_off_has_failed "1 1" "$code $(echo "$last" | grep -oE '[0-9]+ failed' | cut -d' ' -f1)"
program test_cuda_decode 'echo "ok 1 - a"; echo "not ok 2 - b"; exit 1'
check test "$work/logs"
tap_equal a_case_that_fails_is_named yes "$(grep -q 'not ok 2 - b' "$work/out" && echo yes)"
tree
rm "$gpu/test_cuda_mixed"
check all "$work/logs"
tap_equal a_program_that_is_missing_has_failed "1 1" "$code $(grep -c 'test_cuda_mixed is not in' "$work/out")"
tree
chmod -x "$gpu"/test_cuda_*
check test "$work/logs"
tap_equal programs_that_lost_their_mode_are_run 0 "$code"
ERRORS=3 check test "$work/logs"
tap_equal what_a_sanitizer_finds_fails 1 "$code"
for name in $names bench_cuda; do program "$name" 'exit 77'; done
check bench "$work/logs"
tap_equal nothing_that_ran_is_a_failure 1 "$code"
tap_equal and_says_so "0 passed, 1 failed, 4 skipped" "$last"
touch "$work/logs/mine.log"
check bench "$work/logs"
tap_equal logs_of_others_stay 1 "$(find "$work/logs" -name mine.log | wc -l)"

tree
check on somewhere all "$work/far"
tap_equal the_other_machine_is_asked somewhere "$(cat "$work/host")"
tap_equal its_summary_comes_back "0 $((4 * n + 2)) passed, 0 failed, $n skipped" "$code $last"
tap_equal its_logs_come_back 1 "$(find "$work/far" -name test_cuda_decode.log | wc -l)"
program test_cuda_append 'echo "not ok 1 - a"; exit 1'
check on somewhere test "$work/far"
tap_equal its_failure_is_a_failure 1 "$code"
check pack "$work/pack.tar.gz"
tap_equal what_is_packed_is_enough "$(printf '%s\n' bench_cuda "$names" | grep -c .) 1" \
    "$(tar -tzf "$work/pack.tar.gz" | grep -cE '_cuda') $(tar -tzf "$work/pack.tar.gz" | grep -c gpu_check.sh)"
check everything
tap_equal an_unknown_word_is_refused 2 "$code"
rm -r "$gpu"
check all
tap_equal without_programs_it_says_what_makes_them "2 1" "$code $(grep -c './run build cuda' "$work/out")"
tap_end
