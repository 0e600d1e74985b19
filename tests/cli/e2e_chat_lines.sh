#!/usr/bin/env bash
# tests/cli/e2e_chat_lines.sh - `sheaf chat` with lines from a pipe: answers, what a turn prefills, what is full.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
demo=models/sheaf-demo
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
catalogue="You are sheaf-demo, a tiny model made to test KV caches. Answer from the catalogue.

Item 381: a brass lantern, green, 41 crowns, shelf 12, from Oram.
Item 112: a wool lamp, blue, 7 crowns, shelf 40, from Kelden."

chat() { # lines flags...: leaves $code, $work/out and $work/err
    local lines=$1
    shift
    code=0
    # shellcheck disable=SC2059 # a format on purpose
    printf "$lines" | "$sheaf" chat -m $demo "$@" >"$work/out" 2>"$work/err" || code=$?
}
said() { paste -sd '|' "$work/out"; }
# the numbers that /stats gave: kept and prefilled, a line each time
kept() { sed -n 's/^last turn: \([0-9]*\) tokens kept, \([0-9]*\) prefilled.*/\1 \2/p' "$work/err"; }
context() { sed -n 's/^turns: [0-9]*, context: \([0-9]*\) of.*/\1/p' "$work/err"; }
has() { if grep -q -e "$2" "$work/err"; then tap_ok "$1"; else tap_not_ok "$1" "no \"$2\" in:" "$(cat "$work/err")"; fi; }

questions='Where is item 381 kept?\n/stats\nWhat colour is item 112?\n/stats\n'
chat "$questions" --system "$catalogue"
tap_equal lines_are_answered_in_turn "0 It is on shelf 12.|It is blue." "$code $(said)"
read -r first second <<<"$(context | paste -sd ' ')"
answer=$(printf 'It is on shelf 12.' | "$sheaf" tokenize -m $demo | wc -w)
tap_equal the_first_turn_prefills_all "0 $((first - answer))" "$(kept | head -n 1)"
read -r n_kept n_new <<<"$(kept | tail -n 1)"
tap_equal the_second_keeps_all_of_the_first "$first" "$n_kept"
answer=$(printf 'It is blue.' | "$sheaf" tokenize -m $demo | wc -w)
tap_equal kept_prefilled_and_answered_make_the_context "$second" $((n_kept + n_new + answer))
# a block is 32 tokens of 8 layers, 2 heads, 64 numbers of K and as many of V, 2 bytes each
has blocks_are_those_of_the_context "KV bf16 in blocks: $(((second + 31) / 32)) held"

chat "$questions" --system "$catalogue" --kv-backend dense
tap_equal the_dense_backend_answers_the_same "0 It is on shelf 12.|It is blue." "$code $(said)"
tap_equal the_dense_backend_keeps_the_same "$n_kept $n_new" "$(kept | tail -n 1)"
has the_dense_backend_shows_its_bytes "in a dense buffer: 1.0 MiB held"

chat 'Where is item 381 kept?\n/reset\n/stats\nWhere is item 112 kept?\n/stats' --system "$catalogue"
tap_equal a_reset_conversation_begins_anew "0 It is on shelf 12.|It is on shelf 40." "$code $(said)"
tap_equal a_reset_conversation_holds_nothing "0 0" "$(kept | head -n 1)"
tap_equal a_reset_conversation_keeps_nothing 0 "$(kept | tail -n 1 | cut -d' ' -f1)"

one_line="Answer from the catalogue. Item 381: a brass lantern, green, 41 crowns, shelf 12, from Oram."
chat "/system $one_line\nWhere is item 381 kept?\n/system\nHello.\n/stats" -n 5
tap_equal a_system_message_is_set_by_a_command \
    "$("$sheaf" run -q -m $demo --system "$one_line" -p "Where is item 381 kept?" -n 5)" "$(head -n 1 "$work/out")"
has a_system_message_is_taken_away "no system message now"
has a_limit_of_tokens_is_told "Stopped by --max-tokens"

