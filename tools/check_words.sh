#!/usr/bin/env bash
# tools/check_words.sh - nothing in the repository speaks of one machine or of unfinished work.
# Reports in TAP. SHEAF_ROOT: another tree than this one.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/tools/tap.sh
. "$here/tests/tools/tap.sh"
cd "${SHEAF_ROOT:-$here}"

# search PATTERN [grep-option...]: the lines of text files that match; model and test data aside.
search() {
    local pattern=$1
    shift
    grep -rnIE "$@" --exclude-dir=.git --exclude=.git --exclude-dir=build --exclude-dir=out --exclude-dir=data \
        --exclude-dir=models -- "$pattern" . | cut -c 1-160 | head -n 20 || true
}

# each pattern has a bracket, so that it does not find itself
tap_empty no_path_of_one_machine_is_named \
    "$(search '(^|[^A-Za-z0-9_.}/-])/([w]ork|[h]ome|[r]oot|[U]sers)/')"
tap_empty no_work_is_left_for_later "$(search '\<([T]ODO|[F]IXME|[X]XX|[H]ACK)\>')"
tap_empty no_package_registry_is_named \
    "$(search '([p]ypi\.org|[n]pmjs\.|[c]rates\.io|[a]rtifactory|[j]frog|[n]exus\.|deb\.[d]ebian)' -i)"
tap_empty no_conflict_is_left_unresolved "$(search '^([<]{7}|[>]{7}) ')"
tap_end
