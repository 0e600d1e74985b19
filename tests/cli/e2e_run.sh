#!/usr/bin/env bash
# tests/cli/e2e_run.sh - `sheaf run` and `sheaf tokenize` as a user calls them, on real models.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
demo=models/sheaf-demo
stories=../shared/models/TinyStories-656K
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

question="What can you do?"
answer() { # flags...: ids of the demo model's answer
    "$sheaf" run -m $demo -q --chat -p "$question" -n 24 --ids "$@"
}

plain=$(answer)
tap_equal "an_answer_has_tokens" yes "$([ "$(echo "$plain" | wc -w)" -gt 3 ] && echo yes)"
tap_equal "the_dense_backend_gives_the_same_tokens" "$plain" "$(answer --kv-backend dense)"
tap_equal "the_gather_path_gives_the_same_tokens" "$plain" "$(answer --attn gather)"
tap_equal "the_scalar_kernels_give_the_same_tokens" "$plain" "$(answer --isa scalar)"
tap_equal "one_thread_gives_the_same_tokens" "$plain" "$(answer --threads 1)"
tap_equal "three_threads_give_the_same_tokens" "$plain" "$(answer --threads 3)"
tap_equal "chunks_of_seven_give_the_same_tokens" "$plain" "$(answer --prefill-chunk 7)"
tap_equal "copied_weights_give_the_same_tokens" "$plain" "$(answer --copy-weights)"

drawing() { # flags...: ids drawn after the opening of a story
    "$sheaf" run -m $demo -q -p "It was a dark night, and" -n 24 --ids --temp 1 --top-p 0.95 --top-k 50 --min-p 0.01 "$@"
}
drawn=$(drawing --seed 7)
tap_equal "the_same_seed_draws_the_same_tokens" "$drawn" "$(drawing --seed 7 --threads 1 --prefill-chunk 2)"
tap_equal "another_seed_draws_others" others "$([ "$drawn" = "$(drawing --seed 8)" ] || echo others)"

words() { # flags...: an answer's words, a line each
    "$sheaf" run -m $demo -q -p "It was a dark night, and" -n 60 --ids "$@" | tr ' ' '\n'
}
tap_equal "penalties_take_repetition_away" fewer \
    "$([ "$(words | sort -u | wc -l)" -lt "$(words --frequency-penalty 2 --presence-penalty 2 | sort -u | wc -l)" ] && echo fewer)"

story() { # flags...: the text of one
    "$sheaf" run -m $demo -q -p "It was a dark night, and" -n 24 "$@"
}
whole=$(story)
stop=${whole:9:6}
tap_equal "an_answer_ends_before_its_stop_text" "${whole%%"$stop"*}" "$(story --stop "$stop")"
tap_equal "a_stop_text_that_does_not_come_changes_nothing" "$whole" "$(story --stop "${whole: -3}#")"

printf '%s' "$question" >"$work/prompt"
tap_equal "a_prompt_from_a_file_is_the_same_prompt" "$plain" \
    "$("$sheaf" run -m $demo -q --chat -f "$work/prompt" -n 24 --ids)"
tap_equal "a_prompt_from_standard_input_is_the_same_prompt" "$plain" \
    "$("$sheaf" run -m $demo -q --chat -f - -n 24 --ids <"$work/prompt")"

catalogue="You are sheaf-demo, a tiny model made to test KV caches. Answer from the catalogue.

Item 381: a brass lantern, green, 41 crowns, shelf 12, from Oram.
Item 112: a wool lamp, blue, 7 crowns, shelf 40, from Kelden."
tap_equal "the_demo_model_answers_from_its_system_message" "It is on shelf 12." \
    "$("$sheaf" run -m $demo -q --system "$catalogue" -p "Where is item 381 kept?")"
"$sheaf" run -m $demo --system "$catalogue" -p "Where is item 381 kept?" >/dev/null 2>"$work/figures"
tap_equal "figures_go_to_standard_error" 2 "$(wc -l <"$work/figures")"

for types in "--kv-dtype int8" "--kv-dtype turbo4" "--kv-dtype int8 --kv-dtype-v turbo4" "--kv-dtype-k turbo4"; do
    tap_equal "the_demo_model_answers_with_$types" "It is on shelf 12." \
        "$("$sheaf" run -m $demo -q $types --system "$catalogue" -p "Where is item 381 kept?")"
done
tap_equal "figures_name_both_types" 1 "$("$sheaf" run -m $demo -p a -n 1 --kv-dtype int8 --kv-dtype-v turbo4 2>&1 >/dev/null |
    grep -c "KV int8 and turbo4 in blocks")"

tap_equal "a_random_model_answers" 4 \
    "$("$sheaf" run -m random:qwen3-0.6b:layers=1 -q -p abc -n 4 --ids --kv-budget 64MiB | wc -w)"

if [ -d $stories ]; then
    want=$(sed 's/.*"TinyStories-656K":[^}]*"greedy": \[\([0-9, ]*\)\].*/\1/; s/,//g' ../shared/models/goldens.json)
    tap_equal "tinystories_repeats_its_golden_tokens" "$want" \
        "$("$sheaf" run -m $stories -q -p "Once upon a time" --ids --kv-dtype f32)"
    text=$("$sheaf" run -m $stories -q -p "Once upon a time" --kv-dtype f32)
    tap_equal "tinystories_tells_a_story" ", a little girl named Lily lived in a small house" "${text:0:49}"
else
    tap_skip "tinystories_repeats_its_golden_tokens" "$stories is not here"
    tap_skip "tinystories_tells_a_story" "$stories is not here"
fi

tap_equal "tokenize_takes_standard_input_as_it_is" "862 44 1568 33" \
    "$(printf 'Hello, world!' | "$sheaf" tokenize -m $demo)"
tap_equal "tokenize_prints_json" "[862,44,1568,33]" \
    "$(printf 'Hello, world!' | "$sheaf" tokenize -m $demo --json)"
tap_equal "tokenize_knows_special_tokens_and_adds_none" "[4094,862,4095]" \
    "$(printf '<|im_start|>Hello<|im_end|>' | "$sheaf" tokenize -m $demo --json)"
tap_equal "tokenize_of_nothing_is_empty" "[]" "$("$sheaf" tokenize -m $demo --json </dev/null)"
tap_end
