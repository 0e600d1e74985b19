/* attn/vector_neon.h - what the NEON forms share: numbers of every codec by fours and by sixteens, exp
 * and tanh, the tree of lanes.
 *
 * No product here feeds a plain add, so no compiler can contract anything. Maxima are compared and
 * selected: the processor's own maximum spreads a NaN, the scalar form passes it by.
 */
#ifndef SHEAF_ATTN_VECTOR_NEON_H
#define SHEAF_ATTN_VECTOR_NEON_H

#include <arm_neon.h>
#include <string.h>

#include "attn/kernels.h"
#include "codec/codec.h"

#define INLINE static inline __attribute__((always_inline))
#define W      4 /* floats a vector */
#define SPLIT  SHEAF__ATTN_SPLIT

/* Bytes of n numbers of a codec, n even. */
INLINE size_t bytes_of(const uint32_t codec, uint32_t n)
{
    return (size_t)sheaf__codec_row_bytes(codec, n);
}

INLINE void floats_of_levels(int8x16_t levels, float32x4_t out[4])
{
    int16x8_t low = vmovl_s8(vget_low_s8(levels)), high = vmovl_high_s8(levels);
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
    out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}

/* Four numbers of a raw codec from p, which may have any alignment. */
INLINE float32x4_t widen4(const uint32_t codec, const unsigned char *p)
{
    if (codec == SHEAF_CODEC_F32) return vreinterpretq_f32_u8(vld1q_u8(p));
    uint8x8_t half = vld1_u8(p);
    if (codec == SHEAF_CODEC_F16) return vcvt_f32_f16(vreinterpret_f16_u8(half));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(half), 16));
}

/* Sixteen numbers of a codec from p; of a quantized one, levels. */
INLINE void widen16(const uint32_t codec, const unsigned char *p, float32x4_t out[4])
{
    if (codec == SHEAF_CODEC_INT8) {
        floats_of_levels(vreinterpretq_s8_u8(vld1q_u8(p)), out);
    } else if (codec == SHEAF_CODEC_TURBO4) {
        uint8x8_t bytes = vld1_u8(p);
        uint8x8_t low = vand_u8(bytes, vdup_n_u8(15)), high = vshr_n_u8(bytes, 4);
        uint8x16_t codes = vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
        floats_of_levels(vqtbl1q_s8(vld1q_s8(sheaf__turbo4_levels), codes), out);
    } else {
        for (uint32_t j = 0; j < 4; j++) out[j] = widen4(codec, p + bytes_of(codec, j * W));
    }
}

/* The first n < 16 numbers from p, then zeros; reads no byte beyond them. */
INLINE void widen_tail(const uint32_t codec, const unsigned char *p, uint32_t n,
                       float32x4_t out[4])
{
    static const uint32_t count[4] = {0, 1, 2, 3};
    unsigned char copy[16 * 4] = {0};
    memcpy(copy, p, bytes_of(codec, n));
    widen16(codec, copy, out);
    for (uint32_t j = 0; j < 4; j++) {
        uint32x4_t at = vaddq_u32(vld1q_u32(count), vdupq_n_u32(j * W));
        uint32x4_t kept =
            vandq_u32(vreinterpretq_u32_f32(out[j]), vcltq_u32(at, vdupq_n_u32(n)));
        out[j] = vreinterpretq_f32_u32(kept);
    }
}

/* Vectors 4 i to 4 i + 3 of a row of dim numbers, zeros behind its end. */
INLINE void widen_at(const uint32_t codec, const unsigned char *row, uint32_t i, uint32_t dim,
                     float32x4_t out[4])
{
    uint32_t left = dim - i * 16;
    if (left >= 16)
        widen16(codec, row + bytes_of(codec, i * 16), out);
    else
        widen_tail(codec, row + bytes_of(codec, i * 16), left, out);
}

INLINE float32x4_t greater4(float32x4_t x, float32x4_t than)
{
    return vbslq_f32(vcgtq_f32(x, than), x, than);
}

/* exp, operation by operation as in the text of base/fmath.h. */
INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(12582912.0f), top = vdupq_n_f32(88.0f);
    uint32x4_t below = vcltq_f32(x, vdupq_n_f32(-87.0f));
    x = vbslq_f32(vcgtq_f32(x, top), top, x);
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
    float32x4_t y = vfmaq_f32(r, p, vmulq_f32(r, r));
    y = vaddq_f32(y, vdupq_n_f32(1.0f));
    uint32x4_t e = vsubq_u32(vreinterpretq_u32_f32(t), vreinterpretq_u32_f32(magic));
    e = vshlq_n_u32(vaddq_u32(e, vdupq_n_u32(127)), 23);
    y = vmulq_f32(y, vreinterpretq_f32_u32(e));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), below));
}

INLINE float32x4_t tanh4(float32x4_t x)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    float32x4_t a = vabsq_f32(x), z = vmulq_f32(x, x);
    float32x4_t p = vdupq_n_f32(-5.70498872745e-3f);
    p = vfmaq_f32(vdupq_n_f32(2.06390887954e-2f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-5.37397155531e-2f), p, z);
    p = vfmaq_f32(vdupq_n_f32(1.33314422036e-1f), p, z);
    p = vfmaq_f32(vdupq_n_f32(-3.33332819422e-1f), p, z);
    float32x4_t inner = vfmaq_f32(x, vmulq_f32(p, z), x);
    float32x4_t e = vaddq_f32(exp4(vaddq_f32(a, a)), one);
    float32x4_t y = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2.0f), e));
    y = vbslq_f32(vdupq_n_u32(0x80000000u), x, y); /* the sign of x */
    return vbslq_f32(vcltq_f32(a, vdupq_n_f32(0.625f)), inner, y);
}

INLINE float32x4_t cap4(float32x4_t s, float softcap)
{
    float32x4_t c = vdupq_n_f32(softcap);
    return vmulq_f32(c, tanh4(vdivq_f32(s, c)));
}

/* The levels (i, i+8) (i, i+4) (i, i+2) of one set of 16 lanes. */
INLINE float32x2_t tree_to_two(const float32x4_t v[4])
{
    float32x4_t four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    return vadd_f32(vget_low_f32(four), vget_high_f32(four));
}

INLINE float tree16(const float32x4_t v[4])
{
    float32x2_t two = tree_to_two(v);
    return vget_lane_f32(vpadd_f32(two, two), 0);
}

/* All ones where a position lies in [lo, hi). */
INLINE uint32x4_t inside4(uint32x4_t position, uint32x4_t lo, uint32x4_t hi)
{
    return vandq_u32(vcgeq_u32(position, lo), vcltq_u32(position, hi));
}

INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

INLINE uint32_t greatest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Rows of a tile rounded up to pairs of vectors: stride of scores and of packed queries. */
INLINE uint32_t many_stride(uint32_t n_rows)
{
    return (n_rows + 2 * W - 1) / (2 * W) * (2 * W);
}

/* levels_neon.c: scores of the positions [first, end) of quantized keys; few rows: s: [n_rows, SPLIT];
 * many: [SPLIT, stride]. */
void sheaf__levels_neon_few(const sheaf__attn_split *in, float *s);
void sheaf__levels_neon_many(const sheaf__attn_split *in, float *s);

#endif
