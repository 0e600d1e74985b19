/* codec/quantized_lanes.h - int8 and turbo4 in vectors of LANES floats.
 *
 * Included by one source file an instruction set, which defines beforehand
 *     LANES         4, 8 or 16: floats of a register
 *     SWAP_1(v) ..  the vector with lanes i and i ^ 1 exchanged; SWAP_2, SWAP_4, SWAP_8 alike
 *     widen_f16(from, n, x)   n f16 numbers to f32
 *     TABLE, ISA    the name of the table made here, and its SHEAF_ISA_...
 * Vectors are those that gcc and clang share; where a plain loop is enough, it is left to them.
 *
 * Rows lie in arrays of SHEAF_CODEC_MAX_DIM floats and are padded with +0 to whole vectors. Must match
 * docs/format.md as quantized_portable.c does: the same operations on the same numbers.
 */
#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "codec/codec.h"
#include "codec/quantized.h"

#define SUM_LANES        16
#define LEVELS_PER_SIGMA 0x1.73ce9cp+5f
#define INLINE           static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));

#if LANES == 16
static const vi lane_numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES == 8
static const vi lane_numbers = {0, 1, 2, 3, 4, 5, 6, 7};
#else
static const vi lane_numbers = {0, 1, 2, 3};
#endif

INLINE vf load(const float *from)
{
    vf v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, vf v)
{
    memcpy(to, &v, sizeof v);
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Numbers of a row with its padding. */
INLINE uint32_t padded(uint32_t dim)
{
    return (dim + SUM_LANES - 1) / SUM_LANES * SUM_LANES;
}

/* Widens and pads a row; returns the bits of its largest magnitude. */
INLINE uint32_t read_row(const unsigned char *from, uint32_t dtype, uint32_t dim, float *x)
{
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(x, from, 4ull * dim);
    } else if (dtype == SHEAF_DTYPE_F16) {
        widen_f16(from, dim, x);
    } else {
        uint32_t bits[SHEAF_CODEC_MAX_DIM];
        uint16_t halves[SHEAF_CODEC_MAX_DIM];
        memcpy(halves, from, 2ull * dim);
        for (uint32_t d = 0; d < dim; d++) bits[d] = (uint32_t)halves[d] << 16;
        memcpy(x, bits, 4ull * dim);
    }
    for (uint32_t d = dim; d < padded(dim); d++) x[d] = 0;
    vi most = {0};
    for (uint32_t d = 0; d < padded(dim); d += LANES) {
        vi magnitude = (vi)load(x + d) & 0x7fffffff;
        vi more = magnitude > most;
        most = (magnitude & more) | (most & ~more);
    }
    uint32_t largest = 0;
    for (uint32_t i = 0; i < LANES; i++)
        if ((uint32_t)most[i] > largest) largest = (uint32_t)most[i];
    return largest;
}

/* A row of zeros or one that is not finite; false for all others. */
INLINE bool put_special(uint32_t largest, int zero_codes, uint32_t row_bytes,
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
    int32_t levels[SHEAF_CODEC_MAX_DIM];
    uint32_t largest = read_row(from, dtype, dim, x);
    if (put_special(largest, 0, dim, codes, scale)) return;
    const float unit = sheaf__f32_of_bits(largest) / 127.0f;
    memcpy(scale, &unit, 4);
    if (unit == 0.0f) {
        memset(codes, 0, dim);
        return;
    }
    /* adding 1.5 * 2^23 rounds to an integer, which then lies in the low bits */
    const float shift = 12582912.0f;
    for (uint32_t d = 0; d < padded(dim); d += LANES) {
        vi level = (vi)(load(x + d) / unit + shift) - 0x4b400000;
        vi above = level > 127, below = level < -127;
        level = (level & ~above & ~below) | (above & 127) | (below & -127);
        memcpy(levels + d, &level, sizeof level);
    }
    for (uint32_t d = 0; d < dim; d++) codes[d] = (unsigned char)levels[d];
}

