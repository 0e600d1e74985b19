/* base/fmath.h - functions of our own in single precision, defined operation by operation.
 *
 * libm's differ between versions, builds and processors; these are sequences of exactly rounded
 * operations, so that every instruction set can repeat them to the bit. SIMD forms are written
 * apart, from the text below, and share nothing with this file.
 *
 * exp(x), after Cephes' expf (S. L. Moshier), fused throughout:
 *     x < -87: +0.  x > 88: as 88.
 *     t = fma(x, 1.44269504, 12582912)          round to nearest integer by the magic number
 *     n = t - 12582912                          -126 <= n <= 127
 *     r = fma(n, -0.693359375, x);  r = fma(n, 2.12194440e-4, r)
 *     p = Horner by fma over r: 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3,
 *         4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
 *     y = fma(p, r * r, r) + 1
 *     y * 2^n                                   2^n from its bits; exact
 *
 * tanh(x): for |x| < 0.625, with z = x * x: fma(p * z, x, x), p by Horner over z:
 *         -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
 *         -3.33332819422e-1  (Cephes' tanhf)
 *     else with a = |x|: copysign(1 - 2 / (exp(a + a) + 1), x)
 *
 * silu(x) = x / (1 + exp(-x))
 */
#ifndef SHEAF_BASE_FMATH_H
#define SHEAF_BASE_FMATH_H

#include <math.h>

#include "base/bits.h"

/* Of a function that calls one of these many times: four times as fast with fused multiply-add in line,
 * and the same bits. Only for processors that have it: models are opened on no others (base/isa.c). */
#if defined(__x86_64__)
#    define SHEAF__WITH_FMA __attribute__((target("fma")))
#else
#    define SHEAF__WITH_FMA
#endif

static inline float sheaf__expf(float x)
{
    if (x < -87.0f) return 0.0f;
    if (x > 88.0f) x = 88.0f;
    const float magic = 12582912.0f;
    float t = fmaf(x, 1.44269504f, magic);
    float n = t - magic;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p, r * r, r) + 1.0f;
    uint32_t exponent = sheaf__bits_of_f32(t) - sheaf__bits_of_f32(magic) + 127u;
    return y * sheaf__f32_of_bits(exponent << 23);
}

static inline float sheaf__tanhf(float x)
{
    float a = fabsf(x);
    if (a < 0.625f) {
        float z = x * x;
        float p = -5.70498872745e-3f;
        p = fmaf(p, z, 2.06390887954e-2f);
        p = fmaf(p, z, -5.37397155531e-2f);
        p = fmaf(p, z, 1.33314422036e-1f);
        p = fmaf(p, z, -3.33332819422e-1f);
        return fmaf(p * z, x, x);
    }
    float y = 1.0f - 2.0f / (sheaf__expf(a + a) + 1.0f);
    return copysignf(y, x);
}

static inline float sheaf__siluf(float x)
{
    return x / (1.0f + sheaf__expf(-x));
}

#endif
