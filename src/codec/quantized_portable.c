/* codec/quantized_portable.c - int8 and turbo4 for any processor, as docs/format.md says them.
 *
 * x is the row as f32 [dim]; r = R x the rotated one; L the levels of the codes; e the exponent of
 * the largest magnitude.
 */
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "codec/codec.h"
#include "codec/quantized.h"

#define LANES 16
/* 127 / 2.7326, the outermost Lloyd-Max level of the unit Gaussian: levels per standard deviation */
#define LEVELS_PER_SIGMA 0x1.73ce9cp+5f

/* ---- rows ---------------------------------------------------------------------------------- */

/* Widens a row; returns the bits of its largest magnitude. */
static uint32_t widen_row(const unsigned char *from, uint32_t dtype, uint32_t dim, float *x)
{
    uint32_t largest = 0;
    for (uint32_t d = 0; d < dim; d++) {
        uint16_t half;
        if (dtype == SHEAF_DTYPE_F32) {
            memcpy(&x[d], from + 4 * d, 4);
        } else {
            memcpy(&half, from + 2 * d, 2);
            x[d] =
                dtype == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(half) : sheaf__f32_of_bf16(half);
        }
        uint32_t magnitude = sheaf__bits_of_f32(x[d]) & 0x7fffffffu;
        if (magnitude > largest) largest = magnitude;
    }
    return largest;
}

/* Whether a row is encoded by its largest magnitude alone, with these codes: zero or not finite. */
static bool put_special(uint32_t largest, int zero_codes, uint64_t row_bytes,
                        unsigned char *codes, unsigned char *scale)
{
    if (largest != 0 && largest < 0x7f800000u) return false;
    uint32_t bits = largest == 0 ? 0 : SHEAF__QUANTIZED_NAN;
    memset(codes, zero_codes, row_bytes);
    memcpy(scale, &bits, 4);
    return true;
}

/* ---- int8 ---------------------------------------------------------------------------------- */

static void encode_int8(const unsigned char *from, uint32_t dtype, uint32_t dim,
                        unsigned char *codes, unsigned char *scale)
{
    float x[SHEAF_CODEC_MAX_DIM];
    uint32_t largest = widen_row(from, dtype, dim, x);
    if (put_special(largest, 0, dim, codes, scale)) return;
    float unit = sheaf__f32_of_bits(largest) / 127.0f;
    memcpy(scale, &unit, 4);
    for (uint32_t d = 0; d < dim; d++) {
        long level = unit == 0.0f ? 0 : lrintf(x[d] / unit);
        level = level > 127 ? 127 : level < -127 ? -127 : level;
        codes[d] = (unsigned char)level;
    }
}

static void decode_int8(const unsigned char *codes, float scale, uint32_t dim,
                        unsigned char *out)
{
    for (uint32_t d = 0; d < dim; d++) {
        float value = scale * (float)(int8_t)codes[d];
        memcpy(out + 4 * d, &value, 4);
    }
}

/* ---- the rotation -------------------------------------------------------------------------- */

static void turn_signs(float *x, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        if (sheaf__turbo4_signs[d / 64] >> (d % 64) & 1) x[d] = -x[d];
}

/* y: [p], p a power of two. */
static void hadamard(float *y, uint32_t p)
{
    for (uint32_t h = 1; h < p; h *= 2)
        for (uint32_t i = 0; i < p; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = y[j], b = y[j + h];
                y[j] = a + b;
                y[j + h] = a - b;
            }
    /* 1 / sqrt(p): exact for even powers, else half the square root of 2 over a power of two */
    uint32_t k = sheaf__log2(p);
    float factor = ldexpf(k % 2 == 0 ? 1.0f : 0x1.6a09e6p-1f, -(int)(k / 2));
    for (uint32_t i = 0; i < p; i++) y[i] *= factor;
}

