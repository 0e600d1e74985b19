#!/usr/bin/env bash
# tests/tools/test_checks.sh - the checks of tools/ notice what they are there for: each is run on a
# small tree that is right, then on the same tree with one thing wrong.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools/tap.sh
. tests/tools/tap.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tree() { # a tree that is right
    rm -rf "${work:?}"/*
    mkdir -p "$work"/{src/base,src/pool,src/attn,src/model,include/sheaf,tests,bench,tools}
    cp .clang-format "$work/"
    printf '#include "sheaf/status.h"\n#include <xxhash.h>\n' >"$work/src/base/hash.c"
    printf '#include "base/bits.h"\n#include "sheaf/pool.h"\n' >"$work/src/pool/pool.c"
    printf '#include "sheaf/view.h"\n' >"$work/src/attn/attn.c"
    printf '#include <jansson.h>\n#include "pool/slab.h"\n' >"$work/src/model/model.c"
    mkdir -p "$work/tests/pool"
    echo 'sheaf_test(pool test_pool.c)' >"$work/tests/pool/CMakeLists.txt"
    echo 'int pool;' >"$work/tests/pool/test_pool.c"
    echo '*thread*' >"$work/tests/threaded.txt"
    echo '#include <stdint.h>' >"$work/include/sheaf/status.h"
    echo '#include "sheaf/status.h"' >"$work/include/sheaf/pool.h"
}
long_function() { # lines, braces included
    printf 'void f(void)\n{\n'
    yes '    g();' | head -n $(($1 - 2)) || true
    echo '}'
}
notices() { # case check
    local out code=0
    out=$(SHEAF_ROOT=$work bash "tools/check_$2.sh" 2>&1) || code=$?
    if [ $code != 0 ] && [[ $out == *"not ok"* ]]; then tap_ok "$1"; else tap_not_ok "$1" "$out"; fi
}
accepts() {
    local out code=0
    out=$(SHEAF_ROOT=$work bash "tools/check_$2.sh" 2>&1) || code=$?
    if [ $code = 0 ]; then tap_ok "$1"; else tap_not_ok "$1" "$out"; fi
}

tree
accepts floors_in_order_pass floors
accepts small_files_pass sizes
accepts plain_words_pass words
echo '#include "pool/slab.h"' >>"$work/src/base/hash.c"
notices an_include_of_a_higher_floor_is_noticed floors
tree
echo '#include "sheaf/pool.h"' >>"$work/src/base/hash.c"
notices a_public_header_of_a_higher_floor_is_noticed floors
tree
echo '#include "pool/slab.h"' >>"$work/src/attn/attn.c"
notices kernels_that_know_the_pool_are_noticed floors
tree
echo '#include "slab.h"' >>"$work/src/pool/pool.c"
notices an_include_without_its_floor_is_noticed floors
tree
echo '#  include <jansson.h>' >>"$work/src/pool/pool.c"
notices a_foreign_library_in_libsheaf_is_noticed floors
tree
echo '#include <openssl/evp.h>' >>"$work/src/pool/pool.c"
notices libcrypto_beside_its_door_is_noticed floors
tree
mkdir "$work/src/attic"
notices a_folder_that_is_no_floor_is_noticed floors
tree
echo '#include "sheaf/pool.h"' >>"$work/include/sheaf/status.h"
notices a_public_header_that_looks_up_is_noticed floors

tree
long_function 70 >"$work/src/pool/pool.c"
long_function 130 >"$work/src/model/model.c"
accepts functions_at_the_limit_pass sizes
long_function 71 >"$work/src/pool/pool.c"
notices a_long_function_is_noticed sizes
tree
long_function 131 >"$work/src/model/model.c"
notices a_very_long_function_is_noticed sizes
tree
yes '' | head -n 1001 >"$work/src/model/model.c" || true
notices a_long_file_is_noticed sizes
tree
yes '' | head -n 301 >"$work/include/sheaf/pool.h" || true
notices a_long_public_header_is_noticed sizes

tree
accepts listed_tests_pass tests
cp "$work/tests/pool/test_pool.c" "$work/tests/pool/test_more.c"
notices a_test_that_is_not_built_is_noticed tests
tree
echo '/* sheaf_threads_create(2, &threads) */' >>"$work/tests/pool/test_pool.c"
notices threads_that_the_sanitizer_does_not_see_are_noticed tests
tree
printf '/* t\n *   what breaks | its_case\n */\ncmocka_unit_test(its_case),\n' >"$work/tests/pool/test_hazards.c"
echo 'sheaf_test(pool test_hazards.c)' >>"$work/tests/pool/CMakeLists.txt"
accepts a_hazard_with_its_case_passes tests
sed -i '/unit_test/d' "$work/tests/pool/test_hazards.c"
notices a_hazard_without_its_case_is_noticed tests

# the words are put together here, so that this file passes
tree
printf '/* %s%s: later */\n' TO DO >"$work/src/pool/pool.c"
notices unfinished_work_is_noticed words
tree
printf 'cd /%s/someone\n' home >"$work/tools/x.sh"
notices a_path_of_one_machine_is_noticed words
tree
printf 'https://%s.org/simple\n' pypi >"$work/tools/x.sh"
notices a_package_registry_is_noticed words

if [[ $(clang-format --version 2>/dev/null || true) == *" version 14."* ]]; then
    tree
    accepts formatted_sources_pass format
    echo 'int   f( void );' >"$work/src/pool/pool.c"
    notices an_unformatted_source_is_noticed format
else
    tap_skip an_unformatted_source_is_noticed "clang-format 14 is not installed"
fi
tap_end
