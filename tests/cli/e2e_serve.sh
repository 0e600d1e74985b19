#!/usr/bin/env bash
# tests/cli/e2e_serve.sh - `sheaf serve` from outside: starting, answering, keys, the log, and how it ends.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
demo=models/sheaf-demo
work=$(mktemp -d)
pid=
# shellcheck disable=SC2317 # called by the trap
finish() {
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
for tool in curl jq; do
    command -v $tool >/dev/null || {
        tap_skip "sheaf_serves" "$tool is not installed (./run deps test)"
        tap_end
        exit
    }
done

# ---- tools -----------------------------------------------------------------------------------

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

await() { # command...: until it holds, for at most 20 seconds
    local end=$(($(now_ms) + 20000))
    until "$@"; do
        [ "$(now_ms)" -lt $end ] || return 1
        sleep 0.02
    done
}

start() { # flags...: a server; $url is where, standard output and error in $work/out and $work/err
    rm -f "$work/out" "$work/err" # of the one before
    "$sheaf" serve -m $demo --port 0 "$@" >"$work/out" 2>"$work/err" &
    pid=$!
    await grep -qs '^listening on ' "$work/out" || { cat "$work/err" >&2; return 1; }
    url=$(sed -n 's/^listening on //p' "$work/out")
}

ended() { ! kill -0 "$pid" 2>/dev/null; }
await_end() { # waits for the server's end; $code is how it ended
    code=0
    await ended || { code="still there"; return; }
    wait "$pid" || code=$?
    pid=
}
stop() { kill -TERM "$pid" && await_end; }

get() { curl -sS --max-time 20 "$@"; }
status_of() { curl -sS --max-time 20 -o "$work/body" -w '%{http_code}' "$@"; }
post() { # path body curl-arguments...
    local path=$1 body=$2
    shift 2
    get "$url$path" -H 'Content-Type: application/json' -d "$body" "$@"
}
# The texts of a stream's chunks, and whether it ended as it should.
joined() { sed -n 's/^data: \({.*\)/\1/p' "$1" | jq -j '.choices[0].delta.content // .choices[0].text // empty'; }
finished() { tail -n 2 "$1" | head -n 1; }

refused() { # name exit-code pattern command...: one line on standard error, nothing on standard output
    local name=$1 want=$2 pattern=$3 code=0
    shift 3
    timeout 20 "$@" >"$work/refused.out" 2>"$work/refused.err" </dev/null || code=$?
    if [ $code = "$want" ] && [ "$(wc -l <"$work/refused.err")" = 1 ] && [ ! -s "$work/refused.out" ] &&
        grep -q -e "$pattern" "$work/refused.err"; then
        tap_ok "$name"
    else
        tap_not_ok "$name" "exit code $code" "$(cat "$work/refused.err")"
    fi
}

question='{"messages":[{"role":"user","content":"What can you do?"}],"temperature":0,"max_tokens":24'
endless='{"prompt":"Once upon a time","temperature":0,"ignore_eos":true,"stream":true,"max_tokens"'

# ---- answers ---------------------------------------------------------------------------------

start --log-format json
tap_equal a_server_says_where_it_listens_and_nothing_else yes \
    "$(grep -cE '^listening on http://127\.0\.0\.1:[0-9]+$' "$work/out" | sed 's/^1$/yes/')"
want=$("$sheaf" run -m $demo -q --chat -p "What can you do?" -n 24)
budget=$(get "$url/props" | jq .kv.budget_bytes)
post /v1/chat/completions "$question}" >"$work/whole"
tap_equal a_chat_is_answered_as_by_sheaf_run "$want" "$(jq -r '.choices[0].message.content' "$work/whole")"
post /v1/chat/completions "$question,\"stream\":true}" >"$work/stream"
tap_equal a_streamed_chat_is_the_same_text "$want" "$(joined "$work/stream")"
tap_equal a_stream_ends_with_its_mark "data: [DONE]" "$(finished "$work/stream")"
tap_equal a_prompt_asked_again_comes_out_of_the_cache yes \
    "$(post /v1/chat/completions "$question}" | jq -r '.usage |
        if .prompt_tokens_details.cached_tokens == .prompt_tokens - 1 then "yes" else . end')"
