#!/usr/bin/env bash
# tests/install/test_headers.sh - each public header compiles alone, as C11 pedantic and as C++17,
# its initialisers in use, and what the library exports is what they declare and what tools/symbols.txt lists.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh
build=${SHEAF_BUILD_DIR:-build/release}
warnings=(-pedantic -Wall -Wextra -Wshadow -Wconversion -Werror -fsyntax-only -Iinclude)

# A program that includes one header, and sets a variable by each initialiser that it defines.
user_of() { # header
    echo "#include \"sheaf/$1.h\""
    sed -nE 's/^#define (SHEAF_[A-Z_]+_INIT) SHEAF_STRUCT_INIT\((sheaf_[a-z_]+)\)$/\2 a_\2 = \1;/p' \
        "include/sheaf/$1.h"
}
compiles() { # language standard compiler header
    "$3" -x "$1" -std="$2" "${warnings[@]}" - < <(user_of "$4") 2>&1 || echo "exit code $?"
}
tap_empty every_struct_with_a_size_has_an_initialiser "$(diff \
    <(grep -cE '^    uint32_t struct_size;' include/sheaf/*.h) \
    <(grep -cE '^#define SHEAF_[A-Z_]+_INIT SHEAF_STRUCT_INIT\(' include/sheaf/*.h))"
for file in include/sheaf/*.h; do
    header=$(basename "$file" .h)
    for compiler in cc clang; do
        command -v $compiler >/dev/null || continue
        tap_empty "${header}_compiles_alone_as_c11_with_$compiler" "$(compiles c c11 $compiler "$header")"
    done
    for compiler in c++ clang++; do
        command -v $compiler >/dev/null || continue
        tap_empty "${header}_compiles_alone_as_cpp17_with_${compiler//+/p}" \
            "$(compiles c++ c++17 $compiler "$header")"
    done
done
command -v c++ >/dev/null || tap_skip headers_compile_as_cpp17 "no C++ compiler (./run deps test)"

# what the headers declare: after SHEAF_API, the last word before the parameters. The device cuda's have a
# list of their own, and are exported where it is built.
export LC_ALL=C
declared() { # header...
    cat "$@" | grep -v '^#' | tr '\n' ' ' | grep -oE 'SHEAF_API [^;{(]*\(' |
        sed -E 's/.*[ *]([a-z0-9_]+)\($/\1/' | sort
}
listed() { cat "$@" | grep -v '^#' | sort; }
headers=() lists=(tools/symbols.txt)
for file in include/sheaf/*.h; do
    [[ $file == */cuda*.h ]] || headers+=("$file")
done
if grep -q '^SHEAF_CUDA:BOOL=ON' "$build/CMakeCache.txt"; then lists+=(tools/symbols_cuda.txt); fi
exported=$(nm -D --defined-only "$build/libsheaf.so" | awk '{ print $3 }' | sort)
differences() { diff <(echo "$1") <(echo "$2") | grep '^[<>]' || true; }
tap_empty the_list_of_symbols_is_what_the_headers_declare \
    "$(differences "$(declared "${headers[@]}")" "$(listed tools/symbols.txt)")"
tap_empty the_list_of_cuda_symbols_is_what_its_headers_declare \
    "$(differences "$(declared include/sheaf/cuda*.h)" "$(listed tools/symbols_cuda.txt)")"
tap_empty the_library_exports_what_is_listed "$(differences "$exported" "$(listed "${lists[@]}")")"
tap_end
