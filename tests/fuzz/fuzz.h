/* fuzz/fuzz.h - what a fuzz target is.
 *
 * A target fuzz_NAME.c defines the one function below and nothing else public. It is built twice:
 *
 *  - in every ordinary build with replay.c: each file of corpus/NAME/ is one test case;
 *  - with -DSHEAF_BUILD_FUZZERS=ON and clang, as a libFuzzer program:
 *        cmake -B build/fuzz -DSHEAF_BUILD_FUZZERS=ON -DCMAKE_C_COMPILER=clang -G Ninja
 *        ninja -C build/fuzz fuzz_NAME
 *        mkdir -p build/found
 *        build/fuzz/tests/fuzz_NAME -max_total_time=60 build/found tests/fuzz/corpus/NAME
 *
 * An input that broke something goes into corpus/NAME/ under a name that says what it was.
 */
#ifndef SHEAF_TESTS_FUZZ_H
#define SHEAF_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Feeds one input to the parser; returns 0. Stops the program where a promise is broken. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What must hold after any input; checked in every build. */
#define FUZZ_CHECK(condition)                                                                  \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);          \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

#endif