tap_equal health_is_ok 200 "$(status_of "$url/health")"
tap_equal the_model_is_listed_by_its_name sheaf-demo "$(get "$url/v1/models" | jq -r '.data[0].id')"
tap_equal statistics_are_json true "$(get "$url/v1/cache/stats" | jq .enabled)"
tap_equal metrics_are_there 200 "$(status_of "$url/metrics")"
tap_equal metrics_have_their_names yes "$(grep -q '^# TYPE sheaf_' "$work/body" && echo yes)"
tap_equal the_page_is_there 200 "$(status_of "$url/")"
tap_equal what_is_not_there_is_a_404 404 "$(status_of "$url/v1/nothing")"
tap_equal an_error_has_its_shape string "$(jq -r '.error.message | type' "$work/body")"
stop
tap_equal sigterm_ends_an_idle_server 0 "$code"
tap_equal each_log_line_is_json yes "$(jq -e . "$work/err" >/dev/null && echo yes)"
tap_equal a_request_has_one_line_with_its_id 3 \
    "$(jq -r 'select(.message == "request" and .path == "/v1/chat/completions" and .status == 200) | .id' \
        "$work/err" | sort -u | grep -c '^req_')"
tap_equal the_log_says_how_much_memory_was_chosen yes \
    "$(jq -r 'select(.message == "memory for keys and values chosen") |
        if .bytes + .weights + .kept_free == .available then "yes" else . end' "$work/err")"
tap_equal so_do_the_properties "$budget" "$(jq 'select(.kv_budget_bytes) | .kv_budget_bytes' "$work/err")"

# ---- the end ---------------------------------------------------------------------------------

# A stream that will take a while, in $work/long; returns when its first piece has come.
begin_stream() { # max_tokens
    rm -f "$work/long"
    curl -sS --max-time 60 -N "$url/v1/completions" -d "$endless:$1}" >"$work/long" &
    client=$!
    await grep -qs '^data: ' "$work/long"
}
pieces() { grep -c '^data: {' "$1"; }

start
begin_stream 400
kill -TERM "$pid"
await grep -q 'draining' "$work/err"
tap_equal a_draining_server_takes_no_connection 000 \
    "$(curl -s --max-time 5 -o "$work/body" -w '%{http_code}' "$url/health" || true)"
code=0
wait $client || code=$?
tap_equal a_stream_ends_whole_while_the_server_drains "0 data: [DONE]" "$code $(finished "$work/long")"
tap_equal all_of_it_came yes "$([ "$(pieces "$work/long")" -ge 100 ] && joined "$work/long" | wc -c |
    sed 's/^[0-9]\{3,\}$/yes/')"
await_end
tap_equal a_drained_server_ends_well 0 "$code"

start
begin_stream 7000
kill -TERM "$pid"
await grep -q 'draining' "$work/err"
from=$(now_ms)
kill -INT "$pid"
await_end
tap_equal a_second_signal_ends_it 0 "$code"
took=$(($(now_ms) - from))
tap_equal it_ends_soon yes "$([ $took -lt 5000 ] && echo yes || echo "$took ms")"
wait $client || true
tap_equal the_answer_was_cut yes "$([ "$(pieces "$work/long")" -lt 6000 ] && echo yes)"

start --drain-timeout 1
begin_stream 7000
from=$(now_ms)
kill -TERM "$pid"
await_end
tap_equal a_drain_has_an_end 0 "$code"
took=$(($(now_ms) - from))
tap_equal it_is_the_timeout yes "$([ $took -ge 900 ] && [ $took -lt 10000 ] && echo yes || echo "$took ms")"
tap_equal the_log_says_why 1 "$(grep -c 'draining took too long' "$work/err")"
wait $client || true

rm "$work/out" "$work/err"
# takes seconds to make
"$sheaf" serve -m random:llama-3.2-1b --port 0 --kv-cache-budget none >"$work/out" 2>"$work/err" &
pid=$!
await grep -qs 'url=' "$work/err"
url=$(grep -o 'http://[0-9.:]*' "$work/err")
tap_equal while_it_loads_health_says_so "503 yes" \
    "$(status_of "$url/health") $(grep -q loading "$work/body" && echo yes)"
