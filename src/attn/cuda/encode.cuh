/* attn/cuda/encode.cuh - encoding one row on the GPU, to the bytes of the processor.
 *
 * Raw codecs are integer arithmetic on bits; int8 and turbo4 are f32 arithmetic, operation by
 * operation, by one warp a row. Must match base/half.h and codec/quantized_portable.c; docs/format.md
 * defines both. Only files that are built with -fmad=false may include this: a product and a sum fused
 * by the compiler would show.
 */
#ifndef SHEAF_ATTN_CUDA_ENCODE_CUH
#define SHEAF_ATTN_CUDA_ENCODE_CUH

#include <cstdint>

#include "sheaf/codec.h"

#define ENCODE_MAX_DIM   512
#define ENCODE_NAN       0x7fc00000u
#define ENCODE_ALL_LANES 0xffffffffu
/* 127 / 2.7326, levels per standard deviation */
#define ENCODE_LEVELS_PER_SIGMA 0x1.73ce9cp+5f

/* ---- numbers ------------------------------------------------------------------------------- */

static __device__ __forceinline__ float encode_f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1f) {
        uint32_t quiet = mantissa ? 0x400000u : 0;
        return __uint_as_float(sign | 0x7f800000u | (mantissa << 13) | quiet);
    }
    if (exponent != 0)
        return __uint_as_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    if (mantissa == 0) return __uint_as_float(sign);
    uint32_t high = 31u - (uint32_t)__clz((int)mantissa);
    return __uint_as_float(sign | ((high + 103) << 23) |
                           ((mantissa << (23 - high)) & 0x7fffffu));
}

static __device__ __forceinline__ uint16_t encode_f16_of_f32(uint32_t u)
{
    uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude >= 0x38800000u) {
        uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | (rounded >> 13));
    }
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign;
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - exponent;
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1),
             half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1u));
    return (uint16_t)(sign | kept);
}

static __device__ __forceinline__ uint16_t encode_bf16_of_f32(uint32_t u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Element d of a row of `dtype`, widened. */
static __device__ __forceinline__ float encode_load(const void *row, uint32_t dtype, uint32_t d)
{
    if (dtype == SHEAF_DTYPE_F32) return ((const float *)row)[d];
    uint16_t h = ((const uint16_t *)row)[d];
    if (dtype == SHEAF_DTYPE_F16) return encode_f32_of_f16(h);
    return __uint_as_float((uint32_t)h << 16);
}

/* ---- raw codecs ---------------------------------------------------------------------------- */

/* One element; a source of the codec's own type is copied. */
static __device__ __forceinline__ void
encode_element(uint32_t codec, unsigned char *to, const void *row, uint32_t dtype, uint32_t d)
{
    if (codec == dtype && codec != SHEAF_CODEC_F32) {
        ((uint16_t *)to)[d] = ((const uint16_t *)row)[d];
        return;
    }
    if (codec == dtype) {
        ((uint32_t *)to)[d] = ((const uint32_t *)row)[d];
        return;
    }
    uint32_t u = __float_as_uint(encode_load(row, dtype, d));
    if (codec == SHEAF_CODEC_F32)
        ((uint32_t *)to)[d] = u;
    else
        ((uint16_t *)to)[d] =
            codec == SHEAF_CODEC_F16 ? encode_f16_of_f32(u) : encode_bf16_of_f32(u);
}

/* ---- quantized codecs: a warp a row -------------------------------------------------------- */

/* Bytes, since a scale need not be aligned. */
static __device__ __forceinline__ void encode_put_scale(unsigned char *scale, uint32_t bits)
{
    for (int i = 0; i < 4; i++) scale[i] = (unsigned char)(bits >> (8 * i));
}

/* Widens a row into x: [dim], shared; returns the bits of its largest magnitude, to all lanes. */
static __device__ __forceinline__ uint32_t encode_widen(const void *row, uint32_t dtype,
                                                        uint32_t dim, float *x)
{
    uint32_t largest = 0;
    for (uint32_t d = threadIdx.x % 32; d < dim; d += 32) {
        x[d] = encode_load(row, dtype, d);
        largest = max(largest, __float_as_uint(x[d]) & 0x7fffffffu);
    }
    __syncwarp();
    return __reduce_max_sync(ENCODE_ALL_LANES, largest);
}

/* Whether a row is zero or not finite: it has one code throughout. */
static __device__ __forceinline__ bool encode_special(uint32_t largest, unsigned char code,
                                                      uint32_t row_bytes, unsigned char *codes,
                                                      unsigned char *scale)
{
    if (largest != 0 && largest < 0x7f800000u) return false;
    for (uint32_t i = threadIdx.x % 32; i < row_bytes; i += 32) codes[i] = code;
    if (threadIdx.x % 32 == 0) encode_put_scale(scale, largest == 0 ? 0 : ENCODE_NAN);
    return true;
}

static __device__ void encode_int8(const void *row, uint32_t dtype, uint32_t dim, float *x,
                                   unsigned char *codes, unsigned char *scale)
{
    uint32_t largest = encode_widen(row, dtype, dim, x);
    if (encode_special(largest, 0, dim, codes, scale)) return;
    float unit = __fdiv_rn(__uint_as_float(largest), 127.0f);
    for (uint32_t d = threadIdx.x % 32; d < dim; d += 32) {
        int level = unit == 0.0f ? 0 : __float2int_rn(__fdiv_rn(x[d], unit));
        codes[d] = (unsigned char)min(max(level, -127), 127);
    }
    if (threadIdx.x % 32 == 0) encode_put_scale(scale, __float_as_uint(unit));
}

/* Bit d % 64 of word d / 64: whether the rotation turns the sign of element d. */
static __device__ const uint64_t encode_signs[8] = {
    0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec,
    0x1b39896a51a8749b, 0x53cb9f0c747ea2ea, 0x2c829abe1f4532e1, 0xc584133ac916ab3c};

static __device__ const int8_t encode_levels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                                    6,    18,  31,  44,  58,  75,  96,  127};

