#!/usr/bin/env bash
# tools/bench_marks.sh - the marks of bench/marks.tsv beside what benches have measured, as a table.
#
# usage: tools/bench_marks.sh [DIR]     DIR (build/bench) has lines of --save in *.json; of several figures
#                                       of one row the last counts, in the order of the files' names
#
# A line of bench/marks.tsv: what, bench, case, unit, "least" or "most", mark; tabs between.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$root/build/bench}

command -v jq >/dev/null || { echo "bench_marks: jq is not here (./run deps test)" >&2; exit 3; }
shopt -s nullglob
files=("$dir"/*.json)
[ ${#files[@]} -gt 0 ] || { echo "bench_marks: no figures in $dir: ./run bench all writes them" >&2; exit 1; }

echo "| what | bench | case | unit | mark | measured | |"
echo "|---|---|---|---|---|---|---|"
jq -rn --rawfile marks "$root/bench/marks.tsv" '
    def short: if fabs < 1000 then (. * 100 | round) / 100 | tostring |
            if test("\\.[0-9]$") then . + "0" elif test("\\.") then . else . + ".00" end
        else round | tostring end;
    (reduce inputs as $line ({}; .[[$line.bench, $line.case, $line.unit] | join("\t")] = $line.value)) as $found |
    $marks | split("\n")[] | select(length > 0) | split("\t") |
    . as [$what, $bench, $case, $unit, $sense, $mark] |
    $found[[$bench, $case, $unit] | join("\t")] as $value |
    (if $sense == "least" then $value >= ($mark | tonumber) else $value <= ($mark | tonumber) end) as $met |
    "| \($what) | `\($bench)` | \($case) | \($unit) | at \($sense) \($mark) | " +
    (if $value == null then "- | not measured |"
     else "\($value | short) | \(if $met then "met" else "**missed**" end) |" end)' "${files[@]}"