stop
tap_equal a_signal_ends_it_while_it_loads "0 " "$code $(cat "$work/out")"
NOTIFY_SOCKET=$work/nobody start
stop
tap_equal a_service_manager_that_is_gone_is_no_matter 0 "$code"

# ---- quantized keys and values ---------------------------------------------------------------

SHEAF_KV_DTYPE_V=turbo4 start --kv-dtype int8
tap_equal props_name_both_types "int8 turbo4" "$(get "$url/props" | jq -r '[.. | objects | select(has("k_dtype"))][0] | .k_dtype + " " + .v_dtype')"
first=$(post /v1/completions '{"prompt":"Once upon a time","max_tokens":8,"temperature":0}' | jq -r '.choices[0].text')
second=$(post /v1/completions '{"prompt":"Once upon a time","max_tokens":8,"temperature":0}' | jq -r '.choices[0].text')
tap_equal quantized_answers_are_repeated_from_the_cache "$first" "$second"
tap_equal quantized_answers_are_not_empty 1 "$([ -n "$first" ] && echo 1)"
stop
tap_equal a_server_of_quantized_blocks_ends_in_order 0 "$code"

# ---- keys, the environment -------------------------------------------------------------------

printf 'first\n\nsecond\r\n' >"$work/keys"
SHEAF_API_KEY=third SHEAF_MAX_QUEUE=7 SHEAF_MAX_QUEU=8 start --api-key-file "$work/keys" --max-queue 9
tap_equal without_a_key_nothing_is_told 401 "$(status_of "$url/v1/models")"
tap_equal a_wrong_key_is_none 401 "$(status_of "$url/v1/models" -H 'Authorization: Bearer fourth')"
for key in first second third; do
    tap_equal "the_${key}_key_opens" 200 "$(status_of "$url/v1/models" -H "Authorization: Bearer $key")"
done
tap_equal health_needs_no_key 200 "$(status_of "$url/health")"
tap_equal a_variable_that_is_no_flags_is_told 1 "$(grep -c 'SHEAF_MAX_QUEU$' "$work/err")"
busy=${url##*:}
refused a_port_in_use_is_a_sentence 1 "^sheaf serve: .*$busy.*in use" \
    "$sheaf" serve -m $demo --port "$busy" --log-level none
tap_equal no_key_is_in_the_log "" "$(grep -e first -e second -e third "$work/err" || true)"
stop

# ---- models ----------------------------------------------------------------------------------

start -m random:qwen3-0.6b:layers=1 --kv-cache-budget 64MiB # the later -m counts
tap_equal a_random_model_continues_bytes 4 \
    "$(post /v1/completions '{"prompt":"abc","max_tokens":4,"ignore_eos":true}' | jq .usage.completion_tokens)"
tap_equal it_has_no_chats 400 "$(status_of "$url/v1/chat/completions" -d "$question}")"
tap_equal which_the_sentence_says yes "$(jq -r .error.message "$work/body" | grep -q 'chat template' && echo yes)"
stop

start --kv-backend dense
tap_equal the_dense_backend_answers_the_same "$want" \
    "$(post /v1/chat/completions "$question}" | jq -r '.choices[0].message.content')"
stop

start --no-prompt-cache
post /v1/chat/completions "$question}" >"$work/whole"
tap_equal without_a_prompt_cache_nothing_is_found 0 \
    "$(post /v1/chat/completions "$question}" | jq .usage.prompt_tokens_details.cached_tokens)"
stop

# ---- what is asked wrongly -------------------------------------------------------------------

bad() { # name pattern flags...
    local name=$1 pattern=$2
    shift 2
    refused "$name" 2 "^sheaf serve: $pattern" "$sheaf" serve -m $demo --port 0 --log-level none "$@"
}
bad_variable() { # NAME=value pattern
    refused "${1//[ ,]/_}_is_refused" 2 "^sheaf serve: ${1%%=*}: $2" env "$1" "$sheaf" serve -m $demo \
        --log-level none
}
refused a_missing_model_is_asked_for 2 "--model" "$sheaf" serve
refused a_missing_directory_is_named 1 "no-such-dir" "$sheaf" serve -m no-such-dir --port 0 --log-level none
bad a_port_beyond_all_is_refused "--port: '65536' is not a whole number from 0 to 65535" --port 65536
bad a_host_that_is_empty_is_refused "--host: is empty" --host ""
# a name that no name server need be asked for
bad a_host_without_an_address_is_refused ".*no such host" --host "no such host"
bad an_empty_key_is_refused "--api-key: nothing where KEY" --api-key ""
bad a_key_that_ends_in_a_comma_is_refused "--api-key: nothing where KEY" --api-key a,
bad an_empty_file_of_keys_is_refused "--api-key-file: /dev/null: has no key" --api-key-file /dev/null
refused a_missing_file_of_keys_is_named 1 "no-such-file: No such file" \
    "$sheaf" serve -m $demo --api-key-file no-such-file
