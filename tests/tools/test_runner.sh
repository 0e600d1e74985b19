#!/usr/bin/env bash
# tests/tools/test_runner.sh - the counting of tools/run_tests.sh, with programs that go wrong in
# every way it must notice.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tests"

program() { # name: its body from standard input
    { echo '#!/usr/bin/env bash'; cat; } >"$work/tests/$1"
    chmod +x "$work/tests/$1"
}
program good <<<'echo 1..2; echo "ok 1 - a"; echo "ok 2 - b"'
program bad <<<'echo 1..2; echo "ok 1 - a"; echo "not ok 2 - b"; echo "# why it failed"; exit 1'
program raw <<<'echo 1..2; printf "ok 1 - a\377\n"; echo "not ok 2 - b"; printf "# because \377\n"; exit 1'
program skips_115 <<<'echo 1..2; echo "ok 1 - a"; echo "data/x is absent" >&2; echo "not ok 2 # SKIP b"'
program skips_117 <<<'echo 1..2; echo "ok 1 - a"; echo "data/y is absent" >&2; echo "ok 2 # SKIP b"'
program short <<<'echo 1..3; echo "ok 1 - a"; echo "ok 2 - b"'
program long <<<'echo 1..1; echo "ok 1 - a"; echo "ok 2 - b"'
program planless <<<'echo "ok 1 - a"'
program crash <<<'echo 1..2; echo "ok 1 - a"; kill -SEGV $$'
program late <<<'echo 1..2; echo "ok 1 - a"; sleep 20; echo "ok 2 - b"'
program exits <<<'echo 1..1; echo "ok 1 - a"; exit 3'
program empty <<<'exit 0'
program none <<<'echo 1..0'
program setup <<<'echo 1..2; echo "not ok 0 - group [  FAILED  ] GROUP SETUP"; exit 1'
program two_groups <<<'echo 1..1; echo "ok 1 - a"; echo 1..2; echo "ok 1 - b"; echo "ok 2 - c"'
program chatty <<<'echo 1..1; echo "okay 7"; echo "this is not ok 3"; echo "ok then"; echo "ok 1 - a"'
program reader <<<'read -r line && exit 9; echo 1..1; echo "ok 1 - a"'
script=$work/script.sh # not executable: a script is given to bash
echo 'echo 1..1; echo "ok 1 - a"' >"$script"
for name in good bad raw skips_115 skips_117 short long planless crash late exits empty none setup \
    two_groups chatty reader absent; do
    case $name in two_groups) speed=slow ;; *) speed=fast ;; esac
    echo "$name 2 $speed"
done >"$work/tests.list"
echo "script 2 fast $script" >>"$work/tests.list"

out=
code=0
runner() {
    code=0
    out=$(SHEAF_TIMEOUT_SCALE=1 bash tools/run_tests.sh "$work" "$@" 2>&1 <<<'a line of input') || code=$?
}
expect() { # case-name expected-last-line expected-exit-code runner-arguments...
    local name=$1 line=$2 exit_code=$3
    shift 3
    runner "$@"
    tap_equal "$name" "$line, exit $exit_code" "$(tail -n 1 <<<"$out"), exit $code"
}
shows() { # case-name text: in the output of the last run
    if [[ $out == *"$2"* ]]; then tap_ok "$1"; else tap_not_ok "$1" "$out"; fi
}

printf '%s\n' env EMULATED=yes >"$work/tests.emulator"
# shellcheck disable=SC2016 # for the program
program emulated <<<'echo 1..1; [ "$EMULATED" = yes ] && echo "ok 1 - a"'
echo "emulated 2 fast" >>"$work/tests.list"
expect the_emulators_words_start_a_program "1 passed, 0 failed, 0 skipped" 0 emulated
rm "$work/tests.emulator"

expect passes_are_counted "2 passed, 0 failed, 0 skipped" 0 good
expect a_failed_case_is_one_failure "1 passed, 1 failed, 0 skipped" 1 bad
shows a_failure_shows_its_output "# why it failed"
expect bytes_that_are_no_text_are_counted_around "1 passed, 1 failed, 0 skipped" 1 raw
shows a_failure_shows_bytes_that_are_no_text $'# because \377'
expect a_skip_of_cmocka_1_1_5_is_a_skip "1 passed, 0 failed, 1 skipped" 0 skips_115
shows a_skip_of_cmocka_1_1_5_shows_its_reason "data/x is absent"
expect a_skip_of_cmocka_1_1_7_is_a_skip "1 passed, 0 failed, 1 skipped" 0 skips_117
shows a_skip_of_cmocka_1_1_7_shows_its_reason "data/y is absent"
expect fewer_results_than_announced_are_a_failure "2 passed, 1 failed, 0 skipped" 1 short
expect more_results_than_announced_are_a_failure "2 passed, 1 failed, 0 skipped" 1 long
expect results_without_a_plan_are_a_failure "1 passed, 1 failed, 0 skipped" 1 planless
expect a_crash_is_one_failure "1 passed, 1 failed, 0 skipped" 1 crash
shows a_crash_is_named "crashed (signal 11)"
expect a_timeout_is_one_failure "1 passed, 1 failed, 0 skipped" 1 late
shows a_timeout_is_named "ran out of time"
expect an_exit_code_without_a_failed_case_is_a_failure "1 passed, 1 failed, 0 skipped" 1 exits
expect a_program_without_output_is_a_failure "0 passed, 1 failed, 0 skipped" 1 empty
expect a_program_without_cases_is_a_failure "0 passed, 1 failed, 0 skipped" 1 none
expect a_failed_group_setup_is_one_failure "0 passed, 1 failed, 0 skipped" 1 setup
expect a_missing_program_is_a_failure "0 passed, 1 failed, 0 skipped" 1 absent
expect several_groups_in_a_program_add_up "3 passed, 0 failed, 0 skipped" 0 two_groups
expect text_that_only_looks_like_results_is_ignored "1 passed, 0 failed, 0 skipped" 0 chatty
expect programs_get_no_input "1 passed, 0 failed, 0 skipped" 0 reader
expect scripts_need_not_be_executable "1 passed, 0 failed, 0 skipped" 0 script
expect programs_add_up "5 passed, 1 failed, 1 skipped" 1 good bad skips_117 chatty
expect names_may_be_patterns "2 passed, 0 failed, 2 skipped" 0 'skips_*'
expect fast_leaves_out_slow_programs "2 passed, 0 failed, 0 skipped" 0 --fast good two_groups
expect nothing_run_is_a_failure "0 passed, 1 failed, 0 skipped" 1 no_such_name
runner --wrong
tap_equal an_unknown_flag_is_refused 2 "$code"
tap_end