chat 'Where is item 381 kept?\r\n\n  \n' --system "$catalogue" -n 8
tap_equal empty_lines_are_no_questions 2 "$(wc -l <"$work/out")"
tap_equal the_end_of_a_line_is_cut_off "It is on shelf 12." "$(head -n 1 "$work/out")"
chat '/quit\nHello.\n'
tap_equal quit_ends "0 " "$code $(said)"
chat '/frob\nWhere is item 381 kept?\n' --system "$catalogue"
tap_equal a_wrong_command_is_a_sentence_and_an_exit_code "1 It is on shelf 12." "$code $(said)"
has the_wrong_command_is_named "'/frob': no such command"
chat 'a\0b\nWhere is item 381 kept?\n' --system "$catalogue"
tap_equal a_line_with_a_zero_byte_is_skipped "1 It is on shelf 12." "$code $(said)"
has the_zero_byte_is_told "zero byte"
chat ''
tap_equal nothing_said_is_nothing_answered "0 " "$code $(said)"

chat 'Where is item 381 kept?\nTell me a story.\n/stats\nWhere is item 112 kept?\n/reset\nWhere is item 112 kept?\n' \
    --system "$catalogue" -c 160
tap_equal a_full_context_ends_the_answer 160 "$(context)"
has a_full_context_is_told "The context is full; the conversation is kept, /reset forgets it"
has a_question_that_does_not_fit_is_refused "with this question the conversation has [0-9]* tokens, the context 160"
tap_equal after_a_reset_there_is_room "1 It is on shelf 40." "$code $(tail -n 1 "$work/out")"

chat 'Where is item 381 kept?\nTell me a story.\n/stats\nWhere is item 112 kept?\n/reset\nWhere is item 112 kept?\n' \
    --system "$catalogue" --kv-budget 512KiB
tap_equal a_full_budget_ends_the_answer 128 "$(context)" # four blocks of 128 KiB
has a_full_budget_is_told "no room within the budget; the conversation is kept, /reset forgets it"
has a_full_budget_refuses_a_question "prefill stopped after"
tap_equal after_a_reset_there_is_memory "1 It is on shelf 40." "$code $(tail -n 1 "$work/out")"

# Its tokens beyond the bytes have no text; an answer of them is one all the same.
printf 'Hello.\n/stats\n' | "$sheaf" chat -m random:qwen3-0.6b:layers=1 --chat-template chatml -n 2 >"$work/out" 2>"$work/err"
tap_equal an_answer_without_text_is_a_turn 1 "$(sed -n 's/^turns: \([0-9]*\),.*/\1/p' "$work/err")"

# A window that has slid cannot go back: bytes for tokens, and a model whose answers encode otherwise.
mkdir "$work/gemma"
cp tests/data/fixtures/gemma3/{config.json,model.safetensors} "$work/gemma"
{
    printf '{"version":"1.0","truncation":null,"padding":null,"added_tokens":['
    printf '{"id":256,"content":"<|im_start|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},'
    printf '{"id":257,"content":"<|im_end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],'
    printf '"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":{"type":"ByteFallback"},"model":{"type":"BPE",'
    printf '"dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,'
    printf '"byte_fallback":true,"ignore_merges":false,"merges":[],"vocab":{'
    for byte in {0..255}; do printf '"<0x%02X>":%d%s' "$byte" "$byte" "$([ "$byte" = 255 ] || echo ,)"; done
    printf '}}}'
} >"$work/gemma/tokenizer.json"
windows() { # flags...
    printf 'How do you do, and how is it there?\nAnd what then?\n/stats\nSo be it.\n/stats\n' |
        "$sheaf" chat -m "$work/gemma" --chat-template chatml -n 40 --temp 50 --seed 5 "$@" 2>"$work/err"
}
windows --kv-backend dense >"$work/dense"
tap_equal a_dense_cache_goes_back yes "$([ "$(kept | tail -n 1 | cut -d' ' -f1)" -gt 40 ] && echo yes)"
windows >"$work/paged"
tap_equal a_slid_window_starts_from_nothing 0 "$(kept | tail -n 1 | cut -d' ' -f1)"
tap_equal and_the_answers_are_the_same yes "$(cmp "$work/dense" "$work/paged" && echo yes)"
tap_equal and_are_answers yes "$([ "$(wc -c <"$work/paged")" -gt 60 ] && echo yes)"
tap_end