bad an_odd_budget_is_refused "--kv-cache-budget: 'lots' is not .*, or auto, or none" \
    --kv-cache-budget lots
bad a_budget_of_nothing_is_refused "--kv-cache-budget: '0' is not a number of bytes from 1" \
    --kv-cache-budget 0
bad a_cache_of_nothing_is_refused "--prompt-cache-capacity-bytes: '0'" --prompt-cache-capacity-bytes 0
bad no_cache_with_a_limit_is_refused "--prompt-cache-ttl: there is nothing to limit" \
    --no-prompt-cache --prompt-cache-ttl 5
bad the_dense_backend_has_no_budget "--kv-cache-budget: the dense backend" \
    --kv-backend dense --kv-cache-budget auto
bad the_dense_backend_has_no_cache "--prompt-cache-max-entries: the dense" \
    --kv-backend dense --prompt-cache-max-entries 5
bad a_batch_below_a_chunk_is_refused "--batch-tokens: 64 are less than the 128" \
    --batch-tokens 64 --prefill-chunk 128
bad a_name_that_json_cannot_hold_is_refused "--model-name: is not UTF-8" --model-name $'a\377'
bad an_unknown_template_is_refused ".*klingon" --chat-template klingon
bad an_unknown_level_is_refused "--log-level: 'loud' is not one of debug info" --log-level loud
bad an_unknown_type_of_values_is_refused "--kv-dtype-v: 'int4' is not one of f32 f16 bf16 int8 turbo4" --kv-dtype-v int4
bad_variable SHEAF_KV_DTYPE_K=int4 "'int4' is not one of f32 f16"
bad_variable SHEAF_PORT=http "'http' is not a whole number"
bad_variable SHEAF_PARALLEL=0 "'0' is not a whole number from 1"
bad_variable SHEAF_KV_CACHE_BUDGET=4GB "'4GB' is not"
bad_variable SHEAF_NO_PROMPT_CACHE=yes "'yes' is not 1 or 0"
bad_variable SHEAF_API_KEY= "nothing where KEY"
bad_variable SHEAF_CORS_ORIGIN=a,,b "nothing where ORIGIN"
bad_variable SHEAF_CORS_ORIGIN=https://example.org/ "'https://example.org/' is not like"
bad_variable SHEAF_CORS_ORIGIN=example.org "'example.org' is not like"
bad_variable SHEAF_LOG_FORMAT=xml "'xml' is not one of text json"
refused a_chunk_from_the_environment_is_named 2 "SHEAF_BATCH_TOKENS: 7 .* the 9 of SHEAF_PREFILL_CHUNK" \
    env SHEAF_BATCH_TOKENS=7 SHEAF_PREFILL_CHUNK=9 "$sheaf" serve -m $demo --log-level none
refused a_limit_from_the_environment_is_refused_too 2 \
    "SHEAF_PROMPT_CACHE_TTL: there is nothing to limit with SHEAF_NO_PROMPT_CACHE" \
    env SHEAF_PROMPT_CACHE_TTL=5 SHEAF_NO_PROMPT_CACHE=1 "$sheaf" serve -m $demo --log-level none
code=0
"$sheaf" serve -m $demo --port 0 --log-level none >/dev/full 2>"$work/refused.err" || code=$?
tap_equal a_full_standard_output_is_a_sentence "1 standard output" \
    "$code $(grep -o 'standard output' "$work/refused.err")"
tap_equal the_help_says_that_there_is_an_environment yes \
    "$("$sheaf" serve --help | grep -q 'environment variable' && echo yes)"
tap_end
