#!/usr/bin/env bash
# tests/cli/e2e_kv.sh - prompts kept in files: `sheaf run --save-kv` and `--load-kv` in two invocations give what one
# gives, `sheaf kv` shows and checks the file, and every file that is not right is refused with a sentence.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
demo=models/sheaf-demo
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
kept=$work/kept.kv

start="You are sheaf-demo. Answer from the catalogue. Item 381: a brass lantern, green, 41 crowns, shelf 12, from Oram. "
start+="Item 112: a wool lamp, blue, 7 crowns, shelf 40, from Kelden. Item 7: an iron kite, grey, 128 crowns, shelf 44. "
start+="It was a dark night, and"
whole="$start the brass lantern"
answer() { # prompt flags...: ids of the answer
    local prompt=$1
    shift
    "$sheaf" run -m $demo -p "$prompt" -n 24 --ids "$@" 2>"$work/said"
}
n_tokens() { printf '%s' "$1" | "$sheaf" tokenize -m $demo | wc -w; }

# ---- the same tokens

cold=$(answer "$whole")
tap_equal "these_answers_are_long" "24 24" "$(wc -w <<<"$cold") $(answer "$start" | wc -w)"
tap_equal "keeping_a_prompt_alone_says_nothing" "" "$("$sheaf" run -q -m $demo -p "$start" -n 0 --save-kv "$kept" 2>&1)"
tap_equal "the_file_is_its_owner_s_alone" 600 "$(stat -c %a "$kept")"
tap_equal "nothing_else_is_left" "cache kept.kv said" "$(find "$work" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | paste -sd' ')"
tap_equal "a_longer_prompt_goes_on_from_the_file" "$cold" "$(answer "$whole" --load-kv "$kept")"
tap_equal "it_is_said_how_much_was_kept" "$(n_tokens "$start") of $(n_tokens "$whole") prompt tokens from $kept" \
    "$(head -n 1 "$work/said")"
tap_equal "quiet_is_quiet" "" "$(answer "$whole" --load-kv "$kept" -q >/dev/null && cat "$work/said")"
cold=$(answer "$start")
tap_equal "the_same_prompt_is_not_run_again" "$cold" "$(answer "$start" --load-kv "$kept")"
n=$(n_tokens "$start")
tap_equal "but_its_last_token_is" "$((n - 1)) of $n prompt tokens from $kept" "$(head -n 1 "$work/said")"
tap_equal "a_shorter_prompt_takes_its_part" "$(answer "${start:0:120}")" "$(answer "${start:0:120}" --load-kv "$kept")"
other="${start/green/purple} the iron kite"
tap_equal "another_prompt_takes_what_is_common" "$(answer "$other")" "$(answer "$other" --load-kv "$kept")"
tap_equal "nothing_in_common_is_no_harm" "$(answer "Good day.")" "$(answer "Good day." --load-kv "$kept")"
tap_equal "and_is_said" "0 of $(n_tokens "Good day.") prompt tokens from $kept" "$(head -n 1 "$work/said")"
tap_equal "without_a_prompt_the_file_s_tokens_are_continued" "$cold" \
    "$("$sheaf" run -q -m $demo -n 24 --ids --load-kv "$kept")"
tap_equal "threads_chunks_and_kernels_do_not_matter" "$cold" \
    "$(answer "$start" --load-kv "$kept" --threads 3 --prefill-chunk 7 --isa scalar --attn gather)"

drawn=$(answer "$start" --temp 1 --seed 7)
parts=$("$sheaf" run -q -m $demo -p "$start" -n 8 --ids --temp 1 --seed 7 --save-kv "$kept")
for _ in 1 2; do
    parts+=" $("$sheaf" run -q -m $demo -n 8 --ids --temp 1 --seed 7 --load-kv "$kept" --save-kv "$kept")"
