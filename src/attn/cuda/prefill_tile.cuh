/* attn/cuda/prefill_tile.cuh - what the prefill kernels share on the device.
 *
 * Owns: which rows and keys a thread block works on, the shared-memory layout of operands, loading
 * of queries, writing of results, the rotation of turbo4.
 *
 * Operands lie in shared memory as [dim / 64][rows][64] 16-bit numbers, the eight 16-byte pieces of
 * a row of 64 permuted by the row's low three bits: free of bank conflicts, and the hardware's own
 * 128-byte swizzle.
 */
#ifndef SHEAF_ATTN_CUDA_PREFILL_TILE_CUH
#define SHEAF_ATTN_CUDA_PREFILL_TILE_CUH

#include "attn/cuda/prefill.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#define LOG2E 1.4426950408889634f

/* What a thread block works on. */
typedef struct prefill_work {
    sheaf__cuda_prefill_item item;
    uint32_t kv_head;
    uint32_t group;
    uint32_t first_row; /* of the item's rows of this head */
    uint32_t n_rows;    /* of this tile */
    uint32_t first_key; /* [first_key, end_key): seen by some row */
    uint32_t end_key;
} prefill_work;

static __device__ __forceinline__ uint32_t row_position(const prefill_work &w, uint32_t row)
{
    return w.item.first_pos + (w.first_row + row) / w.group;
}

/* Tiles of one item and head are neighbours, those that see most first. */
static __device__ __forceinline__ prefill_work work_of(const sheaf__cuda_prefill &a,
                                                       uint32_t block, uint32_t tile_rows)
{
    prefill_work w;
    uint32_t heads = a.view.n_kv_heads;
    w.item = a.items[a.tile_item[block / heads]];
    uint32_t local = block - w.item.first_tile * heads;
    w.kv_head = local / w.item.n_tiles;
    w.group = a.n_q_heads / heads;
    w.first_row = (w.item.n_tiles - 1 - local % w.item.n_tiles) * tile_rows;
    w.n_rows = min(tile_rows, w.item.n_queries * w.group - w.first_row);
    uint32_t first = row_position(w, 0), last = row_position(w, w.n_rows - 1);
    w.first_key = a.window != 0 && first + 1 > a.window ? first + 1 - a.window : 0;
    w.end_key = a.not_causal ? w.item.n_tokens : min(last + 1, w.item.n_tokens);
    if (w.end_key < w.first_key) w.end_key = w.first_key;
    return w;
}

/* What a row sees: [lo, hi); rows beyond the tile's see nothing. */
static __device__ __forceinline__ uint2 row_keys(const sheaf__cuda_prefill &a,
                                                 const prefill_work &w, uint32_t row)
{
    if (row >= w.n_rows) return make_uint2(0, 0);
    uint32_t pos = row_position(w, row);
    uint32_t lo = a.window != 0 && pos + 1 > a.window ? pos + 1 - a.window : 0;
    return make_uint2(lo, a.not_causal ? w.item.n_tokens : min(pos + 1, w.item.n_tokens));
}

/* Index of a row of q and out: in units of dim. */
static __device__ __forceinline__ uint64_t row_index(const sheaf__cuda_prefill &a,
                                                     const prefill_work &w, uint32_t row)
{
    uint32_t r = w.first_row + row;
    return (w.item.first_query + r / w.group) * a.n_q_heads + w.kv_head * w.group + r % w.group;
}

static __device__ __forceinline__ uint32_t row_head(const prefill_work &w, uint32_t row)
{
    return w.kv_head * w.group + (w.first_row + row) % w.group;
}

/* Bytes into an operand of `rows` rows. */
static __device__ __forceinline__ uint32_t operand_at(uint32_t rows, uint32_t row, uint32_t d)
{
    return (d >> 6) * rows * 128 + row * 128 + (((d >> 3 & 7) ^ (row & 7)) << 4) + (d & 7) * 2;
}

static __device__ __forceinline__ float read_number(const void *p, uint64_t i, uint32_t dtype)
{
    if (dtype == SHEAF_DTYPE_BF16) return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    if (dtype == SHEAF_DTYPE_F16) return __half2float(((const __half *)p)[i]);
    return ((const float *)p)[i];
}

static __device__ __forceinline__ void write_number(void *p, uint64_t i, uint32_t dtype,
                                                    float x)
{
    if (dtype == SHEAF_DTYPE_BF16)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    else if (dtype == SHEAF_DTYPE_F16)
        ((__half *)p)[i] = __float2half_rn(x);
    else
        ((float *)p)[i] = x;
}

