#!/usr/bin/env bash
# tests/cli/e2e_flags.sh - what is asked wrongly is answered with one sentence and the right exit code, and the
# man pages name exactly the flags that --help names.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
demo=models/sheaf-demo
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache # of models' digests

refused() { # name exit-code pattern arguments...: one line on standard error, nothing on standard output
    local name=$1 want=$2 pattern=$3 code=0
    shift 3
    "$sheaf" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
    if [ $code = "$want" ] && [ "$(wc -l <"$work/err")" = 1 ] && [ ! -s "$work/out" ] &&
        grep -q -e "$pattern" "$work/err"; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "exit code $code" "$(cat "$work/err")"
    fi
}

mkdir "$work/bare"
cp $demo/config.json "$work/bare"
: >"$work/empty"

refused an_unknown_command_is_refused 2 "'fly'.*no such command" fly
refused an_unknown_flag_is_refused 2 "--wings: no such flag" run --wings
refused a_flag_without_value_is_refused 2 "needs a value" run -m
refused a_switch_takes_no_value 2 "--quiet=1: takes no value" run --quiet=1
refused an_ambiguous_flag_is_refused 2 "--kv: no such flag, or not unique" run --kv 1
refused a_command_breaks_no_line 2 "'a?b': no such command" $'a\nb'
refused a_value_breaks_no_line 2 "'1?2' is not a whole number" run -m $demo -p a -n $'1\n2'
refused a_missing_model_is_asked_for 2 "--model" run -p hello
refused an_empty_model_is_asked_for 2 "--model" run -m "" -p hello
refused a_missing_prompt_is_asked_for 2 "--prompt or --file" run -m $demo
refused an_empty_name_to_save_to_is_refused 2 "--save-kv: the file's name is empty" run -m $demo -p a --save-kv ""
refused two_prompts_are_refused 2 "--prompt or --file" run -m $demo -p a -f b
refused a_stray_argument_is_refused 2 "unexpected argument" run -m $demo -p a b
refused a_word_for_a_number_is_refused 2 "--max-tokens: 'many' is not a whole number" run -m $demo -p a -n many
refused a_negative_number_is_refused 2 "--threads: '-1'" run -m $demo -p a --threads -1
refused too_many_threads_are_refused 2 "from 1 to 256" run -m $demo -p a --threads 257
refused an_impossible_top_p_is_refused 2 "--top-p: '1.5' is not a number from 0 to 1" run -m $demo -p a --top-p 1.5
refused a_nan_temperature_is_refused 2 "--temp" run -m $demo -p a --temp nan
for flag in threads ctx-size prefill-chunk max-tokens top-k seed kv-budget temp top-p min-p; do
    for value in "" -1 x 0x10 " 1" nan 1e999 18446744073709551616; do
        refused "--$flag='$value'_is_refused" 2 "^sheaf run: --$flag: '$value' is not " run -m $demo -p a --$flag "$value"
    done
done
refused a_context_beyond_the_model_is_refused 1 "8193 positions is beyond the model's 8192" run -m $demo -p a --ctx-size 8193
for flag in isa kv-backend attn kv-dtype kv-dtype-k kv-dtype-v; do
    refused "--${flag}=''_is_refused" 2 "^sheaf run: --$flag: '' is not one of " run -m $demo -p a --$flag ""
done
refused an_unknown_kv_dtype_is_refused 2 "one of f32 f16 bf16 int8 turbo4" run -m $demo -p a --kv-dtype int3
refused an_unknown_kv_dtype_k_is_refused 2 "^sheaf run: --kv-dtype-k: .int3. is not one of f32 f16" run -m $demo -p a --kv-dtype-k int3
refused an_unknown_kv_dtype_v_is_refused 2 "^sheaf run: --kv-dtype-v: .turbo. is not one of f32 f16" run -m $demo -p a --kv-dtype-v turbo
refused an_unknown_backend_is_refused 2 "one of paged dense" run -m $demo -p a --kv-backend cloud
refused a_budget_with_an_odd_suffix_is_refused 2 "--kv-budget: '3MB'" run -m $demo -p a --kv-budget 3MB
refused a_budget_for_the_dense_backend_is_refused 1 "binds the paged backend only" run -m $demo -p a \
    --kv-backend dense --kv-budget 64MiB