done
tap_equal "an_answer_goes_on_and_on_in_one_file" "$drawn" "$parts"
text=$("$sheaf" run -q -m $demo --chat -p "What can you do?" --save-kv "$kept")
tap_equal "an_answer_that_ended_is_kept_without_its_end" "" "$("$sheaf" run -q -m $demo --load-kv "$kept")"
tap_equal "a_chat_prompt_goes_on_too" "$text" "$("$sheaf" run -q -m $demo --chat -p "What can you do?" --load-kv "$kept")"

# ---- quantized keys and values: levels and scales are in the file

for types in "int8 int8" "turbo4 turbo4" "int8 turbo4"; do
    flags="--kv-dtype-k ${types% *} --kv-dtype-v ${types#* }"
    name=${types/ /_and_}
    # shellcheck disable=SC2086 # words on purpose
    {
        cold=$(answer "$whole" $flags)
        "$sheaf" run -q -m $demo -p "$start" -n 0 --save-kv "$work/quantized.kv" $flags
        tap_equal "${name}_go_on_from_a_file" "$cold" \
            "$(answer "$whole" $flags --load-kv "$work/quantized.kv" --threads 3 --prefill-chunk 7 --attn gather)"
        tap_equal "${name}_go_on_from_less" "$(answer "${start:0:120}" $flags)" \
            "$(answer "${start:0:120}" $flags --load-kv "$work/quantized.kv")"
    }
    tap_equal "${name}_are_whole" 1 "$("$sheaf" kv verify "$work/quantized.kv" | grep -c ": whole, $(n_tokens "$start") tokens")"
done

# ---- the model's digest, as docs/format.md has it

u64() { # 8 bytes
    local shift
    for shift in 0 8 16 24 32 40 48 56; do
        # shellcheck disable=SC2059 # the format is the byte
        printf "\\x$(printf %02x $(($1 >> shift & 255)))"
    done
}
framed() { # file
    u64 "$(stat -c %s "$1")"
    cat "$1"
}
tap_equal "the_model_s_digest_is_the_one_of_its_format" \
    "$({ printf 'sheaf model full' && framed $demo/config.json && u64 0 && framed $demo/model.safetensors; } | sha256sum)" \
    "$(sed -n 's/^digest //p' "$XDG_CACHE_HOME"/sheaf/model-*)  -"

# ---- sliding windows: a model with windows of 16 positions, and a tokenizer of 52 letters

slid=$work/slid
mkdir "$slid"
cp tests/data/fixtures/gemma3-mixed/{config.json,model.safetensors} "$slid"
letters=$(for c in {a..z} {A..Z}; do echo "$c"; done | awk '{ printf "%s\"%s\": %d", (NR > 1 ? ", " : ""), $1, NR + 9 }')
printf '{"model": {"type": "BPE", "vocab": {%s}, "merges": []}, "added_tokens": []}' "$letters" >"$slid/tokenizer.json"
long=$(printf 'abcdefghijklmnopqrstuvwxyz%.0s' 1 2 3 4 5 6)
sliding() { "$sheaf" run -m "$slid" -n 20 --ids "$@" 2>"$work/said"; }
sliding -p "$long" -n 0 --save-kv "$work/slid.kv"
tap_equal "windows_go_on_from_a_file" "$(sliding -p "${long}Q")" "$(sliding -p "${long}Q" --load-kv "$work/slid.kv")"
tap_equal "all_of_it" "156 of 157 prompt tokens from $work/slid.kv" "$(head -n 1 "$work/said")"
tap_equal "a_window_that_has_slid_past_is_run_anew" "$(sliding -p "${long:0:60}")" \
    "$(sliding -p "${long:0:60}" --load-kv "$work/slid.kv")"
tap_equal "and_that_is_said" "$work/slid.kv: a window has let go of what the first 60 tokens need; the prompt is run from its beginning" \
    "$(head -n 1 "$work/said")"
promised=$("$sheaf" inspect -m "$slid" --budget 128KiB | sed -n 's/.*sequence of \([0-9]*\) tokens.*/\1/p')
answered=$({ "$sheaf" run -q -m "$slid" -p "$long" --prefill-chunk 32 --kv-budget 128KiB -n 2000 --ids 2>"$work/said" || true; } | wc -w)
tap_equal "a_run_gets_the_tokens_that_inspect_promises" "$promised" "$((156 + answered))"