static void decode_int8(const unsigned char *codes, float scale, uint32_t dim,
                        unsigned char *out)
{
    float y[SHEAF_CODEC_MAX_DIM];
    for (uint32_t d = 0; d < dim; d++) y[d] = scale * (float)(int8_t)codes[d];
    memcpy(out, y, 4ull * dim);
}

/* ---- the rotation -------------------------------------------------------------------------- */

static void turn_signs(float *x, uint32_t dim)
{
    uint32_t d = 0;
    for (; d + LANES <= dim; d += LANES) {
        int32_t bits = (int32_t)(sheaf__turbo4_signs[d / 64] >> (d % 64));
        vi turned = ((bits >> lane_numbers) & 1) << 31;
        store(x + d, (vf)((vi)load(x + d) ^ turned));
    }
    for (; d < dim; d++)
        if (sheaf__turbo4_signs[d / 64] >> (d % 64) & 1) x[d] = -x[d];
}

/* (a, b) -> (a + b, a - b) for lanes i and i ^ h, `swapped` being v with these exchanged. */
INLINE vf butterfly(vf v, vf swapped, int32_t h)
{
    vi upper = (lane_numbers & h) != 0;
    return swapped + (vf)((vi)v ^ (upper & INT32_MIN));
}

INLINE vf hadamard_inside(vf v)
{
    v = butterfly(v, SWAP_1(v), 1);
    v = butterfly(v, SWAP_2(v), 2);
#if LANES >= 8
    v = butterfly(v, SWAP_4(v), 4);
#endif
#if LANES >= 16
    v = butterfly(v, SWAP_8(v), 8);
#endif
    return v;
}

/* Fewer numbers than lanes. */
static void hadamard_short(float *y, uint32_t p, float factor)
{
    for (uint32_t h = 1; h < p; h *= 2)
        for (uint32_t i = 0; i < p; i++)
            if ((i & h) == 0) {
                float a = y[i], b = y[i + h];
                y[i] = a + b;
                y[i + h] = a - b;
            }
    for (uint32_t i = 0; i < p; i++) y[i] *= factor;
}

/* y: [p], p a power of two. */
static void hadamard(float *y, uint32_t p)
{
    /* 2^(-k/2) for p = 2^k */
    static const float factors[10] = {0x1p+0f, 0x1.6a09e6p-1f, 0x1p-1f, 0x1.6a09e6p-2f,
                                      0x1p-2f, 0x1.6a09e6p-3f, 0x1p-3f, 0x1.6a09e6p-4f,
                                      0x1p-4f, 0x1.6a09e6p-5f};
    const float factor = factors[sheaf__log2(p)];
    if (p < LANES) {
        hadamard_short(y, p, factor);
        return;
    }
    for (uint32_t i = 0; i < p; i += LANES) store(y + i, hadamard_inside(load(y + i)));
    for (uint32_t h = LANES; h < p; h *= 2)
        for (uint32_t i = 0; i < p; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += LANES) {
                vf a = load(y + j), b = load(y + j + h);
                store(y + j, a + b);
                store(y + j + h, a - b);
            }
    for (uint32_t i = 0; i < p; i += LANES) store(y + i, load(y + i) * factor);
}

static void rotate(float *x, uint32_t dim)
{
    if (dim == 0) return;
    const uint32_t p = 1u << sheaf__log2(dim);
    turn_signs(x, dim);
    hadamard(x, p);
    if (p < dim) hadamard(x + (dim - p), p);
}

static void unrotate(float *x, uint32_t dim)
{
    if (dim == 0) return;
    const uint32_t p = 1u << sheaf__log2(dim);
    if (p < dim) hadamard(x + (dim - p), p);
    hadamard(x, p);
    turn_signs(x, dim);
}

/* ---- turbo4 -------------------------------------------------------------------------------- */

