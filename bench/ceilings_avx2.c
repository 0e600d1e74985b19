/* bench/ceilings_avx2.c - 256-bit loops. Two FMA units with a latency of 4 to 5 need 10 chains; 12
 * leave room within 16 registers. */
#include "ceilings.h"

#if defined(__x86_64__)
#    include <immintrin.h>

#    define CHAINS 12

static uint64_t sum(const void *from, uint64_t bytes)
{
    const unsigned char *p = from, *end = p + bytes;
    __m256i a[8];
    for (int k = 0; k < 8; k++) a[k] = _mm256_setzero_si256();
    for (; p < end; p += 256)
        for (int k = 0; k < 8; k++)
            a[k] = _mm256_add_epi64(a[k], _mm256_loadu_si256((const void *)(p + 32 * k)));
    for (int k = 1; k < 8; k++) a[0] = _mm256_add_epi64(a[0], a[k]);
    uint64_t lanes[4];
    _mm256_storeu_si256((void *)lanes, a[0]);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

static float fma_chains(uint64_t rounds)
{
    __m256 acc[CHAINS], half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
    for (int k = 0; k < CHAINS; k++) acc[k] = _mm256_set1_ps((float)k);
    for (uint64_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) acc[k] = _mm256_fmadd_ps(acc[k], half, one);
    for (int k = 1; k < CHAINS; k++) acc[0] = _mm256_add_ps(acc[0], acc[k]);
    float lanes[8];
    _mm256_storeu_ps(lanes, acc[0]);
    return lanes[0] + lanes[7];
}

const bench__loops bench__loops_avx2 = {sum, fma_chains, CHAINS * 8 * 2};
#endif
