/* model/ops_avx512.c - the operations on rows, sixteen numbers at a time. */
#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

#    include "model/ops_tables.h"

#    define INLINE static inline __attribute__((always_inline))

/* The first `left` of sixteen numbers. */
INLINE __mmask16 first(uint32_t left)
{
    return (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
}

INLINE float join_lanes(__m512 lanes)
{
    __m256 eight =
        _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static float sum_of_squares(const float *x, uint32_t n)
{
    float sum = 0.0f;
    for (uint64_t begin = 0; begin < n; begin += 1024) {
        uint32_t size = n - begin > 1024 ? 1024 : (uint32_t)(n - begin);
        __m512 lanes = _mm512_setzero_ps();
        for (uint32_t i = 0; i < size; i += 16) {
            __m512 a = _mm512_maskz_loadu_ps(first(size - i), x + begin + i);
            lanes = _mm512_fmadd_ps(a, a, lanes);
        }
        float block = join_lanes(lanes);
        sum = begin == 0 ? block : sum + block;
    }
    return sum;
}

static void rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float scale = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    __m512 scales = _mm512_set1_ps(scale);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = first(n - i);
        __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scales);
        _mm512_mask_storeu_ps(out + i, mask,
                              _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(mask, w + i)));
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t dim)
{
    uint32_t half = dim / 2;
    for (uint32_t i = 0; i < half; i += 16) {
        __mmask16 mask = first(half - i);
        __m512 a = _mm512_maskz_loadu_ps(mask, x + i);
        __m512 b = _mm512_maskz_loadu_ps(mask, x + half + i);
        __m512 c = _mm512_maskz_loadu_ps(mask, cos + i);
        __m512 s = _mm512_maskz_loadu_ps(mask, sin + i);
        _mm512_mask_storeu_ps(x + i, mask, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)));
        _mm512_mask_storeu_ps(x + half + i, mask, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)));
    }
}

/* exp, as base/fmath.h defines it. */
INLINE __m512 exp16(__m512 x)
{
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), x); /* a NaN stays */
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
    __m512i exponent = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_castps_si512(magic));
    exponent = _mm512_slli_epi32(_mm512_add_epi32(exponent, _mm512_set1_epi32(127)), 23);
    y = _mm512_mul_ps(y, _mm512_castsi512_ps(exponent));
    return _mm512_mask_mov_ps(y, tiny, _mm512_setzero_ps());
}

static void silu_mul(float *gate, const float *up, uint32_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = first(n - i);
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
        __m512 e = exp16(_mm512_xor_ps(x, sign));
        __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, e));
        _mm512_mask_storeu_ps(gate + i, mask,
                              _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, up + i)));
    }
}

/* tanh, as base/fmath.h defines it. */
INLINE __m512 tanh16(__m512 x)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 a = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.06390887954e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-5.37397155531e-2f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(1.33314422036e-1f));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(-3.33332819422e-1f));
    __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 e = _mm512_add_ps(exp16(_mm512_add_ps(a, a)), one);
    __m512 far = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), e));
    far = _mm512_or_ps(_mm512_andnot_ps(sign, far), _mm512_and_ps(sign, x));
    return _mm512_mask_mov_ps(far, _mm512_cmp_ps_mask(a, _mm512_set1_ps(0.625f), _CMP_LT_OQ),
                              near);
}

static void gelu_mul(float *gate, const float *up, uint32_t n)
{
    const __m512 cubic = _mm512_set1_ps(0.044715f), scale = _mm512_set1_ps(0.797884583f);
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = first(n - i);
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
        __m512 u = _mm512_fmadd_ps(_mm512_mul_ps(cubic, _mm512_mul_ps(x, x)), x, x);
        __m512 t = _mm512_add_ps(one, tanh16(_mm512_mul_ps(scale, u)));
        __m512 gelu = _mm512_mul_ps(_mm512_mul_ps(half, x), t);
        _mm512_mask_storeu_ps(gate + i, mask,
                              _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(mask, up + i)));
    }
}

static void softcap(float *x, float cap, uint32_t n)
{
    const __m512 caps = _mm512_set1_ps(cap);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = first(n - i);
        __m512 t = tanh16(_mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + i), caps));
        _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(caps, t));
    }
}

static void add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = first(n - i);
        __m512 a = _mm512_maskz_loadu_ps(mask, x + i), b = _mm512_maskz_loadu_ps(mask, y + i);
        _mm512_mask_storeu_ps(x + i, mask, _mm512_add_ps(a, b));
    }
}

static void widen(const void *src, uint32_t dtype, uint32_t n, float *out)
{
    const unsigned char *from = src;
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(out, src, n * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 mask = first(n - i);
        __m256i halves = _mm256_maskz_loadu_epi16(mask, from + 2 * (uint64_t)i);
        __m512 wide =
            dtype == SHEAF_DTYPE_F16
                ? _mm512_cvtph_ps(halves)
                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
        _mm512_mask_storeu_ps(out + i, mask, wide);
    }
}

const sheaf__ops sheaf__ops_avx512 = {
    .isa = SHEAF_ISA_AVX512,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
    .add = add,
    .widen = widen,
};

#endif
