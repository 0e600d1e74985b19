#!/usr/bin/env bash
# tests/cli/e2e_demo.sh - the demo, whole: right answers, equal bits, shared blocks.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=$(readlink -f "${SHEAF_BUILD_DIR:?}/bin/sheaf")
out=$("$sheaf" demo -q 10 2>/dev/null)
last=$(tail -n 1 <<<"$out")
echo "$last" >&2
pattern='^demo: ([0-9]+) of 10 right, paged equals dense: (yes|no), ([0-9]+) blocks held instead of ([0-9]+)$'
if [[ $last =~ $pattern ]]; then
    tap_ok "the_last_line_has_its_form"
    tap_equal "every_answer_is_right" 10 "${BASH_REMATCH[1]}"
    tap_equal "paged_equals_dense_to_the_bit" yes "${BASH_REMATCH[2]}"
    # ten tables of some 116 blocks each; shared, one catalogue and a block or two for each question
    tap_equal "blocks_are_shared" yes \
        "$([ "${BASH_REMATCH[3]}" -lt $((BASH_REMATCH[4] / 5)) ] && [ "${BASH_REMATCH[4]}" -gt 1000 ] && echo yes)"
else
    tap_not_ok "the_last_line_has_its_form" "$last"
fi
tap_equal "a_row_for_each_question" 10 "$(grep -c ' right .* of ' <<<"$out")"
model=$PWD/models/sheaf-demo
tap_equal "the_demo_runs_from_any_directory" "demo: 1 of 1 right" \
    "$(cd / && "$sheaf" demo -q 1 -m "$model" 2>/dev/null | tail -n 1 | cut -d, -f1)"
tap_end
