/* base/half.h - f16 and bf16: exact widening, and narrowing by integer round to nearest even.
 *
 * Integer arithmetic only, so that the result depends on neither the rounding mode nor flush to
 * zero. Overflow gives infinity; denormals are kept; NaN stays a quiet NaN.
 */
#ifndef SHEAF_BASE_HALF_H
#define SHEAF_BASE_HALF_H

#include "base/bits.h"

static inline float sheaf__f32_of_bf16(uint16_t h)
{
    return sheaf__f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t sheaf__bf16_of_f32(float x)
{
    uint32_t u = sheaf__bits_of_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float sheaf__f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1f) {
        uint32_t quiet = mantissa ? 0x400000u : 0;
        return sheaf__f32_of_bits(sign | 0x7f800000u | (mantissa << 13) | quiet);
    }
    if (exponent != 0)
        return sheaf__f32_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
    if (mantissa == 0) return sheaf__f32_of_bits(sign);
    /* denormal: mantissa * 2^-24; move its highest bit to the implicit place */
    uint32_t high = sheaf__log2(mantissa);
    return sheaf__f32_of_bits(sign | ((high + 103) << 23) |
                              ((mantissa << (23 - high)) & 0x7fffffu));
}

static inline uint16_t sheaf__f16_of_f32(float x)
{
    uint32_t u = sheaf__bits_of_f32(x);
    uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 65536 and above */
    if (magnitude >= 0x38800000u) { /* normal: 2^-14 and above */
        uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | (rounded >> 13));
    }
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign; /* below half of the least denormal */
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - exponent; /* 14 to 24 */
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1),
             half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1u));
    return (uint16_t)(sign | kept);
}

#endif