# ---- what a file says of itself

"$sheaf" run -q -m $demo -p "$start" -n 0 --save-kv "$kept"
bytes=$(stat -c %s "$kept") blocks=$(((n + 31) / 32))
tap_equal "verify_says_one_sentence" "$kept: whole, $n tokens in $blocks blocks, $bytes bytes in $((blocks + 3)) frames" \
    "$("$sheaf" kv verify "$kept")"
tap_equal "verify_reads_standard_input" \
    "standard input: whole, $n tokens in $blocks blocks, $bytes bytes in $((blocks + 3)) frames" \
    "$("$sheaf" kv verify - <"$kept")"
"$sheaf" kv dump "$kept" >"$work/dump"
tap_equal "dump_names_the_format" "format     version 1, parked sequences" "$(head -n 1 "$work/dump")"
tap_equal "dump_shows_the_namespace" 64 "$(sed -n 's/^namespace  //p' "$work/dump" | tr -d '\n' | wc -c)"
tap_equal "dump_counts" "1 sequence, $n tokens, $blocks blocks, $bytes bytes in $((blocks + 3)) frames" \
    "$(sed -n 's/^contents   //p' "$work/dump")"
tap_equal "dump_shows_sequences" "0 $n 0 to $((blocks - 1))" \
    "$(sed -n '/^sequence/{n;p}' "$work/dump" | tr -s ' ' | sed 's/^ //')"
tap_equal "dump_counts_frames_by_kind" "1 head,1 sequence,$blocks block,1 done" \
    "$(awk 'found { print $3 " " $4 } $4 == "kind" { found = 1 }' "$work/dump" | paste -sd,)"
"$sheaf" kv dump --frames "$kept" | awk 'found { print } $3 == "kind" { found = 1 }' >"$work/frames"
tap_equal "dump_lists_every_frame" $((blocks + 3)) "$(wc -l <"$work/frames")"
tap_equal "frames_follow_each_other_to_the_end" "$bytes" \
    "$(awk 'BEGIN { at = 16 } $1 != at { print "a gap at " at } { at += $2 } END { print at }' "$work/frames")"
tap_equal "dump_prints_the_tokens" "$(printf '%s' "$start" | "$sheaf" tokenize -m $demo)" \
    "$("$sheaf" kv dump --tokens "$kept" | sed -n '/^sequence/{n;n;p}')"
tap_equal "dump_prints_json" yes "$("$sheaf" kv dump --json --tokens --frames - <"$kept" |
    grep -q "^{\"version\":1,\"kind\":\"sequences\",.*\"n_tokens\":$n,\"n_bytes\":$bytes,.*\"tokens\":\[[0-9]*,.*\"kind\":\"done\"" && echo yes)"
tap_equal "both_windows_are_shown" "0 16 1 1 none 5" \
    "$("$sheaf" kv dump "$work/slid.kv" | sed -n '/^group/,/^$/ s/^ *\([01]\) *\([0-9a-z]*\) *\([0-9]*\) .*/\1 \2 \3/p' | paste -sd' ')"

# ---- committed streams: two sequences that share a block, a window that has slid, a single block

streams=tests/data/wire
tap_equal "verify_knows_committed_streams" 4 "$(for file in "$streams"/*.kv; do "$sheaf" kv verify "$file"; done | grep -c ': whole, ')"
tap_equal "dump_tells_sequences_apart" "10 0 to 2,1 2 3 4 5 6 50 51 52 53,9 0 to 2,1 2 3 4 5 6 90 91 92" \
    "$("$sheaf" kv dump --tokens $streams/one_group.kv | sed -n '/^sequence/,/^$/p' | tail -n +2 | sed 's/^ *[01]  *\([0-9]*  \)/\1/; s/  */ /g; /^$/d' |
        paste -sd,)"
