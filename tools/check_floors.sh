#!/usr/bin/env bash
# tools/check_floors.sh - a floor includes its own headers and those of lower floors, nothing above
# (the floors: ARCHITECTURE.md). Reports in TAP. SHEAF_ROOT: another tree than this one.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/tools/tap.sh
. "$here/tests/tools/tap.sh"
cd "${SHEAF_ROOT:-$here}"

floors="base codec pool cache attn model engine server cli"
headers="status codec view pool cuda rows cache key prefix ledger wire attn cuda_attn sheaf"

# check FLOOR FILE...: prints each include that FLOOR must not have.
check() {
    local floor=$1
    shift
    awk -v floor="$floor" -v floors="$floors" '
        function deny(why) { printf "%s:%d: %s (%s)\n", FILENAME, FNR, $0, why }
        BEGIN {
            n = split(floors, list, " ")
            for (i = 1; i <= n; i++) rank[list[i]] = i
            home["status"] = "base"; home["codec"] = home["view"] = "codec"
            home["pool"] = home["rows"] = home["cuda"] = "pool"
            home["cache"] = home["key"] = home["prefix"] = home["ledger"] = home["wire"] = "cache"
            home["attn"] = home["cuda_attn"] = home["sheaf"] = "attn"
        }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, part, "\""); path = part[2]
            slash = index(path, "/")
            if (slash == 0) { deny("an include path starts at src/"); next }
            from = substr(path, 1, slash - 1)
            if (from == "sheaf") {
                name = substr(path, slash + 1); sub(/\.h$/, "", name); from = home[name]
            }
            if (!(from in rank)) deny("no such floor or public header")
            else if (rank[from] > rank[floor]) deny("a higher floor")
            else if (floor == "attn" && (from == "pool" || from == "cache"))
                deny("kernels see plain views only")
        }
        /^[ \t]*#[ \t]*include[ \t]*<(jansson|pcre2|utf8proc)/ {
            if (rank[floor] <= rank["attn"]) deny("libsheaf does without it")
        }
        /^[ \t]*#[ \t]*include[ \t]*<(cuda|nvrtc|mma)/ {
            if (FILENAME !~ /cuda/) deny("only files that SHEAF_CUDA builds")
        }
        /^[ \t]*#[ \t]*include[ \t]*<xxhash/ { if (floor != "base") deny("base/hash.h is the door to it") }
        /^[ \t]*#[ \t]*include[ \t]*<openssl/ { if (floor != "base") deny("base/sha256.h is the door to it") }
    ' "$@"
}

strangers=
for folder in src/*/; do
    [[ " $floors " == *" $(basename "$folder") "* ]] || strangers="$strangers$folder is no floor "
done
tap_empty every_folder_of_src_is_a_floor "$strangers"

for floor in $floors; do
    [ -d "src/$floor" ] || continue
    mapfile -t files < <(find "src/$floor" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
    [ ${#files[@]} -gt 0 ] || continue
    tap_empty "${floor}_includes_only_itself_and_lower_floors" "$(check "$floor" "${files[@]}")"
done

# Public headers: each only those left of it; attn.h and cuda_attn.h only the view and what that needs.
wrong=
allowed=" "
for header in $headers; do
    file=include/sheaf/$header.h
    [ -f "$file" ] || continue
    [ "$header" != attn ] || allowed=" status codec view "
    [ "$header" != sheaf ] || allowed=" $headers "
    while read -r name; do
        [[ $allowed == *" $name "* ]] || wrong="$wrong$file includes $name.h "
    done < <(sed -n 's|^#[ \t]*include "sheaf/\(.*\)\.h".*|\1|p' "$file")
    allowed="$allowed$header "
done
tap_empty public_headers_include_only_lower_ones "$wrong"
tap_end
