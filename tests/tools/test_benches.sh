#!/usr/bin/env bash
# tests/tools/test_benches.sh - every bench runs, and each line of its --json is an object of four fields. The
# sizes are so small that figures mean nothing; they are not looked at.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
build=${SHEAF_BUILD_DIR:?}

if ! command -v jq >/dev/null; then
    tap_skip every_bench_tells_its_figures "jq is not here (./run deps test)"
    tap_end
    exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# lines FILE BENCH: how many there are that jq reads, less those that have other fields than they should.
lines() {
    jq -s --arg bench "$2" '[.[] | if keys == ["bench", "case", "unit", "value"] and .bench == $bench and
        (.case | type) == "string" and (.unit | type) == "string" and (.unit | length) > 0 and
        (.value | type) == "number" then 1 else -1000 end] | add // 0' "$1"
}

for source in bench/bench_*.c; do
    name=$(basename "$source" .c)
    if [ ! -x "$build/bench/$name" ]; then
        tap_skip "${name}_tells_its_figures" "it is not part of this build"
        continue
    fi
    case $name in # what takes longer
    bench_layout) options=(--blocks 8) ;;
    bench_prefix) options=(--part lookup) ;;
    bench_serve) options=(--scenario idle --backend paged --prompt-tokens 48 --answer-tokens 4) ;;
    *) options=() ;;
    esac
    code=0
    timeout 60 "$build/bench/$name" ${options[@]+"${options[@]}"} --tiny --json --threads 2 --save "$work/saved" \
        >"$work/out" 2>"$work/err" || code=$?
    n=$(lines "$work/out" "${name#bench_}") || n=0
    if [ $code = 0 ] && [ "$n" -gt 0 ] && [ "$(wc -l <"$work/out")" = "$n" ]; then
        tap_ok "${name}_tells_its_figures"
    else
        tap_not_ok "${name}_tells_its_figures" "exit code $code, $n good lines of $(wc -l <"$work/out")" \
            "$(cat "$work/err")"
    fi
    tap_empty "${name}_saves_what_it_tells" "$(diff "$work/out" "$work/saved")"
done

code=0
"$build/bench/bench_machine" --tiny --jason >"$work/out" 2>&1 || code=$?
tap_equal a_misspelt_option_is_refused 2 "$code"

# ---- the rows of the marks -----------------------------------------------------------------------

# what tools/bench_marks.sh says of lines from standard input, and its exit code
mkdir "$work/lines"
marks() {
    cat >"$work/lines/attention.json"
    code=0
    said=$(tools/bench_marks.sh "$work/lines" 2>&1) || code=$?
}
marks <<'X'
{"bench":"attention","case":"decode bf16 b1 c32768","value":0.2,"unit":"of read bandwidth"}
{"bench":"attention","case":"decode bf16 b1 c32768","value":0.87,"unit":"of read bandwidth"}
{"bench":"attention","case":"decode bf16 b1 c4096","value":0.5,"unit":"of read bandwidth"}
X
tap_equal marks_are_read_from_the_lines 0 "$code"
row() { grep -cF "| decode bf16 $1 | of read bandwidth | at least 0.85 | $2 |" <<<"$said" || true; }
tap_equal the_last_figure_of_a_row_counts 1 "$(row "b1 c32768" "0.87 | met")"
tap_equal a_missed_mark_is_so_called 1 "$(row "b1 c4096" "0.50 | **missed**")"
tap_equal a_mark_without_a_figure_is_so_called 1 "$(row "b8 c4096" "- | not measured")"
rm "$work/lines/attention.json"
code=0
said=$(tools/bench_marks.sh "$work/lines" 2>&1) || code=$?
tap_equal without_figures_it_is_told_how_to_get_them "1 1" "$code $(grep -c './run bench all' <<<"$said")"

# ---- the pictures --------------------------------------------------------------------------------

if command -v gnuplot >/dev/null; then
    cp "$work/saved" "$work/lines/serve.json"
    "$build/bench/bench_codec" --tiny --threads 2 --save "$work/lines/codec.json" >/dev/null
    mkdir "$work/pictures"
    tools/bench_plot.sh "$work/lines" "$work/pictures" 2>"$work/err" || cat "$work/err" >&2
    tap_equal what_was_measured_is_drawn "bench-codec.svg 1" \
        "$(ls "$work/pictures") $(grep -c '</svg>' "$work/pictures/bench-codec.svg")"
else
    tap_skip what_was_measured_is_drawn "gnuplot is not here (./run deps plot)"
fi
mkdir "$work/bin" # without gnuplot
for program in bash dirname env; do ln -s "$(command -v $program)" "$work/bin/$program"; done
code=0
said=$(PATH=$work/bin tools/bench_plot.sh "$work/lines" "$work" 2>&1) || code=$?
tap_equal without_gnuplot_a_sentence_says_so "3 bench_plot: gnuplot is not here; plots need it (./run deps plot)" \
    "$code $said"
tap_end
