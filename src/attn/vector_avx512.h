/* attn/vector_avx512.h - what the AVX-512 forms share: sixteen numbers of every codec, exp and tanh,
 * the trees of lanes.
 *
 * No product here feeds a plain add, so no compiler can contract anything.
 */
#ifndef SHEAF_ATTN_VECTOR_AVX512_H
#define SHEAF_ATTN_VECTOR_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "attn/kernels.h"
#include "codec/codec.h"

#define INLINE static inline __attribute__((always_inline))
#define W      16 /* floats a vector */
#define SPLIT  SHEAF__ATTN_SPLIT

/* Bytes of n numbers of a codec, n even. */
INLINE size_t bytes_of(const uint32_t codec, uint32_t n)
{
    return (size_t)sheaf__codec_row_bytes(codec, n);
}

/* The levels of sixteen codes of four bits from p: each half of the vector takes its own four bytes,
 * shifts each number's code down, and looks it up; the bits above are not looked at. */
INLINE __m512 widen_turbo4(const unsigned char *p)
{
    const __m512i shift =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512 levels = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
        _mm_loadu_si128((const __m128i *)(const void *)sheaf__turbo4_levels)));
    int32_t low, high;
    memcpy(&low, p, 4);
    memcpy(&high, p + 4, 4);
    __m512i codes = _mm512_broadcastd_epi32(_mm_cvtsi32_si128(low));
    codes = _mm512_mask_broadcastd_epi32(codes, 0xff00, _mm_cvtsi32_si128(high));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(codes, shift), levels);
}

/* 32 numbers of bf16 or levels of turbo4 from p: even numbers, odd numbers. */
INLINE void widen_halves(const uint32_t codec, const unsigned char *p, __m512 v[2])
{
    if (codec == SHEAF_CODEC_BF16) {
        __m512i x = _mm512_loadu_si512(p);
        v[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        v[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
        return;
    }
    const __m512 levels = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
        _mm_loadu_si128((const __m128i *)(const void *)sheaf__turbo4_levels)));
    __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    v[0] = _mm512_permutexvar_ps(codes, levels);
    v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), levels);
}

/* Sixteen numbers of a codec from p; of a quantized one, levels. */
INLINE __m512 widen16(const uint32_t codec, const unsigned char *p)
{
    if (codec == SHEAF_CODEC_F32) return _mm512_loadu_ps((const float *)(const void *)p);
    if (codec == SHEAF_CODEC_TURBO4) return widen_turbo4(p);
    if (codec == SHEAF_CODEC_INT8)
        return _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (codec == SHEAF_CODEC_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* The first n < 16 numbers from p, then zeros; reads no byte beyond them. */
INLINE __m512 widen_tail(const uint32_t codec, const unsigned char *p, uint32_t n)
{
    unsigned char copy[W * 4] __attribute__((aligned(64))) = {0};
    memcpy(copy, p, bytes_of(codec, n));
    return _mm512_maskz_mov_ps((__mmask16)((1u << n) - 1), widen16(codec, copy));
}

/* Vector i of a row of dim numbers, zeros behind its end. */
INLINE __m512 widen_at(const uint32_t codec, const unsigned char *row, uint32_t i, uint32_t dim)
{
    const unsigned char *p = row + bytes_of(codec, i * W);
    uint32_t left = dim - i * W;
    return left >= W ? widen16(codec, p) : widen_tail(codec, p, left);
}

/* exp, operation by operation as in the text of base/fmath.h. */
INLINE __m512 exp16(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504f), magic);
    __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    __m512 y = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    y = _mm512_add_ps(y, _mm512_set1_ps(1.0f));
    __m512i e = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_castps_si512(magic));
    e = _mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(127)), 23);
    return _mm512_maskz_mul_ps(kept, y, _mm512_castsi512_ps(e));
}

INLINE __m512 tanh16(__m512 x)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 a = _mm512_andnot_ps(sign, x);
    __m512 z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.06390887954e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.37397155531e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33314422036e-1f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33332819422e-1f));
    __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 e = _mm512_add_ps(exp16(_mm512_add_ps(a, a)), one);
    __m512 y = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e));
    y = _mm512_or_ps(_mm512_andnot_ps(sign, y), _mm512_and_ps(sign, x));
    __mmask16 is_inner = _mm512_cmp_ps_mask(a, _mm512_set1_ps(0.625f), _CMP_LT_OQ);
    return _mm512_mask_blend_ps(is_inner, y, inner);
}

INLINE __m512 cap16(__m512 s, float softcap)
{
    __m512 c = _mm512_set1_ps(softcap);
    return _mm512_mul_ps(c, tanh16(_mm512_div_ps(s, c)));
}

/* The trees of sixteen sets of lanes, sums in order. Each level adds the two halves of what is
 * left of two sets at once; quarters are numbered q0 to q3:
 *
 *   (i, i+8)   of v[i], v[i+8]:     q0 q1 of both, plus q2 q3 of both
 *   (i, i+4)   of pairs i, i + 4:   q0 q2 of both, plus q1 q3 of both
 *   (i, i+2)   inside the quarters: numbers 0 1 of both, plus 2 3
 *   (i, i+1)   inside the quarters: numbers 0 2 of both, plus 1 3
 *
 * which leaves the quarters with the sums of sets 0-3, 8-11, 4-7, 12-15. */
INLINE __m512 trees16(const __m512 v[16])
{
    __m512 a[8], b[4], c[2], d;
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44),
                             _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                             _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
    d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    return _mm512_shuffle_f32x4(d, d, 0xd8);
}

/* The sums of sixteen vectors of integers, in order; the same steps. */
INLINE __m512i sums16(const __m512i v[16])
{
    __m512i a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(v[i], v[i + 8], 0x44),
                                _mm512_shuffle_i32x4(v[i], v[i + 8], 0xee));
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(a[i], a[i + 4], 0x88),
                                _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(b[2 * i], b[2 * i + 1]),
                                _mm512_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
    const __m512 x = _mm512_castsi512_ps(c[0]), y = _mm512_castsi512_ps(c[1]);
    __m512i d = _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                                 _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
    return _mm512_shuffle_i32x4(d, d, 0xd8);
}

/* The whole tree of one set of 16 lanes. */
INLINE float tree16(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE float max16(__m512 v)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

INLINE uint32_t greatest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* `at` and the fifteen positions behind it. */
INLINE __m512i positions16(uint32_t at)
{
    return _mm512_add_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm512_set1_epi32((int)at));
}

/* Which positions, given by their vector, lie in [lo, hi). */
INLINE __mmask16 inside16(__m512i position, __m512i lo, __m512i hi)
{
    return _mm512_cmpge_epi32_mask(position, lo) & _mm512_cmplt_epi32_mask(position, hi);
}

/* Rows of a tile rounded up to whole vectors: the stride of scores and of packed queries. */
INLINE uint32_t many_stride(uint32_t n_rows)
{
    return (n_rows + W - 1) / W * W;
}

/* levels_avx512.c: scores of the positions [first, end) of quantized keys; few rows:
 * s: [n_rows, SPLIT]; many: [SPLIT, stride]. */
void sheaf__levels_avx512_few(const sheaf__attn_split *in, float *s);
void sheaf__levels_avx512_many(const sheaf__attn_split *in, float *s);

/* levels_vnni_avx512.c: whether the processor has what it needs, and the same for few rows by it,
 * with a packing of its own. */
int sheaf__levels_vnni_is_here(void);
void sheaf__levels_vnni_pack(const sheaf__attn_split *in);
void sheaf__levels_vnni_few(const sheaf__attn_split *in, float *s);

#endif
