#!/usr/bin/env bash
# tests/server/e2e_curl.sh - the ways of HTTP that curl knows, on the real program.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
# shellcheck source=tests/server/serve.sh
. tests/server/serve.sh
needs curl_is_served "./run deps test" curl jq gzip

ask='{"prompt":"Once upon a time","temperature":0,"max_tokens":12'
ask() { curl -sS --max-time 20 "$url/v1/completions" "$@"; }
text() { jq -r '.choices[0].text'; }
joined() { sed -n 's/^data: \({.*\)/\1/p' | jq -j '.choices[0].text // empty'; }
# big MIB: a request with so much white space in it
big() {
    printf '%s' "$ask"
    head -c "$1M" /dev/zero | tr '\0' ' '
    printf '}'
}
# The status of a reply and the kind of its error, which must be whole.
refusal() { echo "$(tail -n 1 "$1") $(sed '$d' "$1" | jq -r '.error | if (.message | length) > 0 then .type else . end')"; }

serve main --log-format json
want=$(ask -d "$ask}" | text)
tap_equal a_text_is_continued yes "$([ ${#want} -gt 20 ] && echo yes || echo "$want")"

# ---- streams ----

ask -N -D "$work/head" -d "$ask,\"stream\":true}" >"$work/stream"
tap_equal a_stream_has_the_same_text "$want" "$(joined <"$work/stream")"
tap_equal a_stream_has_its_type text/event-stream "$(tr -d '\r' <"$work/head" | sed -n 's/^content-type: //Ip' | cut -d';' -f1)"
ask -N -d '{"prompt":"It was","ignore_eos":true,"max_tokens":7000,"stream":true}' 2>"$work/cut.err" |
    { IFS= read -r line && printf '%s\n' "${line:0:7}"; } >"$work/first" || true
tap_equal a_piece_comes_at_once "data: {" "$(cat "$work/first")"

# ---- older and newer HTTP ----

tap_equal http_1_0_is_answered "$want" "$(ask -0 -d "$ask}" | text)"
tap_equal http_1_0_has_streams "$want" "$(ask -0 -N -D "$work/head" -d "$ask,\"stream\":true}" | joined)"
tap_equal without_chunks "" "$(grep -i '^transfer-encoding' "$work/head" || true)"
tap_equal an_offer_of_http_2_is_passed_over "$want" "$(ask --http2 -d "$ask}" | text)"
code=0
curl -sS --max-time 10 --http2-prior-knowledge "$url/health" >"$work/http2" 2>&1 || code=$?
case $code in
0 | 28) tap_not_ok http_2_without_an_offer_is_refused_at_once "exit code $code" "$(cat "$work/http2")" ;;
*) tap_ok http_2_without_an_offer_is_refused_at_once ;;
esac

# ---- heads ----

curl -sS --max-time 10 -I "$url/v1/models" >"$work/head"
tap_equal head_is_answered_without_a_body "200 yes" \
    "$(awk 'NR == 1 { print $2 }' "$work/head") $(tr -d '\r' <"$work/head" | grep -qi '^content-length: [1-9]' && echo yes)"
tap_equal head_is_no_post 405 "$(curl -sS --max-time 10 -o /dev/null -w '%{http_code}' -I "$url/v1/completions")"
tap_equal the_length_is_the_one_of_get "$(curl -sS --max-time 10 "$url/v1/models" | wc -c)" \
    "$(tr -d '\r' <"$work/head" | sed -n 's/^content-length: //Ip')"

# ---- uploads ----

big 8 >"$work/big"
big 17 >"$work/huge"
ask -v --expect100-timeout 20 -H 'Expect: 100-continue' --data-binary @"$work/big" >"$work/reply" 2>"$work/verbose"
tap_equal a_big_body_is_asked_for "100 Continue" "$(grep -o '100 Continue' "$work/verbose" | head -n 1)"
tap_equal a_big_body_is_read "$want" "$(text <"$work/reply")"
ask --expect100-timeout 20 -H 'Expect: 100-continue' --data-binary @"$work/huge" -w '\n%{size_upload} %{http_code}' >"$work/reply" || true
sent=$(tail -n 1 "$work/reply")
tap_equal what_is_too_big_is_refused_before_it_is_sent "0 413" "$sent"
ask -H 'Expect:' --data-binary @"$work/huge" -w '\n%{http_code}' >"$work/reply" 2>/dev/null || true
tap_equal and_without_asking "413 invalid_request_error" "$(refusal "$work/reply")"
tap_equal chunks_are_read "$want" "$(ask -H 'Transfer-Encoding: chunked' -d "$ask}" | text)"
tap_equal many_chunks_are_read "$want" \
    "$(ask -H 'Transfer-Encoding: chunked' -H 'Expect:' --data-binary @"$work/big" | text)"
ask -H 'Transfer-Encoding: chunked' -H 'Expect:' --data-binary @"$work/huge" -w '\n%{http_code}' >"$work/reply" 2>/dev/null || true
tap_equal too_many_chunks_are_refused "413 invalid_request_error" "$(refusal "$work/reply")"
printf '%s}' "$ask" | gzip >"$work/small.gz"
ask -H 'Content-Encoding: gzip' --data-binary @"$work/small.gz" -w '\n%{http_code}' >"$work/reply"
tap_equal a_compressed_body_is_refused "400 invalid_request_error" "$(refusal "$work/reply")"

# ---- connections ----

tap_equal a_connection_serves_many_requests "1 0 0 0 0" "$(curl -sS --max-time 20 -w '%{stderr}%{num_connects} ' \
    -o /dev/null "$url/v1/completions" -d "$ask}" --next -w '%{stderr}%{num_connects} ' -o /dev/null \
    "$url/v1/completions" -d "$ask,\"stream\":true}" --next -w '%{stderr}%{num_connects} ' -o /dev/null \
    "$url/v1/completions" -d '{"n":0}' --next -w '%{stderr}%{num_connects} ' -o /dev/null "$url/nothing" \
    --next -w '%{stderr}%{num_connects}' -o /dev/null "$url/health" 2>&1)"

# ---- afterwards ----

tap_equal the_server_goes_on "$want" "$(ask -d "$ask}" | text)"
code=0
kill "${servers[0]}"
wait "${servers[0]}" || code=$?
servers=()
tap_equal the_server_ends_well 0 "$code"
tap_empty nothing_was_logged_as_an_error "$(grep '"level":"error"' "$work/main.err" || true)"
tap_end