static void rotate(float *x, uint32_t dim)
{
    if (dim == 0) return;
    uint32_t p = 1u << sheaf__log2(dim);
    turn_signs(x, dim);
    hadamard(x, p);
    if (p < dim) hadamard(x + (dim - p), p);
}

static void unrotate(float *x, uint32_t dim)
{
    if (dim == 0) return;
    uint32_t p = 1u << sheaf__log2(dim);
    if (p < dim) hadamard(x + (dim - p), p);
    hadamard(x, p);
    turn_signs(x, dim);
}

/* ---- turbo4 -------------------------------------------------------------------------------- */

/* sum of a[d] * b[d], in lanes d % 16. */
static float dot(const float *a, const float *b, uint32_t dim)
{
    float lane[LANES] = {0};
    for (uint32_t d = 0; d < dim; d++) lane[d % LANES] = fmaf(a[d], b[d], lane[d % LANES]);
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

static uint32_t code_of(float u)
{
    static const float midpoints[7] = {12, 24.5f, 37.5f, 51, 66.5f, 85.5f, 111.5f};
    uint32_t passed = 0;
    for (uint32_t i = 0; i < 7; i++) passed += fabsf(u) >= midpoints[i];
    return u < 0 ? 7 - passed : 8 + passed;
}

/* The code of element d, in the low half of its byte where d is even. */
static void put_code(unsigned char *codes, uint32_t d, uint32_t code)
{
    codes[d / 2] = (unsigned char)(d % 2 == 0 ? code : codes[d / 2] | code << 4);
}

static void encode_turbo4(const unsigned char *from, uint32_t dtype, uint32_t dim,
                          unsigned char *codes, unsigned char *scale)
{
    float x[SHEAF_CODEC_MAX_DIM], levels[SHEAF_CODEC_MAX_DIM];
    uint32_t largest = widen_row(from, dtype, dim, x);
    if (put_special(largest, SHEAF__TURBO4_ZERO, (dim + 1) / 2, codes, scale)) return;
    int e = largest >= 1u << 23 ? (int)(largest >> 23) - 127 : (int)sheaf__log2(largest) - 149;
    int half = (e - (e & 1)) / 2, rest = e - half; /* 2^e may be no normal number */
    float down = ldexpf(1.0f, -half), down_rest = ldexpf(1.0f, -rest);
    for (uint32_t d = 0; d < dim; d++) x[d] = x[d] * down * down_rest;

    float sigma = sqrtf(dot(x, x, dim) / (float)dim);
    float gain = LEVELS_PER_SIGMA / sigma;
    rotate(x, dim);
    int32_t levels_squared = 0;
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t code = code_of(x[d] * gain);
        int32_t level = sheaf__turbo4_levels[code];
        put_code(codes, d, code);
        levels[d] = (float)level;
        levels_squared += level * level;
    }
    if (dim % 2 != 0) put_code(codes, dim, SHEAF__TURBO4_ZERO & 15);
    float unit = dot(x, levels, dim) / (float)levels_squared;
    unit = unit * ldexpf(1.0f, half) * ldexpf(1.0f, rest);
    memcpy(scale, &unit, 4);
}

static void decode_turbo4(const unsigned char *codes, float scale, uint32_t dim,
                          unsigned char *out)
{
    float y[SHEAF_CODEC_MAX_DIM];
    for (uint32_t d = 0; d < dim; d++)
        y[d] = (float)sheaf__turbo4_levels[codes[d / 2] >> (d % 2 * 4) & 15];
    unrotate(y, dim);
    for (uint32_t d = 0; d < dim; d++) y[d] *= scale;
    memcpy(out, y, 4ull * dim);
}

const sheaf__quantized_kernels sheaf__quantized_scalar = {
    .isa = SHEAF_ISA_SCALAR,
    .encode_int8 = encode_int8,
    .encode_turbo4 = encode_turbo4,
    .decode_int8 = decode_int8,
    .decode_turbo4 = decode_turbo4,
    .rotate = rotate,
    .unrotate = unrotate,
};