/* Two neighbouring numbers, the first at an even index. */
static __device__ __forceinline__ void write_pair(void *p, uint64_t i, uint32_t dtype, float x,
                                                  float y)
{
    if (dtype == SHEAF_DTYPE_BF16)
        ((__nv_bfloat162 *)p)[i / 2] = __floats2bfloat162_rn(x, y);
    else if (dtype == SHEAF_DTYPE_F16)
        ((__half2 *)p)[i / 2] = __floats2half2_rn(x, y);
    else
        ((float2 *)p)[i / 2] = make_float2(x, y);
}

/* The first number in the low half. */
template <bool F16> static __device__ __forceinline__ uint32_t pack_pair(float x, float y)
{
    if (F16) {
        __half2 h = __floats2half2_rn(x, y);
        return *(uint32_t *)&h;
    }
    __nv_bfloat162 b = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&b;
}

/* What bf16 leaves of a pair. */
static __device__ __forceinline__ uint32_t pack_rest(float x, float y, uint32_t high)
{
    return pack_pair<false>(x - __uint_as_float(high << 16),
                            y - __uint_as_float(high & 0xffff0000u));
}

/* As sheaf__turbo4_signs. */
static __constant__ uint32_t turbo4_signs[8] = {0x7b1dcdafu, 0xe220a839u, 0xa1b965f4u,
                                                0x6e789e6au, 0x8009454fu, 0x06c45d18u,
                                                0x724c81ecu, 0xf88bb8a8u};

/* R (or its inverse) of a row held by a warp: element lane + 32 i in x[i]. docs/format.md. */
template <int D, bool INVERSE>
static __device__ __forceinline__ void rotate_row(float (&x)[D / 32], uint32_t lane)
{
    if (!INVERSE)
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            if (turbo4_signs[i] >> lane & 1) x[i] = -x[i];
#pragma unroll
    for (uint32_t h = 1; h < 32; h *= 2)
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            float other = __shfl_xor_sync(0xffffffffu, x[i], h);
            x[i] = lane & h ? other - x[i] : x[i] + other;
        }
#pragma unroll
    for (int h = 1; h < D / 32; h *= 2)
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            if ((i & h) == 0) {
                float u = x[i], v = x[i + h];
                x[i] = u + v;
                x[i + h] = u - v;
            }
    const float norm = D == 64 ? 0.125f : D == 128 ? 0.08838834764831845f : 0.0625f;
#pragma unroll
    for (int i = 0; i < D / 32; i++) x[i] *= norm;
    if (INVERSE)
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            if (turbo4_signs[i] >> lane & 1) x[i] = 0.f - x[i]; // no negative zeros
}

/* An exact power of two that brings the largest number of a row, held by LANES neighbours, into [1, 2),
 * and its inverse. */
template <int LANES> static __device__ __forceinline__ float2 row_power(float largest)
{
#pragma unroll
    for (int h = LANES / 2; h > 0; h /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, h));
    int e = (int)(__float_as_uint(largest) >> 23) - 127;
    if (e > 126 || e < -126) e = 0;
    return make_float2(__uint_as_float((uint32_t)(127 - e) << 23),
                       __uint_as_float((uint32_t)(127 + e) << 23));
}

/* factor: turns a product of a query times `power` into a score times log2(e). The sign of the scale
 * goes to the query, so that the largest product is the largest score. */
static __device__ __forceinline__ float row_factor(const sheaf__cuda_prefill &a, float back)
{
    return fabsf(a.scale) * LOG2E * back;
}

/* Rotated queries: rows [0, rows) of a block of 32 `step` threads, a row a warp, into an operand;
 * low: what bf16 leaves of them, or null. */
template <int D, bool F16>
static __device__ void load_rotated(const sheaf__cuda_prefill &a, const prefill_work &w,
                                    uint32_t step, uint32_t rows, unsigned char *high,
                                    unsigned char *low, float *factor)
{
    uint32_t lane = threadIdx.x & 31;
    for (uint32_t r = threadIdx.x / 32; r < rows; r += step) {
        float x[D / 32];
        bool there = r < w.n_rows;
        uint64_t at = there ? row_index(a, w, r) * D : 0;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            x[i] = there ? read_number(a.q, at + lane + 32 * i, a.io_dtype) : 0;
            if (a.scale < 0) x[i] = -x[i];
        }
        rotate_row<D, false>(x, lane);
        float largest = 0;
#pragma unroll
        for (int i = 0; i < D / 32; i++) largest = fmaxf(largest, fabsf(x[i]));
        float2 power = F16 ? row_power<32>(largest) : make_float2(1, 1);
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint32_t to = operand_at(rows, r, lane + 32 * i);
            uint32_t h = pack_pair<F16>(x[i] * power.x, 0);
            *(uint16_t *)(high + to) = (uint16_t)h;
            if (!F16 && low != NULL) *(uint16_t *)(low + to) = (uint16_t)pack_rest(x[i], 0, h);
        }
        if (lane == 0) factor[r] = row_factor(a, power.y);
    }
}