printf 'a\0b' >"$work/zero"
refused a_zero_byte_in_a_message_is_refused 2 "zero byte" run -m $demo --chat -f "$work/zero"
refused an_unknown_letter_in_a_bundle_is_named 2 "run: -Z: no such flag" run -qZ
refused a_budget_below_one_block_is_refused 1 "budget" run -m $demo -p a --kv-budget 1KiB
refused an_unknown_template_is_refused 2 "chatml" run -m $demo -p a --chat-template klingon
refused an_unknown_random_model_is_refused 1 "qwen3-0.6b" run -m random:gpt-9 -p a
refused a_missing_directory_is_named 1 "no-such-dir" run -m no-such-dir -p a
refused a_missing_tokenizer_is_named 1 "tokenizer.json" tokenize -m tests/data
refused a_missing_prompt_file_is_named 1 "no-such-file" run -m $demo -f no-such-file
refused an_empty_prompt_is_refused 2 "--prompt: the prompt is empty" run -m $demo -p ""
refused an_empty_prompt_file_is_refused 2 "--file: the prompt is empty" run -m $demo -f /dev/null
refused a_prompt_beyond_the_context_is_refused 1 "context\|positions" run -m $demo -p "a b c d e f g h" --ctx-size 4
refused an_empty_stop_text_is_refused 2 "--stop: the text is empty" run -m $demo -p a --stop ""
refused a_stop_text_among_ids_is_refused 2 "--stop: --ids" run -m $demo -p a --stop b --ids
refused a_penalty_beyond_its_range_is_refused 2 "--presence-penalty: '2.5' is not a number from -2 to 2" \
    run -m $demo -p a --presence-penalty 2.5
refused no_answer_and_nothing_kept_is_refused 2 "0 is for --save-kv" run -m $demo -p a -n 0
refused a_template_without_a_prompt_is_refused 2 "needs a message" run -m $demo --load-kv f --chat
refused two_prompts_and_a_file_are_refused 2 "--prompt or --file" run -m $demo -p a -f b --load-kv f
refused a_file_for_the_dense_backend_is_refused 2 "--save-kv: the dense backend" run -m $demo -p a \
    --kv-backend dense --save-kv f
refused a_file_from_the_dense_backend_is_refused 2 "--load-kv: the dense backend" run -m $demo -p a \
    --kv-backend dense --load-kv f
refused a_file_in_no_directory_is_refused 1 "no-such-dir/f: No such file" run -m $demo -p a --save-kv no-such-dir/f
refused a_directory_is_no_file_to_keep_in 1 "$work: Is a directory" run -m $demo -p a --save-kv "$work"
refused a_missing_file_of_kept_tokens_is_named 1 "no-such-file: No such file" run -m $demo -p a --load-kv no-such-file
refused kv_asks_what_to_do 2 "what to do is missing; usage: sheaf kv dump|verify FILE" kv
refused kv_asks_for_a_file 2 "FILE is missing" kv dump
refused kv_knows_two_things_to_do 2 "'show': neither dump nor verify" kv show f
refused kv_takes_one_file 2 "'b': unexpected argument" kv verify a b
refused kv_verify_shows_nothing 2 "--tokens: is for dump" kv verify --tokens f
refused kv_names_a_missing_file 1 "no-such-file: No such file" kv verify no-such-file
refused kv_refuses_an_empty_file 1 "$work/empty: " kv verify "$work/empty"
refused chat_asks_for_a_missing_model 2 "--model" chat
refused chat_refuses_a_stray_argument 2 "unexpected argument" chat -m $demo hello
refused chat_refuses_a_prompt 2 "no such flag" chat -m $demo -p hello
refused chat_refuses_a_word_for_a_number 2 "--max-tokens: 'many'" chat -m $demo -n many
refused chat_refuses_an_impossible_temperature 2 "--temp: '-1'" chat -m $demo --temp -1
refused chat_refuses_an_unknown_template 2 "chatml" chat -m $demo --chat-template klingon
refused chat_names_a_missing_directory 1 "no-such-dir" chat -m no-such-dir
refused chat_asks_for_a_template 1 "--chat-template" chat -m random:qwen3-0.6b:layers=1
refused inspect_asks_for_a_missing_model 2 "--model" inspect
refused inspect_refuses_an_unknown_kv_dtype 2 "one of f32 f16 bf16 int8 turbo4" inspect -m $demo --kv-dtype int3
refused inspect_refuses_an_odd_budget 2 "--budget: '3MB'" inspect -m $demo --budget 3MB
refused inspect_refuses_a_budget_below_one_block 1 "one block of each group takes 131072 bytes" inspect -m $demo --budget 127KiB
refused inspect_names_a_missing_directory 1 "no-such-dir" inspect -m no-such-dir
refused inspect_names_missing_weights 1 "model.safetensors" inspect -m "$work/bare"
refused inspect_refuses_an_unknown_random_model 1 "qwen3-0.6b" inspect -m random:gpt-9
refused the_demo_refuses_a_backend 2 "--kv-backend" demo --kv-backend dense
refused the_demo_refuses_too_many_questions 2 "from 1 to 60" demo -q 61
if ! grep -q avx512f /proc/cpuinfo; then
    refused an_absent_instruction_set_is_refused 1 "avx512" run -m $demo -p a --isa avx512
