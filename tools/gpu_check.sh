#!/usr/bin/env bash
# tools/gpu_check.sh - on a machine with a GPU: the tests, the sanitizer and the benches of build/cuda/gpu.
#
#   tools/gpu_check.sh [test|bench|all] [LOG-FOLDER]
#
# Takes four minutes at most. Builds nothing: `./run build cuda` does, on a machine with nvcc, and build/cuda/gpu
# is all that this one needs of it. Each part has a limit of time and its log in LOG-FOLDER (build/cuda/logs); a
# part that fails does not stop the others. A summary comes last, whose last line is "N passed, N failed, N skipped";
# the exit code is 1 when anything failed. What CUDA refuses on purpose (memory that the card lacks) is no error.
set -u
cd "$(dirname "$0")/.." || exit 1
what=${1:-all}
logs=${2:-build/cuda/logs}
limit=235 # seconds, after which nothing long begins or goes on
gpu=build/cuda/gpu
case $what in test | bench | all) ;; *) echo "gpu_check: test, bench or all, not \"$what\"" >&2; exit 2 ;; esac
[ -d $gpu ] || { echo "gpu_check: there is no $gpu: ./run build cuda makes it" >&2; exit 2; }
mkdir -p "$logs"
export LD_LIBRARY_PATH=$PWD/$gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
passed=0 failed=0 skipped=0
summary=

note() { summary+="$*"$'\n'; }

# run_test PROGRAM SECONDS: counts its cases; a program that breaks off is one failure more.
run_test() {
    local name log begin=$SECONDS code p f s
    name=$(basename "$1")
    log=$logs/$name.log
    CMOCKA_MESSAGE_OUTPUT=TAP timeout "$2" "$1" >"$log" 2>&1
    code=$?
    s=$(grep -c '# SKIP' "$log") # cmocka writes "not ok 3 # SKIP name"
    p=$(grep -c '^ok ' "$log")
    f=$(grep '^not ok ' "$log" | grep -vc '# SKIP')
    if [ $((p + f + s)) = 0 ] && [ $code = 0 ]; then p=1; fi # a program that counts nothing
    if [ $((p + f + s)) = 0 ] && [ $code = 77 ]; then s=1; fi
    if [ $code != 0 ] && [ $code != 77 ] && [ "$f" = 0 ]; then f=1; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    note "$(printf '%-28s %3d passed %3d failed %3d skipped  %3d s%s' "$name" "$p" "$f" "$s" \
        $((SECONDS - begin)) "$([ $code = 124 ] && echo '  ran out of time')")"
    [[ $p != 1 && $f = 0 ]] || note "$(tail -n 4 "$log")"
    [ "$f" = 0 ] || note "$(grep -A 4 '^not ok [0-9]* -' "$log" | head -n 12; tail -n 3 "$log")"
}

# sanitize TOOL PROGRAM SECONDS: a short run under compute-sanitizer; several may run at once.
sanitize() {
    local name code
    name=$1-$(basename "$2")
    SHEAF_GPU_SHORT=1 CMOCKA_MESSAGE_OUTPUT=TAP timeout "$3" compute-sanitizer --tool "$1" \
        --report-api-errors no --error-exitcode 86 --print-limit 20 "$2" >"$logs/$name.log" 2>&1
    code=$?
    echo "$code" >"$logs/$name.code"
}

# Adds up what a sanitizer's run has left.
look_at() { # TOOL PROGRAM
    local name errors code
    name=$1-$(basename "$2")
    code=$(cat "$logs/$name.code" 2>/dev/null || echo none)
    errors=$(grep -oE '(ERROR|RACECHECK) SUMMARY: [0-9]+.*' "$logs/$name.log" | tail -n 1)
    if [ "$code" = 0 ] && [[ $errors == *'SUMMARY: 0 '* ]]; then
        passed=$((passed + 1))
    elif [ "$code" = 124 ]; then
        skipped=$((skipped + 1)) # ran out of time without a word
    else
        failed=$((failed + 1))
        note "$(grep -E '^=========|^not ok [0-9]* -' "$logs/$name.log" | head -n 8)"
    fi
    note "$(printf '%-40s %s, exit code %s' "$name" "${errors:-no summary}" "$code")"
}

# memcheck of all tests, racecheck of those that have kernels, all at once, in the time that is left.
sanitize_all() {
    local left=$((limit - SECONDS)) program pairs=() pair
    for program in "$gpu"/test_*; do
        [ -x "$program" ] || continue
        pairs+=("memcheck $program")
        case $program in */test_cuda_device | */test_cuda_model) continue ;; esac # no kernels of ours
        pairs+=("racecheck $program")
    done
    if ! command -v compute-sanitizer >/dev/null || [ $left -lt 20 ]; then
        skipped=$((skipped + ${#pairs[@]}))
        note "compute-sanitizer is not here, or there is no time left for it ($left s)"
        return
    fi
    # shellcheck disable=SC2086 # words
    for pair in "${pairs[@]}"; do sanitize $pair $left & done
    wait
    # shellcheck disable=SC2086
    for pair in "${pairs[@]}"; do look_at $pair; done
}

# run_bench NAME COMMAND...: its output is its summary.
run_bench() {
    local log=$logs/bench_$1.log code
    timeout 45 "${@:2}" >"$log" 2>&1
    code=$?
    note "$(cat "$log")"
    case $code in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *)
        failed=$((failed + 1))
        note "bench $1: exit code $code"
        ;;
    esac
}

if [ "$what" != bench ]; then
    for program in "$gpu"/test_*; do [ ! -x "$program" ] || run_test "$program" 45; done
fi
if [ "$what" != test ]; then
    for bench in pool append decode; do run_bench $bench $gpu/bench_cuda $bench; done
    run_bench prefill $gpu/bench_cuda_prefill
fi
[ "$what" = bench ] || sanitize_all
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader \
    2>/dev/null | head -n 1
printf '%s' "$summary"
echo "in all $SECONDS s"
[ $((passed + failed)) != 0 ] || failed=1
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