/* Eight numbers as they were read: 16 bytes, or 32 of f32. */
static __device__ __forceinline__ void widen_piece(float (&x)[8], uint4 u, uint4 v,
                                                   uint32_t dtype)
{
    uint32_t word[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t pair = word[i / 2] >> (i % 2 * 16);
        if (dtype == SHEAF_DTYPE_F32)
            x[i] = __uint_as_float(word[i]);
        else if (dtype == SHEAF_DTYPE_BF16)
            x[i] = __uint_as_float(pair << 16);
        else
            x[i] = __half2float(__ushort_as_half((unsigned short)pair));
    }
}

/* Queries of `ROWS` rows of the tile from base_row on into an operand, by THREADS threads of which
 * this is `thread`; low: as above. Four pieces a thread are on their way at once. */
template <int D, bool F16, int ROWS, int THREADS>
static __device__ __forceinline__ void
load_queries(const sheaf__cuda_prefill &a, const prefill_work &w, uint32_t thread,
             uint32_t base_row, unsigned char *high, unsigned char *low, float *factor)
{
    const int PIECES = D / 8; /* of a row: 8, 16 or 32, neighbouring lanes */
    const uint32_t size = a.io_dtype == SHEAF_DTYPE_F32 ? 4 : 2;
    for (uint32_t first = thread; first < ROWS * PIECES; first += 4 * THREADS) {
        uint4 u[4], v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t row = base_row + (first + i * THREADS) / PIECES;
            uint32_t d = (first + i * THREADS) % PIECES * 8;
            u[i] = v[i] = make_uint4(0, 0, 0, 0);
            if (row < w.n_rows) {
                const unsigned char *from =
                    (const unsigned char *)a.q + (row_index(a, w, row) * D + d) * size;
                u[i] = *(const uint4 *)from;
                if (size == 4) v[i] = *(const uint4 *)(from + 16);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t row = (first + i * THREADS) / PIECES;
            uint32_t d = (first + i * THREADS) % PIECES * 8;
            float x[8];
            float2 power = make_float2(1, 1);
            widen_piece(x, u[i], v[i], a.io_dtype);
            if (F16) {
                float largest = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) largest = fmaxf(largest, fabsf(x[e]));
                power = row_power<PIECES>(largest);
            }
            float by = a.scale < 0 ? -power.x : power.x;
            uint32_t h[4], l[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                h[e] = pack_pair<F16>(x[2 * e] * by, x[2 * e + 1] * by);
                l[e] = F16 ? 0 : pack_rest(x[2 * e] * by, x[2 * e + 1] * by, h[e]);
            }
            uint32_t to = operand_at(ROWS, row, d);
            *(uint4 *)(high + to) = make_uint4(h[0], h[1], h[2], h[3]);
            if (low != NULL) *(uint4 *)(low + to) = make_uint4(l[0], l[1], l[2], l[3]);
            if (d == 0) factor[row] = row_factor(a, power.y);
        }
    }
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* cap * tanh(x / cap), both times log2(e). */
static __device__ __forceinline__ float soft_cap(float x, float cap, float per_cap)
{
    float e = exp2_fast(fminf(x * per_cap, 120.f)); /* e^(2 x / cap) */
    return cap - __fdividef(2 * cap, e + 1);
}

/* What a row's denominator becomes with its sink, and what its numbers are multiplied by. */
static __device__ __forceinline__ float
row_finish(const sheaf__cuda_prefill &a, const prefill_work &w, uint32_t row, float m, float l)
{
    if (a.sinks == NULL || row >= w.n_rows) return l > 0 ? 1 / l : l == 0 ? 0 : l;
    float sink = a.sinks[row_head(w, row)] * LOG2E;
    float top = fmaxf(m, sink);
    float part = exp2_fast(m - top);
    return part / (l * part + exp2_fast(sink - top));
}

#endif