fi

closed() { # name command...: standard output is full or closed
    local name=$1 code=0
    shift
    "$@" 2>"$work/err" || code=$?
    tap_equal "$name" "1 standard output" "$code $(grep -o 'standard output' "$work/err" | head -n 1)"
}
on_full() { "$@" >/dev/full; }
on_closed() { "$@" >&-; }
closed a_full_disk_is_a_sentence on_full "$sheaf" run -q -m $demo -p Hello -n 4
closed a_closed_standard_output_is_a_sentence on_closed "$sheaf" run -q -m $demo -p Hello -n 4
say() { printf 'Hello.\n'; }
chat_on_full() { say | "$sheaf" chat -m $demo -n 4 >/dev/full; }
closed a_full_disk_ends_a_chat chat_on_full
closed a_full_disk_stops_inspect_too on_full "$sheaf" inspect -m $demo
closed a_full_disk_stops_kv_too on_full "$sheaf" kv verify tests/data/wire/block.kv
closed a_closed_standard_output_stops_json_too on_closed "$sheaf" kv dump --json tests/data/wire/block.kv
closed a_full_disk_stops_tokenize_too on_full "$sheaf" tokenize -m $demo
closed a_full_disk_stops_the_demo on_full "$sheaf" demo -q 1
on_broken() { # the reader has gone before the first byte
    { sleep 0.2; code=0; "$@" || code=$?; echo $code >"$work/code"; } | :
    return "$(cat "$work/code")"
}
closed a_broken_pipe_is_a_sentence on_broken "$sheaf" run -q -m $demo -p Hello -n 4
for arguments in --help --version "run --help" "inspect -m $demo"; do
    # shellcheck disable=SC2086
    closed "sheaf_${arguments%% *}_on_a_full_disk" on_full "$sheaf" $arguments
    # shellcheck disable=SC2086
    closed "sheaf_${arguments%% *}_closed" on_closed "$sheaf" $arguments
done
code=0
"$sheaf" tokenize -m $demo 2>"$work/err" <&- || code=$?
tap_equal a_closed_standard_input_is_a_sentence "1 sheaf tokenize: standard input: Bad file descriptor" \
    "$code $(cat "$work/err")"

tap_equal "the_version_names_the_instruction_set" yes \
    "$("$sheaf" --version | grep -Eq '^sheaf [0-9.]+, instruction set [a-z0-9]+$' && echo yes)"
for command in run chat serve inspect tokenize kv demo; do
    tap_equal "sheaf_lists_$command" yes "$("$sheaf" --help | grep -q "^  $command " && echo yes)"
    # long flags, in the order in which each page shows them
    "$sheaf" $command --help | sed -n 's/^  \(-[a-z], \|    \)--\([a-z-]*\).*/\2/p' | sort >"$work/help"
    page=man/sheaf-$command.1.scd
    [ -f "$page" ] || page=$page.in
    sed '/^@MODEL_FLAGS@$/ {
        r man/model-flags.scd.in
        d
    }' "$page" | sed -n 's/^\*\(-[a-z], \)\?--\([a-z-]*\)\*.*/\2/p' | sort >"$work/page"
    tap_empty "the_man_page_of_${command}_names_the_flags_of_its_help" "$(diff "$work/help" "$work/page")"
done
tap_end
