#!/usr/bin/env bash
# tests/cli/e2e_completion.sh - bash completes commands, flags and values as the program's --help names them.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
# shellcheck source=completions/sheaf.bash
. completions/sheaf.bash

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/models" "$work/more models"
touch "$work/notes.txt" "$work/more notes.txt"

sorted() { LC_ALL=C sort | paste -sd,; }
completed() { # word...: what completing the last of them offers, in order, joined by commas
    COMP_WORDS=("$sheaf" "$@")
    COMP_CWORD=$(($# > 0 ? $# : 1))
    _sheaf
    printf '%s\n' "${COMPREPLY[@]}" | sorted
}
flags_of() { "$sheaf" "$1" --help | sed -n 's/^  ....\(--[a-z-]*\).*/\1/p' | paste -sd,; }
offers() { # case expected word...
    local name=$1 want
    want=$(tr , '\n' <<<"$2" | sorted)
    shift 2
    tap_equal "$name" "$want" "$(completed "$@")"
}

offers all_commands_are_offered "$("$sheaf" --help | sed -n '/^commands:/,/^$/ s/^  \([a-z]*\) .*/\1/p' | paste -sd,),--help,--version" ""
offers a_command_is_completed inspect insp
for command in run chat serve inspect tokenize demo; do
    offers "the_flags_of_${command}_are_offered" "$(flags_of $command)" $command ""
done
offers what_to_do_and_flags_are_offered "dump,verify,$(flags_of kv)" kv ""
offers what_to_do_is_completed verify kv v
offers the_flags_of_kv_are_offered "$(flags_of kv)" kv dump --
offers a_file_follows_what_to_do "$work/notes.txt" kv verify "$work/no"
offers files_follow_load_kv "$work/notes.txt" run --load-kv "$work/no"
offers a_flag_is_completed --threads run --thr
offers flags_that_begin_alike_are_offered --threads,--temp,--top-p,--top-k chat --t
offers flags_follow_a_switch --top-p,--top-k run --chat --top
offers choices_are_offered auto,scalar,avx2,avx512,neon run --isa ""
offers a_choice_is_completed dense chat --kv-backend d
offers a_choice_is_completed_after_an_equals_sign bf16 inspect --kv-dtype = b
offers choices_are_offered_after_an_equals_sign f32,f16,bf16,int8,turbo4 inspect --kv-dtype =
offers words_for_bytes_are_offered auto,none serve --kv-cache-budget ""
offers directories_follow_m "$work/models,$work/more models" run -m "$work/mo"
offers directories_follow_model "$work/models,$work/more models" inspect --model "$work/mo"
offers files_follow_f "$work/notes.txt" run -f "$work/no"
offers a_name_with_a_space_is_one "$work/more notes.txt" run --file "$work/more n"
offers nothing_is_made_up_for_a_number "" run --threads ""
offers nothing_is_made_up_for_a_letter "" run -n ""
offers a_word_of_the_help_is_no_flag --chat,--chat-template run run --chat
offers an_unknown_command_has_no_flags "" fly --
offers a_pattern_is_no_flag "" run '.*' zzz
tap_end
