# shellcheck shell=bash
# tests/server/serve.sh - servers for test scripts: source it after tap.sh. They end with the script.

sheaf=${SHEAF_BUILD_DIR:?}/bin/sheaf
work=$(mktemp -d)
servers=()
finish() {
    [ ${#servers[@]} = 0 ] || kill "${servers[@]}" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT

# serve NAME flags...: starts a server; its address is in $url once it listens, its log in $work/NAME.err.
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

# The tools of these names, or the script is skipped aloud: needs NAME HOW tool...
needs() {
    local name=$1 how=$2 tool
    shift 2
    for tool in "$@"; do
        command -v "$tool" >/dev/null && continue
        tap_skip "$name" "$tool is not here ($how)"
        tap_end
        exit
    done
}
