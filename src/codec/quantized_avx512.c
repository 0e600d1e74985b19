/* codec/quantized_avx512.c - int8 and turbo4 for AVX-512: codec/quantized_lanes.h in vectors of 16. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define TABLE sheaf__quantized_avx512
#define ISA   SHEAF_ISA_AVX512
#define SWAP_1(v)                                                                              \
    __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#define SWAP_2(v)                                                                              \
    __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define SWAP_4(v)                                                                              \
    __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define SWAP_8(v)                                                                              \
    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)

static void widen_f16(const unsigned char *from, uint32_t n, float *x)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                    (const __m128i *)(const void *)(from + 2 * i))));
    uint16_t rest[8] = {0};
    float wide[8];
    memcpy(rest, from + 2 * i, 2ull * (n - i));
    _mm256_storeu_ps(wide,
                     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)rest)));
    memcpy(x + i, wide, 4ull * (n - i));
}

#include "codec/quantized_lanes.h"
