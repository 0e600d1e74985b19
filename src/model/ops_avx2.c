/* model/ops_avx2.c - the operations on rows, eight numbers at a time. */
#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

#    include "model/ops_tables.h"

#    define INLINE static inline __attribute__((always_inline))

/* Eight numbers, or the first `left` of them and +0. Masked stores are slow on some processors,
 * so only tails use them. */
INLINE __m256i first(uint32_t left)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)left),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE __m256 load(const float *p, uint32_t left)
{
    return left >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first(left));
}

INLINE void store(float *p, uint32_t left, __m256 v)
{
    if (left >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, first(left), v);
}

INLINE float join_lanes(__m256 low, __m256 high)
{
    __m256 eight = _mm256_add_ps(low, high); /* i + i+8 */
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static float sum_of_squares(const float *x, uint32_t n)
{
    float sum = 0.0f;
    for (uint64_t begin = 0; begin < n; begin += 1024) {
        uint32_t size = n - begin > 1024 ? 1024 : (uint32_t)(n - begin);
        const float *at = x + begin;
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
        for (uint32_t i = 0; i < size; i += 16) {
            uint32_t left = size - i;
            __m256 a = load(at + i, left), b = load(at + i + 8, left < 8 ? 0 : left - 8);
            low = _mm256_fmadd_ps(a, a, low);
            high = _mm256_fmadd_ps(b, b, high);
        }
        float block = join_lanes(low, high);
        sum = begin == 0 ? block : sum + block;
    }
    return sum;
}

static void rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float scale = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    __m256 scales = _mm256_set1_ps(scale);
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t left = n - i;
        __m256 scaled = _mm256_mul_ps(load(x + i, left), scales);
        store(out + i, left, _mm256_mul_ps(scaled, load(w + i, left)));
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t dim)
{
    uint32_t half = dim / 2;
    for (uint32_t i = 0; i < half; i += 8) {
        uint32_t left = half - i;
        __m256 a = load(x + i, left), b = load(x + half + i, left);
        __m256 c = load(cos + i, left), s = load(sin + i, left);
        store(x + i, left, _mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c)));
        store(x + half + i, left, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
}

/* exp, as base/fmath.h defines it. */
INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f);
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), x); /* a NaN stays */
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
    __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    exponent = _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(y, _mm256_castsi256_ps(exponent)));
}

static void silu_mul(float *gate, const float *up, uint32_t n)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t left = n - i;
        __m256 x = load(gate + i, left);
        __m256 e = exp8(_mm256_xor_ps(x, sign));
        __m256 silu = _mm256_div_ps(x, _mm256_add_ps(one, e));
        store(gate + i, left, _mm256_mul_ps(silu, load(up + i, left)));
    }
}

/* tanh, as base/fmath.h defines it. */
INLINE __m256 tanh8(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(-5.70498872745e-3f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(2.06390887954e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-5.37397155531e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(1.33314422036e-1f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-3.33332819422e-1f));
    __m256 near = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 far = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    far = _mm256_or_ps(_mm256_andnot_ps(sign, far), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(far, near, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

static void gelu_mul(float *gate, const float *up, uint32_t n)
{
    const __m256 cubic = _mm256_set1_ps(0.044715f), scale = _mm256_set1_ps(0.797884583f);
    const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t left = n - i;
        __m256 x = load(gate + i, left);
        __m256 u = _mm256_fmadd_ps(_mm256_mul_ps(cubic, _mm256_mul_ps(x, x)), x, x);
        __m256 t = _mm256_add_ps(one, tanh8(_mm256_mul_ps(scale, u)));
        __m256 gelu = _mm256_mul_ps(_mm256_mul_ps(half, x), t);
        store(gate + i, left, _mm256_mul_ps(gelu, load(up + i, left)));
    }
}

static void softcap(float *x, float cap, uint32_t n)
{
    const __m256 caps = _mm256_set1_ps(cap);
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 t = tanh8(_mm256_div_ps(load(x + i, n - i), caps));
        store(x + i, n - i, _mm256_mul_ps(caps, t));
    }
}

static void add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        uint32_t left = n - i;
        __m256 a = load(x + i, left), b = load(y + i, left);
        store(x + i, left, _mm256_add_ps(a, b));
    }
}

INLINE __m256 widen8(const unsigned char *p, uint32_t dtype)
{
    __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (dtype == SHEAF_DTYPE_F16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

static void widen(const void *src, uint32_t dtype, uint32_t n, float *out)
{
    const unsigned char *from = src;
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(out, src, n * sizeof(float));
        return;
    }
    uint32_t whole = n & ~7u;
    for (uint32_t i = 0; i < whole; i += 8)
        _mm256_storeu_ps(out + i, widen8(from + 2 * (uint64_t)i, dtype));
    if (whole < n) {
        unsigned char tail[16] = {0};
        memcpy(tail, from + 2 * (uint64_t)whole, 2 * (n - whole));
        _mm256_maskstore_ps(out + whole, first(n - whole), widen8(tail, dtype));
    }
}

const sheaf__ops sheaf__ops_avx2 = {
    .isa = SHEAF_ISA_AVX2,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
    .add = add,
    .widen = widen,
};

#endif