/* a, b: padded. */
INLINE float dot(const float *a, const float *b, uint32_t dim)
{
    float lane[SUM_LANES] = {0};
    for (uint32_t d = 0; d < dim; d += SUM_LANES)
        for (uint32_t i = 0; i < SUM_LANES; i++) lane[i] = fmaf(a[d + i], b[d + i], lane[i]);
    for (uint32_t half = SUM_LANES / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

/* Codes and levels of u = r * gain. Twice a magnitude, cut to an integer, passes twice a midpoint
 * exactly where the magnitude passes the midpoint. */
INLINE vi code_of(vf u, vi *level)
{
    static const int32_t twice_midpoint[7] = {24, 49, 75, 102, 133, 171, 223};
    static const int32_t step[7] = {12, 13, 13, 14, 17, 21, 31}; /* from level to level */
    vi twice = __builtin_convertvector((vf)((vi)u & 0x7fffffff) * 2.0f, vi);
    vi passed = {0}, magnitude = passed + 6;
    for (uint32_t i = 0; i < 7; i++) {
        vi over = twice >= twice_midpoint[i];
        passed -= over;
        magnitude += over & step[i];
    }
    vi negative = u < 0.0f;
    *level = (magnitude ^ negative) - negative;
    return passed ^ 8 ^ (negative & 15);
}

static void encode_turbo4(const unsigned char *from, uint32_t dtype, uint32_t dim,
                          unsigned char *codes, unsigned char *scale)
{
    float x[SHEAF_CODEC_MAX_DIM], levels[SHEAF_CODEC_MAX_DIM];
    int32_t wide[SHEAF_CODEC_MAX_DIM];
    const uint32_t n = padded(dim), largest = read_row(from, dtype, dim, x);
    if (put_special(largest, SHEAF__TURBO4_ZERO, (dim + 1) / 2, codes, scale)) return;
    int32_t e = largest >= 1u << 23 ? (int32_t)(largest >> 23) - 127
                                    : (int32_t)sheaf__log2(largest) - 149;
    int32_t half = (e - (e & 1)) / 2, rest = e - half; /* 2^e may be no normal number */
    const float down = sheaf__f32_of_bits((uint32_t)(127 - half) << 23);
    const float down_rest = sheaf__f32_of_bits((uint32_t)(127 - rest) << 23);
    for (uint32_t d = 0; d < n; d += LANES) store(x + d, load(x + d) * down * down_rest);

    const float sigma = sqrtf(dot(x, x, n) / (float)dim);
    const float gain = LEVELS_PER_SIGMA / sigma;
    rotate(x, dim);
    vi squares = {0};
    for (uint32_t d = 0; d < n; d += LANES) {
        vi level, code = code_of(load(x + d) * gain, &level);
        squares += level * level;
        store(levels + d, __builtin_convertvector(level, vf));
        memcpy(wide + d, &code, sizeof code);
    }
    for (uint32_t i = 0; i < (dim + 1) / 2; i++)
        codes[i] = (unsigned char)(wide[2 * i] | wide[2 * i + 1] << 4);
    int32_t levels_squared = -36 * (int32_t)(n - dim); /* the padding has level 6 */
    for (uint32_t i = 0; i < LANES; i++) levels_squared += squares[i];
    float unit = dot(x, levels, n) / (float)levels_squared;
    unit = unit * sheaf__f32_of_bits((uint32_t)(127 + half) << 23) *
           sheaf__f32_of_bits((uint32_t)(127 + rest) << 23);
    memcpy(scale, &unit, 4);
}

static void decode_turbo4(const unsigned char *codes, float scale, uint32_t dim,
                          unsigned char *out)
{
    static const float table[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                    6,    18,  31,  44,  58,  75,  96,  127};
    float y[SHEAF_CODEC_MAX_DIM];
    for (uint32_t i = 0; i < (dim + 1) / 2; i++) {
        y[2 * i] = table[codes[i] & 15];
        y[2 * i + 1] = table[codes[i] >> 4];
    }
    unrotate(y, dim);
    for (uint32_t d = 0; d < dim; d++) y[d] *= scale;
    memcpy(out, y, 4ull * dim);
}

const sheaf__quantized_kernels TABLE = {
    .isa = ISA,
    .encode_int8 = encode_int8,
    .encode_turbo4 = encode_turbo4,
    .decode_int8 = decode_int8,
    .decode_turbo4 = decode_turbo4,
    .rotate = rotate,
    .unrotate = unrotate,
};
