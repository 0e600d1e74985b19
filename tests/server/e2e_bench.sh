#!/usr/bin/env bash
# tests/server/e2e_bench.sh - `bench serve` measures the program of the same build on both backends, and any
# server of OpenAI's API by its address. What it measures is not looked at.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

bench=${SHEAF_BUILD_DIR:?}/bench/bench_serve
if [ ! -x "$bench" ]; then
    tap_skip every_scenario_has_its_rows "bench_serve is not part of this build"
    tap_end
    exit
fi

work=$(mktemp -d)
pid=
# shellcheck disable=SC2317 # called by the trap
finish() {
    [ -z "$pid" ] || kill "$pid" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT

# measure options...: its lines in $out, its exit code in $code.
measure() {
    code=0
    out=$(timeout 60 "$bench" --quick --json --prompt-tokens 48 --answer-tokens 4 "$@" 2>"$work/err") || code=$?
    notes=$(grep -v '^bench_' "$work/err") || true # the head too
    errors=$(grep '^bench_' "$work/err") || true
}

# missing CASE UNIT...: what of these a case has no line for.
missing() {
    local name=$1 unit
    shift
    for unit in "$@"; do
        grep -qE "^\{\"bench\":\"serve\",\"case\":\"$name\",\"value\":[0-9.e+-]+,\"unit\":\"$unit\"\}$" <<<"$out" ||
            echo "$name: $unit"
    done
}

told=("ms, first token p50" "ms, first token p95" "tokens/s, answers")
ours=("tokens, computed" "tokens, reused" "MiB, peak resident" "MiB, K, V reserved" "MiB, K, V in use")

# ---- the program of this build ---------------------------------------------------------------

measure --clients 2
tap_equal it_measures_and_ends_well 0 "$code$errors"
lacks=
for scenario in idle shared_prefix_burst distinct_burst sequential_share multiturn churn; do
    for backend in paged dense; do
        lacks+=$(missing "$scenario, $backend" "${told[@]}" "${ours[@]}")
    done
done
tap_empty every_scenario_has_its_rows "$lacks"
tap_equal both_backends_tell_the_same_answers 1 \
    "$(grep -c '^answers equal on both backends: yes (18 answers)$' <<<"$notes")"

measure --scenario no_such_scenario
tap_equal an_unknown_scenario_is_refused '1 bench_serve: no scenario is called "no_such_scenario"' \
    "$code $errors"

# ---- another server --------------------------------------------------------------------------

# One that says as little as the API lets it: no figures, no usage, one event split over two chunks,
# lines that end as in HTTP; and it keeps the connection until the client goes.
cat >"$work/other.mjs" <<'JS'
import http from 'node:http'
const server = http.createServer((request, reply) => {
  let body = ''
  request.on('data', (data) => { body += data })
  request.on('end', () => {
    if (request.headers.authorization !== 'Bearer secret') {
      reply.writeHead(401).end('{"error": {"message": "no key"}}')
    } else if (request.url === '/api/v1/models') {
      reply.end('{"data": [{"id": "another"}]}')
    } else if (request.url === '/api/v1/chat/completions' && !('ignore_eos' in JSON.parse(body)) &&
        JSON.parse(body).model === 'another') {
      const say = (delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\r\n\r\n`
      reply.writeHead(200, { 'content-type': 'text/event-stream' })
      reply.write(say({ role: 'assistant', content: '' }) + ': quiet\r\n\r\n' + say({ content: 'one' }).slice(0, 9))
      setTimeout(() => reply.end(say({ content: 'one' }).slice(9) + say({ content: ' two' }) + 'data: [DONE]\r\n\r\n'), 5)
    } else {
      reply.writeHead(404).end('{"error": {"message": "not here"}}')
    }
  })
})
server.listen(0, '127.0.0.1', () => console.log(server.address().port))
JS
if ! command -v node >/dev/null; then
    tap_skip any_server_is_measured_by_its_address "node is not here (./run deps dev, on Debian)"
    tap_end
    exit
fi
node "$work/other.mjs" >"$work/port" &
pid=$!
waited=0
until [ -s "$work/port" ] || [ $waited = 400 ]; do
    sleep 0.05
    waited=$((waited + 1))
done
url=http://localhost:$(cat "$work/port")/api/v1/

measure --url "$url" --api-key secret --chat --clients 3
lacks=$errors
for scenario in idle shared_prefix_burst distinct_burst sequential_share multiturn churn; do
    lacks+=$(missing "$scenario" "${told[@]}")
done
tap_empty any_server_is_measured_by_its_address "$lacks"
tap_empty what_it_does_not_tell_is_left_out \
    "$(for what in "${ours[@]}"; do grep -F "\"unit\":\"$what\"" <<<"$out"; done)"

measure --url "$url" --api-key wrong --chat --model another --scenario idle
tap_equal an_answer_that_fails_ends_the_bench \
    '1 bench_serve: idle: an answer failed: status 401, {"error": {"message": "no key"}}' \
    "$code $errors"
tap_end