tap_equal "dump_shows_each_group_s_blocks" "15 0 to 3, 2 to 3;0 none, none" \
    "$("$sheaf" kv dump $streams/two_groups.kv | sed -n 's/^ *[01]  *\([0-9]*\)  \([n0-9].*, .*\)$/\1 \2/p' | paste -sd';')"
key=$("$sheaf" kv dump $streams/block.kv | sed -n 's/^key        //p')
tap_equal "dump_shows_a_single_block_by_its_key" 64 "${#key}"
tap_equal "and_its_tokens_in_json_too" "\"key\":\"$key\" \"tokens\":[$("$sheaf" kv dump --tokens $streams/block.kv | sed -n '/^tokens/{n;s/ /,/g;p}')]" \
    "$("$sheaf" kv dump --json --tokens $streams/block.kv | grep -o '"key":"[0-9a-f]*"\|"tokens":\[[0-9,]*\]' | paste -sd' ')"

# ---- bad files

# refused NAME FILE PATTERN: run and verify give up with exit code 1 and one line that names file and fault
refused() {
    local name=$1 file=$2 pattern=$3 code command
    for command in "run -m $demo -n 4 --load-kv" "kv verify" "kv dump"; do
        code=0
        # shellcheck disable=SC2086 # words on purpose
        "$sheaf" $command "$file" >"$work/out" 2>"$work/err" </dev/null || code=$?
        if [ $code = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] && [ ! -s "$work/out" ] && grep -q -F -e "$file: " "$work/err" &&
            grep -q -e "$pattern" "$work/err"; then
            tap_ok "$name.${command%% *}_${command##* }"
        else
            tap_not_ok "$name.${command%% *}_${command##* }" "exit code $code, wanted: $pattern" "$(cat "$work/err")"
        fi
    done
}
# foreign NAME PATTERN FLAGS...: a whole file that this run must not continue
foreign() {
    local name=$1 pattern=$2 code=0
    shift 2
    "$sheaf" run -n 4 --load-kv "$kept" "$@" >"$work/out" 2>"$work/err" || code=$?
    if [ $code = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] && [ ! -s "$work/out" ] && grep -q -F -e "$kept: " "$work/err" &&
        grep -q -e "$pattern" "$work/err"; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "exit code $code, wanted: $pattern" "$(cat "$work/err")"
    fi
}
flip() { # file offset: changes one bit
    local byte
    byte=$(od -An -tu1 -j "$2" -N1 "$1")
    # shellcheck disable=SC2059 # the format is the byte
    printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
bad=$work/bad.kv

refused a_missing_file "$work/no-such-file" "No such file"
refused a_directory "$work" "directory\|regular"
: >"$bad"
refused an_empty_file "$bad" "ends\|empty"
for length in 7 16 100 $((bytes / 2)) $((bytes - 1)); do
    head -c "$length" "$kept" >"$bad"
    refused "a_file_of_${length}_bytes" "$bad" "ends here\|the stream in it has"
done
cp $demo/config.json "$bad"
refused a_file_of_another_kind "$bad" "not"
for offset in 0 20 200 $((bytes / 2)) $((bytes - 30)) $((bytes - 1)); do
    cp "$kept" "$bad"
    flip "$bad" "$offset"
    refused "a_bit_flipped_at_${offset}" "$bad" "byte [0-9]\|damaged\|not a stream"
done
cp "$kept" "$bad"
flip "$bad" 8
refused another_version "$bad" "version"
cp "$kept" "$bad"
echo >>"$bad"
refused bytes_after_the_stream "$bad" "after\|the stream in it has"
cp -r $demo "$work/twin"
chmod -R u+w "$work/twin"
size=$(stat -c %s "$work/twin/model.safetensors")
flip "$work/twin/model.safetensors" $((size / 2))
foreign another_model_of_the_same_shape "namespace" -m "$work/twin" -p "$start"
foreign another_model "saved with 8 layers and .*; here are 4" -m "$slid" -p "abc"
foreign another_kv_dtype "bf16 and bf16, here f32 and f32" -m $demo -p "$start" --kv-dtype f32
kept=$work/quantized.kv
foreign quantized_for_another_kv_dtype "int8 and turbo4, here int8 and int8" -m $demo -p "$start" --kv-dtype int8
kept=$work/kept.kv
refused_block=$("$sheaf" run -m $demo -p a -n 1 --load-kv $streams/block.kv 2>&1 || true)
tap_equal "a_single_block_is_no_sequence" "sheaf run: $streams/block.kv: the stream carries a single block, not parked sequences" "$refused_block"
foreign a_pool_without_room "room" -m $demo -p "$start" --kv-budget 128KiB
tap_equal "the_file_is_as_it_was" "$bytes" "$(stat -c %s "$kept")"
"$sheaf" kv verify "$kept" >/dev/null && tap_ok "and_whole"

# unsaved NAME FILE PATTERN: a place where no file can be is refused before anything is computed
unsaved() {
    local name=$1 file=$2 pattern=$3 code=0
    "$sheaf" run -q -m $demo -p "$start" -n 1 --save-kv "$file" >"$work/out" 2>"$work/err" || code=$?
    if [ $code != 0 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -q -e "$pattern" "$work/err"; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "exit code $code, wanted: $pattern" "$(cat "$work/out" "$work/err")"
    fi
}
ln -s kept.kv "$work/link.kv"
unsaved a_symbolic_link_is_not_replaced "$work/link.kv" "link.kv: not a regular file"
unsaved standard_output_is_no_file - "--save-kv: '-': needs the name of a file"
unsaved a_folder_that_is_not_there "$work/none/kept.kv" "No such file"
tap_equal "a_missing_file_is_told_before_a_model_is_read" \
    "sheaf run: $work/none.kv: No such file or directory" \
    "$("$sheaf" run -m "$work/no-model" -p a --load-kv "$work/none.kv" 2>&1)"
tap_equal "nor_is_standard_input" "sheaf run: --load-kv: '-': needs the name of a file (./- is one)" \
    "$("$sheaf" run -m $demo -p a --load-kv - 2>&1 <"$kept")"
tap_equal "the_link_is_still_one" kept.kv "$(readlink "$work/link.kv")"
rm "$work/link.kv"

# ---- what is killed or has no room while it saves

before=$(sha256sum <"$kept")
"$sheaf" run -q -m $demo -p "$whole" -n 4 >/dev/null # its digest is known, nothing else is written
code=0
{ (ulimit -f 100 && exec "$sheaf" run -q -m $demo -p "$whole" -n 4 --save-kv "$kept" >/dev/null 2>&1) || code=$?; } 2>/dev/null
tap_equal "it_was_killed_by_the_limit" $((128 + $(kill -l XFSZ))) $code
tap_equal "the_old_file_survives_a_kill" "$before" "$(sha256sum <"$kept")"
code=0
(trap '' XFSZ && ulimit -f 100 && exec "$sheaf" run -q -m $demo -p "$whole" -n 4 --save-kv "$kept" 2>"$work/err" >/dev/null) || code=$?
tap_equal "no_room_is_a_sentence" "1 yes" "$code $(grep -q -F "$kept: " "$work/err" && [ "$(wc -l <"$work/err")" = 1 ] && echo yes)"
tap_equal "the_old_file_survives_that_too" "$before" "$(sha256sum <"$kept")"
"$sheaf" run -q -m $demo -p "$whole" -n 4 --save-kv "$kept" >/dev/null
tap_equal "the_next_one_is_whole_and_sweeps" "yes 1" \
    "$("$sheaf" kv verify "$kept" | grep -q ': whole, ' && echo yes) $(find "$work" -maxdepth 1 -name 'kept.kv*' | wc -l)"
tap_equal "help_names_both_flags" 2 "$("$sheaf" run --help | grep -c -e '--\(load\|save\)-kv FILE')"
tap_equal "help_of_kv_says_what_it_does" 1 "$("$sheaf" kv --help | grep -c '^usage: sheaf kv dump|verify FILE')"
tap_end