/* y: [p], p = 1 << log2p. */
static __device__ void encode_hadamard(float *y, uint32_t log2p)
{
    uint32_t p = 1u << log2p, lane = threadIdx.x % 32;
    for (uint32_t h = 1; h < p; h *= 2) {
        for (uint32_t i = lane; i < p / 2; i += 32) {
            uint32_t j = (i & ~(h - 1)) * 2 + (i & (h - 1));
            float a = y[j], b = y[j + h];
            y[j] = __fadd_rn(a, b);
            y[j + h] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    float factor =
        (log2p % 2 == 0 ? 1.0f : 0x1.6a09e6p-1f) * __uint_as_float((127u - log2p / 2) << 23);
    for (uint32_t i = lane; i < p; i += 32) y[i] = __fmul_rn(y[i], factor);
    __syncwarp();
}

static __device__ void encode_rotate(float *x, uint32_t dim)
{
    uint32_t log2p = 31u - (uint32_t)__clz((int)dim);
    for (uint32_t d = threadIdx.x % 32; d < dim; d += 32)
        if (encode_signs[d / 64] >> (d % 64) & 1) x[d] = -x[d];
    __syncwarp();
    encode_hadamard(x, log2p);
    if (1u << log2p < dim) encode_hadamard(x + (dim - (1u << log2p)), log2p);
}

/* The sum over 16 lanes and their tree; `partial` is that of lane threadIdx.x % 32, below 16. */
static __device__ __forceinline__ float encode_tree(float partial)
{
    for (int half = 8; half > 0; half /= 2)
        partial = __fadd_rn(partial, __shfl_down_sync(ENCODE_ALL_LANES, partial, half));
    return __shfl_sync(ENCODE_ALL_LANES, partial, 0);
}

static __device__ __forceinline__ uint32_t encode_code(float u)
{
    float m = fabsf(u);
    uint32_t passed = (m >= 12.0f) + (m >= 24.5f) + (m >= 37.5f) + (m >= 51.0f) + (m >= 66.5f) +
                      (m >= 85.5f) + (m >= 111.5f);
    return u < 0 ? 7 - passed : 8 + passed;
}

static __device__ __forceinline__ float encode_power(int e)
{
    return __uint_as_float((uint32_t)(127 + e) << 23);
}

static __device__ void encode_turbo4(const void *row, uint32_t dtype, uint32_t dim, float *x,
                                     unsigned char *codes, unsigned char *scale)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t largest = encode_widen(row, dtype, dim, x);
    if (encode_special(largest, 0x88, (dim + 1) / 2, codes, scale)) return;
    int e = largest >= 1u << 23 ? (int)(largest >> 23) - 127 : 31 - __clz((int)largest) - 149;
    int half = (e - (e & 1)) / 2, rest = e - half;
    float down = encode_power(-half), down_rest = encode_power(-rest);
    for (uint32_t d = lane; d < dim; d += 32)
        x[d] = __fmul_rn(__fmul_rn(x[d], down), down_rest);
    __syncwarp();

    float sum = 0;
    for (uint32_t d = lane; lane < 16 && d < dim; d += 16) sum = __fmaf_rn(x[d], x[d], sum);
    float sigma = __fsqrt_rn(__fdiv_rn(encode_tree(sum), (float)dim));
    float gain = __fdiv_rn(ENCODE_LEVELS_PER_SIGMA, sigma);
    __syncwarp(); /* all have read x */
    encode_rotate(x, dim);

    int squares = 0;
    for (uint32_t i = lane; i < (dim + 1) / 2; i += 32) {
        /* an odd row's last half byte is the code of zero */
        uint32_t low = encode_code(__fmul_rn(x[2 * i], gain)), high = 8;
        int level = encode_levels[low];
        squares += level * level;
        if (2 * i + 1 < dim) {
            high = encode_code(__fmul_rn(x[2 * i + 1], gain));
            level = encode_levels[high];
            squares += level * level;
        }
        codes[i] = (unsigned char)(low | high << 4);
    }
    squares = __reduce_add_sync(ENCODE_ALL_LANES, squares);
    float along = 0;
    for (uint32_t d = lane; lane < 16 && d < dim; d += 16)
        along =
            __fmaf_rn(x[d], (float)encode_levels[encode_code(__fmul_rn(x[d], gain))], along);
    float unit = __fdiv_rn(encode_tree(along), (float)squares);
    unit = __fmul_rn(__fmul_rn(unit, encode_power(half)), encode_power(rest));
    if (lane == 0) encode_put_scale(scale, __float_as_uint(unit));
}

#endif
