/* Seeded numbers for the tests of kernels, and the instruction sets to run them on. */
#ifndef SHEAF_TESTS_MODEL_NUMBERS_H
#define SHEAF_TESTS_MODEL_NUMBERS_H

#include <math.h>
#include <stdbool.h>

#include "base/bits.h"
#include "sheaf/status.h"
#include "testing.h"

/* Uniform in [-1, 1). */
static inline float random_number(uint64_t *state)
{
    return (float)(int32_t)(testing_random(state) >> 32) * 0x1p-31f;
}

/* Finite numbers of every kind: zeros of both signs, denormals, tiny and large ones among
 * ordinary ones. Products of two stay below 2^100. */
static inline float random_odd_number(uint64_t *state)
{
    float x = random_number(state);
    switch (testing_random(state) % 8) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return x * 0x1p-130f;
    case 3: return x * 0x1p-100f;
    case 4: return x * 0x1p+40f;
    default: return x;
    }
}

/* Whether the processor has it; says so where not. */
static inline bool isa_runs_here(uint32_t isa)
{
    uint32_t resolved;
    if (sheaf_isa_resolve(isa, &resolved) == SHEAF_OK) return true;
    fprintf(stderr, "skipped: this processor lacks %s\n", sheaf_isa_name(isa));
    return false;
}

#endif
