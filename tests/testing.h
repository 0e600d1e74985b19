/* testing.h - what every test program includes: cmocka with the headers that it wants before it, and
 * random numbers that can be repeated. */
#ifndef SHEAF_TESTING_H
#define SHEAF_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* SplitMix64 (Steele, Lea, Flood 2014): the state is the seed. */
static inline uint64_t testing_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The seed of a random test: SHEAF_SEED from the environment, else `otherwise`; printed, so that a
 * failure can be repeated. */
static inline uint64_t testing_seed(uint64_t otherwise)
{
    const char *text = getenv("SHEAF_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : otherwise;
    fprintf(stderr, "SHEAF_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Leaves the running case as skipped, saying why. */
#define TESTING_SKIP(...)                                                                      \
    do {                                                                                       \
        fprintf(stderr, __VA_ARGS__);                                                          \
        fputc('\n', stderr);                                                                   \
        skip();                                                                                \
    } while (0)

#endif
