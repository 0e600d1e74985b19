/* model/ops_neon.c - the operations on rows, four numbers at a time. */
#if defined(__aarch64__)

#    include <arm_neon.h>
#    include <string.h>

#    include "model/ops_tables.h"

#    define INLINE static inline __attribute__((always_inline))

/* Four numbers, or the first `left` of them and +0. */
INLINE float32x4_t load(const float *p, uint32_t left)
{
    if (left >= 4) return vld1q_f32(p);
    float padded[4] = {0};
    memcpy(padded, p, left * sizeof(float));
    return vld1q_f32(padded);
}

INLINE void store(float *p, uint32_t left, float32x4_t v)
{
    if (left >= 4) {
        vst1q_f32(p, v);
        return;
    }
    float whole[4];
    vst1q_f32(whole, v);
    memcpy(p, whole, left * sizeof(float));
}

static float sum_of_squares(const float *x, uint32_t n)
{
    float sum = 0.0f;
    for (uint64_t begin = 0; begin < n; begin += 1024) {
        uint32_t size = n - begin > 1024 ? 1024 : (uint32_t)(n - begin);
        const float *at = x + begin;
        float32x4_t lanes[4];
        for (int j = 0; j < 4; j++) lanes[j] = vdupq_n_f32(0.0f);
        uint32_t i = 0;
        for (; i + 16 <= size; i += 16)
            for (uint32_t j = 0; j < 4; j++) {
                float32x4_t a = vld1q_f32(at + i + 4 * j);
                lanes[j] = vfmaq_f32(lanes[j], a, a);
            }
        for (uint32_t j = 0; j < 4 && i < size; j++) { /* a short step, +0 behind its end */
            uint32_t left = size - i > 4 * j ? size - i - 4 * j : 0;
            float32x4_t a = left == 0 ? vdupq_n_f32(0.0f) : load(at + i + 4 * j, left);
            lanes[j] = vfmaq_f32(lanes[j], a, a);
        }
        float32x4_t four =
            vaddq_f32(vaddq_f32(lanes[0], lanes[2]), vaddq_f32(lanes[1], lanes[3]));
        float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        float block = vget_lane_f32(vpadd_f32(two, two), 0);
        sum = begin == 0 ? block : sum + block;
    }
    return sum;
}

static void rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float32x2_t root = vsqrt_f32(vdup_n_f32(mean + eps));
    float32x4_t scale = vdupq_n_f32(1.0f / vget_lane_f32(root, 0));
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t left = n - i;
        float32x4_t scaled = vmulq_f32(load(x + i, left), scale);
        store(out + i, left, vmulq_f32(scaled, load(w + i, left)));
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t dim)
{
    uint32_t half = dim / 2;
    for (uint32_t i = 0; i < half; i += 4) {
        uint32_t left = half - i;
        float32x4_t a = load(x + i, left), b = load(x + half + i, left);
        float32x4_t c = load(cos + i, left), s = load(sin + i, left);
        store(x + i, left, vfmsq_f32(vmulq_f32(a, c), b, s));
        store(x + half + i, left, vfmaq_f32(vmulq_f32(b, c), a, s));
    }
}

/* exp, as base/fmath.h defines it. */
INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(12582912.0f), most = vdupq_n_f32(88.0f);
    uint32x4_t tiny = vcltq_f32(x, vdupq_n_f32(-87.0f));
    x = vbslq_f32(vcgtq_f32(x, most), most, x); /* a NaN stays */
    float32x4_t t = vfmaq_f32(magic, x, vdupq_n_f32(1.44269504f));
    float32x4_t n = vsubq_f32(t, magic);
    float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-0.693359375f));
    r = vfmaq_f32(r, n, vdupq_n_f32(2.12194440e-4f));
    float32x4_t p = vdupq_n_f32(1.9875691500e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), p, r);
    float32x4_t y = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
    uint32x4_t exponent = vsubq_u32(vreinterpretq_u32_f32(t), vreinterpretq_u32_f32(magic));
    exponent = vshlq_n_u32(vaddq_u32(exponent, vdupq_n_u32(127)), 23);
    y = vmulq_f32(y, vreinterpretq_f32_u32(exponent));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), tiny));
}

static void silu_mul(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t left = n - i;
        float32x4_t x = load(gate + i, left);
        float32x4_t e = exp4(vnegq_f32(x));
        float32x4_t silu = vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), e));
        store(gate + i, left, vmulq_f32(silu, load(up + i, left)));
    }
}

/* tanh, as base/fmath.h defines it. */
INLINE float32x4_t tanh4(float32x4_t x)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    float32x4_t a = vabsq_f32(x), z = vmulq_f32(x, x);
    float32x4_t p = vdupq_n_f32(-5.70498872745e-3f);
    p = vfmaq_f32(vdupq_n_f32(2.06390887954e-2f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-5.37397155531e-2f), p, z);
    p = vfmaq_f32(vdupq_n_f32(1.33314422036e-1f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-3.33332819422e-1f), p, z);
    float32x4_t near = vfmaq_f32(x, vmulq_f32(p, z), x);
    float32x4_t e = vaddq_f32(exp4(vaddq_f32(a, a)), one);
    float32x4_t far = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), e));
    far = vbslq_f32(vdupq_n_u32(0x80000000u), x, far); /* the sign of x */
    return vbslq_f32(vcltq_f32(a, vdupq_n_f32(0.625f)), near, far);
}

static void gelu_mul(float *gate, const float *up, uint32_t n)
{
    const float32x4_t cubic = vdupq_n_f32(0.044715f), scale = vdupq_n_f32(0.797884583f);
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t left = n - i;
        float32x4_t x = load(gate + i, left);
        float32x4_t u = vfmaq_f32(x, vmulq_f32(cubic, vmulq_f32(x, x)), x);
        float32x4_t t = vaddq_f32(vdupq_n_f32(1.0f), tanh4(vmulq_f32(scale, u)));
        float32x4_t gelu = vmulq_f32(vmulq_f32(vdupq_n_f32(0.5f), x), t);
        store(gate + i, left, vmulq_f32(gelu, load(up + i, left)));
    }
}

static void softcap(float *x, float cap, uint32_t n)
{
    const float32x4_t caps = vdupq_n_f32(cap);
    for (uint32_t i = 0; i < n; i += 4) {
        float32x4_t t = tanh4(vdivq_f32(load(x + i, n - i), caps));
        store(x + i, n - i, vmulq_f32(caps, t));
    }
}

static void add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t left = n - i;
        store(x + i, left, vaddq_f32(load(x + i, left), load(y + i, left)));
    }
}

INLINE float32x4_t widen4(const unsigned char *p, const uint32_t dtype)
{
    uint8x8_t half = vld1_u8(p);
    if (dtype == SHEAF_DTYPE_F16) return vcvt_f32_f16(vreinterpret_f16_u8(half));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(half), 16));
}

static void widen(const void *src, uint32_t dtype, uint32_t n, float *out)
{
    const unsigned char *from = src;
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(out, src, n * sizeof(float));
        return;
    }
    uint32_t whole = n & ~3u;
    for (uint32_t i = 0; i < whole; i += 4)
        vst1q_f32(out + i, widen4(from + 2 * (uint64_t)i, dtype));
    if (whole < n) {
        unsigned char tail[8] = {0};
        memcpy(tail, from + 2 * (uint64_t)whole, 2 * (n - whole));
        store(out + whole, n - whole, widen4(tail, dtype));
    }
}

const sheaf__ops sheaf__ops_neon = {
    .isa = SHEAF_ISA_NEON,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
    .add = add,
    .widen = widen,
};

#endif
