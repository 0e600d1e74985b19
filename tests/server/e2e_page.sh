#!/usr/bin/env bash
# tests/server/e2e_page.sh - the page at "/" in a browser without a screen, on the real program. Keeps a screenshot
# at build/page.png.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
key=a-key-for-this-test

for tool in node chromium; do
    if ! command -v $tool >/dev/null; then
        tap_skip the_page_works_in_a_browser "$tool is not here (./run deps dev, on Debian)"
        tap_end
        exit
    fi
done

work=$(mktemp -d)
servers=()
finish() {
    [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT

# serve NAME flags...: starts a server; its address is in $url once it listens.
serve() {
    local name=$1 waited=0
    shift
    "$sheaf" serve -m models/sheaf-demo --port 0 "$@" >"$work/$name.out" 2>"$work/$name.err" &
    servers+=($!)
    until url=$(sed -n 's/^listening on //p' "$work/$name.out") && [ -n "$url" ]; do
        if ! kill -0 $! 2>/dev/null || [ $waited = 600 ]; then
            tap_not_ok "the_server_starts" "$(cat "$work/$name.err")"
            tap_end
            exit 1
        fi
        sleep 0.05
        waited=$((waited + 1))
    done
}

serve open
open=$url
serve locked --api-key $key
node tests/server/page/page_test.mjs chromium "$open/" "$url/" $key build/page.png
