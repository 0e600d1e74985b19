/* bench/ceilings_avx512.c - 512-bit loops. */
#include "ceilings.h"

#if defined(__x86_64__)
#    include <immintrin.h>

#    define CHAINS 16

static uint64_t sum(const void *from, uint64_t bytes)
{
    const unsigned char *p = from, *end = p + bytes;
    __m512i a[8];
    for (int k = 0; k < 8; k++) a[k] = _mm512_setzero_si512();
    for (; p < end; p += 512)
        for (int k = 0; k < 8; k++)
            a[k] = _mm512_add_epi64(a[k], _mm512_loadu_si512((const void *)(p + 64 * k)));
    for (int k = 1; k < 8; k++) a[0] = _mm512_add_epi64(a[0], a[k]);
    uint64_t lanes[8], total = 0;
    _mm512_storeu_si512((void *)lanes, a[0]);
    for (int k = 0; k < 8; k++) total += lanes[k];
    return total;
}

static float fma_chains(uint64_t rounds)
{
    __m512 acc[CHAINS], half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    for (int k = 0; k < CHAINS; k++) acc[k] = _mm512_set1_ps((float)k);
    for (uint64_t i = 0; i < rounds; i++)
        for (int k = 0; k < CHAINS; k++) acc[k] = _mm512_fmadd_ps(acc[k], half, one);
    for (int k = 1; k < CHAINS; k++) acc[0] = _mm512_add_ps(acc[0], acc[k]);
    float lanes[16];
    _mm512_storeu_ps(lanes, acc[0]);
    return lanes[0] + lanes[15];
}

const bench__loops bench__loops_avx512 = {sum, fma_chains, CHAINS * 16 * 2};
#endif
