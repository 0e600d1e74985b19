#!/usr/bin/env bash
# tools/gpu_check.sh - on a machine with a GPU: the tests, the sanitizer and the benches of build/cuda/gpu.
#
#   tools/gpu_check.sh [test|bench|all] [LOG-FOLDER]           here
#   tools/gpu_check.sh on HOST [test|bench|all] [LOG-FOLDER]   carries the binaries to HOST by ssh and runs them there
#   tools/gpu_check.sh pack FILE                               what has to be carried, as one tar.gz, where ssh is not
#
# Takes four minutes at most. Builds nothing: `./run build cuda` does, on a machine with nvcc, and build/cuda/gpu
# is all that this one needs of it, beside this script. Each part has a limit of time and its log in LOG-FOLDER
# (build/cuda/logs; on another machine it comes back to this one); a part that fails does not stop the others, and a
# program that should be there and is not has failed. A summary comes last, whose last line is "N passed, N failed,
# N skipped"; the exit code is 1 when anything failed, or nothing ran. What CUDA refuses on purpose (memory that the
# card lacks) is no error.
set -u
cd "$(dirname "$0")/.." || exit 1
gpu=build/cuda/gpu
limit=235 # seconds, after which nothing long begins or goes on
programs=(test_cuda_append test_cuda_decode test_cuda_device test_cuda_mixed test_cuda_model test_cuda_prefill
    test_cuda_products)
benches=(bench_cuda bench_cuda_prefill)

usage() {
    echo "gpu_check: $1; tools/gpu_check.sh [on HOST] [test|bench|all] [LOG-FOLDER], or pack FILE" >&2
    exit 2
}

pack() { tar -czf "$1" tools/gpu_check.sh "$gpu"; }

# on_host HOST WHAT LOG-FOLDER: the logs come back after the last line, as a tar behind a line of its own.
on_host() {
    local code end=gpu-check-logs-follow
    mkdir -p "$3"
    # shellcheck disable=SC2016 # the variables are those of the other machine
    pack - | ssh "$1" 'd=$(mktemp -d) && tar -xz -C "$d" && "$d/tools/gpu_check.sh" '"$2"' "$d/logs"
        code=$?; echo '"$end"' $code; tar -cz -C "$d/logs" . | base64; rm -rf "$d"' >"$3/answer"
    sed "/^$end /,\$d" "$3/answer"
    code=$(sed -n "s/^$end //p" "$3/answer")
    sed "1,/^$end /d" "$3/answer" | base64 -d 2>/dev/null | tar -xz -C "$3" 2>/dev/null
    rm -f "$3/answer"
    return "${code:-1}"
}

[ -d "$gpu" ] || { echo "gpu_check: there is no $gpu: ./run build cuda makes it" >&2; exit 2; }
host=
case ${1:-all} in
pack)
    [ $# = 2 ] || usage "pack wants a file"
    pack "$2"
    exit
    ;;
on)
    [ $# -ge 2 ] || usage "on wants a host"
    host=$2
    shift 2
    ;;
esac
what=${1:-all}
logs=${2:-build/cuda/logs}
case $what in test | bench | all) ;; *) usage "test, bench or all, not \"$what\"" ;; esac
if [ -n "$host" ]; then
    on_host "$host" "$what" "$logs"
    exit
fi
mkdir -p "$logs" || exit 1
rm -f "$logs"/{test,bench}_*.log "$logs"/{mem,race}check-* # of a run before
for program in "${programs[@]}" "${benches[@]}"; do # where they came without their mode
    [ -x "$gpu/$program" ] || [ ! -f "$gpu/$program" ] || chmod +x "$gpu/$program"
done
export LD_LIBRARY_PATH=$PWD/$gpu/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin # compute-sanitizer
passed=0 failed=0 skipped=0
summary=

note() { summary+="$*"$'\n'; }

# seconds_for N: N, or what is left of the limit.
seconds_for() {
    local left=$((limit - SECONDS))
    echo $((left < $1 ? left : $1))
}

# is_there PROGRAM: else it has failed. has_time PROGRAM: else it is skipped.
is_there() {
    [ -x "$gpu/$1" ] && return
    failed=$((failed + 1))
    note "$1 is not in $gpu"
    return 1
}

has_time() {
    [ "$(seconds_for 45)" -ge 10 ] && return
    skipped=$((skipped + 1))
    note "$1: no time is left for it"
    return 1
}

# run_test NAME: counts its cases; a program that breaks off is one failure more.
run_test() {
    local name=$1 log=$logs/$1.log begin=$SECONDS code p f s
    is_there "$name" && has_time "$name" || return
    CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "$(seconds_for 45)" "$gpu/$name" >"$log" 2>&1
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
    SHEAF_GPU_SHORT=1 CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "$3" compute-sanitizer --tool "$1" \
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
    for program in "${programs[@]}"; do
        [ -x "$gpu/$program" ] || continue
        pairs+=("memcheck $gpu/$program")
        case $program in test_cuda_device | test_cuda_model) continue ;; esac # no kernels of ours
        pairs+=("racecheck $gpu/$program")
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

# run_bench NAME PROGRAM [ARGUMENT]: its output is its summary.
run_bench() {
    local log=$logs/bench_$1.log code
    is_there "$2" && has_time "bench $1" || return
    timeout -k 5 "$(seconds_for 45)" "$gpu/$2" "${@:3}" >"$log" 2>&1
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
    for program in "${programs[@]}"; do run_test "$program"; done
fi
if [ "$what" != test ]; then
    for bench in pool append decode; do run_bench $bench bench_cuda $bench; done
    run_bench prefill bench_cuda_prefill
fi
[ "$what" = bench ] || sanitize_all
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader \
    2>/dev/null | head -n 1
printf '%s' "$summary"
echo "in all $SECONDS s"
[ $((passed + failed)) != 0 ] || failed=1
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
