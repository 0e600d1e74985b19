#!/usr/bin/env bash
# tools/content_keys.sh - the known answers of tests/data/keys.txt, from the words of docs/format.md and
# coreutils' sha256sum alone: `tools/content_keys.sh > tests/data/keys.txt`.
set -eu
export LC_ALL=C

u32() { # number...: four bytes each, little-endian
    local n
    for n in "$@"; do
        # shellcheck disable=SC2059 # bytes
        printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $((n & 255)) $((n >> 8 & 255)) \
            $((n >> 16 & 255)) $((n >> 24 & 255)))"
    done
}
framed() { u32 ${#1} 0 && printf %s "$1"; } # text: its length in eight bytes, and it
bytes() { # hexadecimal digits
    local i
    # shellcheck disable=SC2059
    for ((i = 0; i < ${#1}; i += 2)); do printf "\\x${1:i:2}"; done
}
digest() { sha256sum | cut -d ' ' -f 1; }

block() { # parent token...
    local parent=$1
    shift
    { printf 'sheaf block' && bytes "$parent" && u32 "$@"; } | digest
}
# Layers are six numbers each: n_kv_heads key_dim value_dim window codec_k codec_v.
space() { # "block_tokens n_layers layer..." [tag content]...
    local layout=$1
    shift
    {
        printf 'sheaf space' && u32 1 1 && framed cpu
        # shellcheck disable=SC2086 # words
        u32 $layout && u32 $(($# / 2))
        for part in "$@"; do framed "$part"; done
    } | digest
}

zero=$(printf '%064d' 0)
ascending=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
first=$(block "$zero" 1 2 3 4)
echo "# Made by tools/content_keys.sh. tests/cache/test_key.c says what each one names."
echo "block_one_to_four $first"
echo "block_after_it $(block "$first" -1 2147483647 0 5)"
# shellcheck disable=SC2046
echo "block_of_32 $(block $ascending $(seq 0 31))"
echo "block_of_one $(block $ascending 7)"
one="4 1 2 8 8 0 2 2"
two="16 2 2 8 4 0 0 1 1 16 0 32 2 0"
echo "space_bare $(space "$one")"
echo "space_two_groups $(space "$two")"
echo "space_model_salt $(space "$one" model weights salt pepper)"
echo "space_empty_salt $(space "$one" model weights salt '')"
echo "space_ab_c $(space "$one" ab c)"
echo "space_a_bc $(space "$one" a bc)"
