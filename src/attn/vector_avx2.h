/* attn/vector_avx2.h - what the AVX2 forms need of vectors: numbers widened, functions, trees.
 *
 * Private to few_avx2.c, kernels_avx2.c and levels_avx2.c. No product here feeds a plain add, so no
 * compiler can contract anything.
 */
#ifndef SHEAF_ATTN_VECTOR_AVX2_H
#define SHEAF_ATTN_VECTOR_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "attn/fetch.h"
#include "attn/kernels.h"
#include "codec/codec.h"

#define INLINE   static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define W        8  /* floats a vector */
#define FEW_ROWS 16 /* below: the form for few rows */
#define SPLIT    SHEAF__ATTN_SPLIT

/* Eight numbers of a codec from p. */
INLINE __m256 widen8(const uint32_t codec, const unsigned char *p)
{
    if (codec == SHEAF_CODEC_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (codec == SHEAF_CODEC_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The first n < 8 numbers from p, then zeros; reads no byte beyond them. */
INLINE __m256 widen_tail(const uint32_t codec, const unsigned char *p, uint32_t n)
{
    unsigned char copy[W * 4] __attribute__((aligned(32))) = {0};
    memcpy(copy, p, (size_t)n * sheaf__attn_number_bytes(codec));
    return widen8(codec, copy);
}

/* exp, operation by operation as in the text of base/fmath.h. */
INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f);
    __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
    x = _mm256_min_ps(x, _mm256_set1_ps(88.0f));
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    __m256 y = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    e = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(below, _mm256_mul_ps(y, _mm256_castsi256_ps(e)));
}

INLINE __m256 tanh8(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 a = _mm256_andnot_ps(sign, x);
    __m256 z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(-5.70498872745e-3f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(2.06390887954e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-5.37397155531e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(1.33314422036e-1f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-3.33332819422e-1f));
    __m256 inner = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 y = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    y = _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(y, inner, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

INLINE __m256 cap8(__m256 s, float softcap)
{
    __m256 c = _mm256_set1_ps(softcap);
    return _mm256_mul_ps(c, tanh8(_mm256_div_ps(s, c)));
}

/* The halves of a added, then those of b. A blend is cheaper than a second permutation; which
 * summand comes first is not seen in a sum. */
INLINE __m256 halves8(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x21), _mm256_blend_ps(a, b, 0xf0));
}

/* The same within each half: numbers 0 + 2 and 1 + 3 of a, then of b. */
INLINE __m256 quarters8(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x4e), _mm256_blend_ps(a, b, 0xcc));
}

/* Of eight vectors that hold the pairs (i, i+8): the rest of each tree, sums in order. */
INLINE __m256 trees8(const __m256 v[8])
{
    __m256 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = halves8(v[i], v[i + 4]);
    for (int i = 0; i < 2; i++) b[i] = quarters8(a[2 * i], a[2 * i + 1]);
    return _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88),
                         _mm256_shuffle_ps(b[0], b[1], 0xdd));
}

/* The whole tree of one set of 16 lanes. */
INLINE float tree16(__m256 low, __m256 high)
{
    __m256 a = _mm256_add_ps(low, high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE float max8(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

INLINE uint32_t greatest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* All ones where a position, given by its vector, lies in [lo, hi). */
INLINE __m256 inside8(__m256i position, __m256i lo, __m256i hi)
{
    __m256i before = _mm256_cmpgt_epi32(lo, position);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before, _mm256_cmpgt_epi32(hi, position)));
}

/* Rows of the tile rounded up to whole vectors: the stride of scores and of packed queries. */
INLINE uint32_t many_stride(uint32_t n_rows)
{
    return (n_rows + W - 1) / W * W;
}

/* --- few_avx2.c: fewer than FEW_ROWS query rows --- */

/* The queries of raw keys to scratch. */
void sheaf__few_avx2_pack(const sheaf__attn_split *in);

void sheaf__few_avx2_split(const sheaf__attn_split *in, sheaf__attn_part out);

/* --- levels_avx2.c: quantized keys and values --- */

/* The queries to scratch, as levels, and their units. */
void sheaf__levels_avx2_pack(const sheaf__attn_split *in);

/* Scores of few rows, [n_rows, SPLIT]: whole groups of eight around positions [first, end). */
void sheaf__levels_avx2_few(const sheaf__attn_split *in, float *s);

/* Scores of many rows: [SPLIT, stride]. */
void sheaf__levels_avx2_many(const sheaf__attn_split *in, float *s);

/* The levels of n turbo4 rows as bf16, in order. dst: [n, dim rounded up to 64], aligned; what lies
 * behind the end of a row is some level */
void sheaf__levels_avx2_bf16(const unsigned char *const *rows, uint32_t n, uint32_t dim,
                             uint16_t *dst);

/* The same of dim % 64 == 0 levels, as few_avx2.c reads bf16, which gives outputs whose columns are
 * in an order of their own. dst: [n, dim] */
void sheaf__levels_avx2_mixed(const unsigned char *const *rows, uint32_t n, uint32_t dim,
                              uint16_t *dst);

/* Puts these columns in order, 64 at a time. o: [n] */
void sheaf__levels_avx2_order(float *o, size_t n);

#endif
