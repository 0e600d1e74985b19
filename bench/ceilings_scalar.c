/* bench/ceilings_scalar.c - the plain loops, for machines without AVX2. */
#include "ceilings.h"

#include <math.h>
#include <string.h>

#define CHAINS 16

static uint64_t sum(const void *from, uint64_t bytes)
{
    const unsigned char *p = from;
    uint64_t total[8] = {0};
    for (uint64_t i = 0; i < bytes; i += sizeof total) {
        uint64_t words[8];
        memcpy(words, p + i, sizeof words);
        for (int k = 0; k < 8; k++) total[k] += words[k];
    }
    for (int k = 1; k < 8; k++) total[0] += total[k];
    return total[0];
}

static float fma_chains(uint64_t rounds)
{
    float acc[CHAINS];
    for (int k = 0; k < CHAINS; k++) acc[k] = (float)k;
    for (uint64_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) acc[k] = fmaf(acc[k], 0.5f, 1.0f);
    for (int k = 1; k < CHAINS; k++) acc[0] += acc[k];
    return acc[0];
}

const bench__loops bench__loops_scalar = {sum, fma_chains, CHAINS * 2};
