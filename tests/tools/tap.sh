# shellcheck shell=bash
# tests/tools/tap.sh - TAP for test scripts: source it, call the functions, end with tap_end.
# Standard output is for TAP alone; diagnostics go to standard error.

tap_cases=0
tap_failed=0

tap_ok() { # name
    tap_cases=$((tap_cases + 1))
    echo "ok $tap_cases - $1"
}

tap_not_ok() { # name [line...]
    tap_cases=$((tap_cases + 1))
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_cases - $1"
    shift
    [ $# -eq 0 ] || printf '%s\n' "$@" | sed 's/^/# /'
}

tap_skip() { # name reason
    tap_cases=$((tap_cases + 1))
    echo "ok $tap_cases # SKIP $1"
    echo "$1: $2" >&2
}

# A case that holds when the lines given (often the output of a search) are none.
tap_empty() { # name lines
    if [ -z "$2" ]; then tap_ok "$1"; else tap_not_ok "$1" "$2"; fi
}

tap_equal() { # name expected got
    if [ "$2" = "$3" ]; then tap_ok "$1"; else tap_not_ok "$1" "expected: $2" "got:      $3"; fi
}

tap_end() {
    echo "1..$tap_cases"
    [ "$tap_failed" = 0 ]
}
