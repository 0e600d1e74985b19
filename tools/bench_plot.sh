#!/usr/bin/env bash
# tools/bench_plot.sh - draws what benches have measured: pictures for docs/.
#
# usage: tools/bench_plot.sh [DIR [OUT]]    DIR (build/bench) has lines of --save in *.json; OUT (docs) gets
#                                           bench-NAME.svg for each bench that has figures there
#
# Marks are dashed lines. Exit code 3: gnuplot or jq is not here.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/bench} out=${2:-$root/docs}

for program in gnuplot jq; do
    command -v $program >/dev/null && continue
    echo "bench_plot: $program is not here; plots need it (./run deps plot)" >&2
    exit 3
done
shopt -s nullglob
files=("$dir"/*.json)
[ ${#files[@]} -gt 0 ] || { echo "bench_plot: no figures in $dir: ./run bench all writes them" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# of several figures of one row the last counts
jq -n '[inputs] | group_by([.bench, .case, .unit]) | [.[] | last]' "${files[@]}" >"$work/last"
jq -n --slurpfile last "$work/last" '[inputs] | map({bench, case}) | reduce .[] as $row ([];
    if index([$row]) then . else . + [$row] end)' "${files[@]}" >"$work/order"

# table BENCH CASES UNIT...: a line a case whose name matches: its name, then a value a unit or "?".
table() {
    local bench=$1 cases=$2
    shift 2
    jq -rn --slurpfile last "$work/last" --slurpfile order "$work/order" --arg bench "$bench" --arg cases "$cases" '
        $order[0][] | select(.bench == $bench and (.case | test($cases))) | .case as $case |
        [$ARGS.positional[] as $unit |
            ([$last[0][] | select(.bench == $bench and .case == $case and .unit == $unit) | .value] | last)] |
        select(any(. != null)) | ["\"\($case)\""] + map(if . == null then "?" else tostring end) | join(" ")' \
        --args "$@"
}

# bars NAME TITLE AXIS BENCH CASES MARKS UNIT...: clusters of bars, a colour a unit. MARKS: "0.85 a label" lines,
# separated by ";". EXTRA: further gnuplot commands; TILT: of the cases' names, in degrees.
bars() {
    local name=$1 title=$2 axis=$3 bench=$4 cases=$5 marks=$6 mark n=2 plots='' number=1 unit
    shift 6
    table "$bench" "$cases" "$@" >"$work/$name"
    [ -s "$work/$name" ] || { echo "bench_plot: no figures for bench-$name.svg" >&2; return 0; }
    for unit in "$@"; do
        plots+="${plots:+, }'$work/$name' using $n:xtic(1) title \"$unit\""
        n=$((n + 1))
    done
    while IFS= read -r -d ';' mark; do
        plots+=", ${mark%% *} with lines dashtype 2 linewidth 2 linecolor rgb '$(mark_colour $number)' title \"${mark#* }\""
        number=$((number + 1))
    done <<<"${marks:+$marks;}"
    gnuplot <<PLOT
set terminal svg size 1000,520 font "sans-serif,13" background rgb "white"
set output "$out/bench-$name.svg"
set title "$title" font ",16"
set ylabel "$axis"
set style data histograms
set style histogram clustered gap 1.5
set style fill solid 0.85 border -1
set xtics rotate by ${TILT:-32} right font ",11"
set lmargin 16
set grid ytics linecolor rgb "#cccccc"
set key outside top center horizontal
set yrange [0:*]
set datafile missing "?"
set linetype 1 linecolor rgb "#31688e"
set linetype 2 linecolor rgb "#7fc97f"
set linetype 3 linecolor rgb "#fdae61"
set linetype 4 linecolor rgb "#9e9ac8"
${EXTRA:-}
plot $plots
PLOT
    echo "bench_plot: $out/bench-$name.svg" >&2
}
mark_colour() { case $1 in 1) echo "#b2182b" ;; 2) echo "#1b7837" ;; *) echo "#4d4d4d" ;; esac; }

bars attention "Decode attention, 32 query heads, 8 KV heads" "ratio" attention '^decode .*[0-9]$' \
    "0.85 mark: 0.85 of read bandwidth" "of read bandwidth" "of FMA peak"
bars codecs "Decoding 32k tokens: codecs of K and V against bf16" "times as fast" attention '^decode .* b1 c32768$' \
    "1.6 mark for int8: 1.6;2.2 mark for turbo4: 2.2" "as fast as bf16"
bars prefill "Prefill attention, 512 queries after 4,096 tokens" "ratio" attention '^prefill' \
    "0.6 mark: 0.6" "of FMA peak"
bars matmul "Matrix products (NxK weights, M rows)" "ratio" matmul '' \
    "0.85 mark, one row: 0.85 of read bandwidth;0.75 mark, 512 rows: 0.75 of FMA peak" \
    "of read bandwidth" "of FMA peak"
TILT=50 bars gather "Decoding in blocks, against one contiguous buffer" "ratio" gather 'bt' \
    "0.98 mark, shuffled: 0.98" "of contiguous"
bars model "Whole model, random:qwen3-0.6b" "ratio" model '' \
    "0.8 mark, decode b1 d0: 0.8 of read bandwidth;0.65 mark, prefill d0: 0.65 of FMA peak" \
    "of read bandwidth" "of FMA peak"
bars codec "Encoding and decoding, one thread" "G numbers/s" codec '' "" "G numbers/s"
bars append "Appending K and V of a token, 28 layers" "times memcpy (logarithmic)" append '' \
    "1.5 mark, write bf16 from bf16: 1.5" "times memcpy"
EXTRA='set logscale y' bars growth "Growing by a slab of 56 MiB" "ms (logarithmic)" growth 'held$' "" \
    "ms, its first touch" "ms, dense: copy"
bars footprint "Eight distinct prompts of 4,000 tokens, qwen3-0.6b" "MiB" footprint '' "" \
    "MiB, live K and V" "MiB, peak" "MiB, committed"
EXTRA='set yrange [*:*]' bars quality "Perplexity of the demo model, chats of all lengths" "% over f32" quality ', all$' \
    "0.1 mark for int8: 0.1;3 mark for turbo4: 3" "%, perplexity over f32"
EXTRA='set yrange [0:110]' bars recall "Recall of the demo model" "%" quality '^(f32|bf16|int8|turbo4), ' "" "%, recall"
